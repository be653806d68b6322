"""Processes of this machine, from ``/proc``."""

import contextlib
from pathlib import Path


def child_of(pid, program="nats-server"):
    """Return the process id of a broker's child that runs a program, or None."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if program.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def is_running(pid):
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
