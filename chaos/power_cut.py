"""A directory that can lose its unsynced writes at any time, as by a power cut.

Rules: another process serves the file system (`chaos.fuse`), since a process that waits for its own
answer would wait for ever. Kill the processes that write there before the cut: an ack that is sent
after the cut promises nothing. Needs FUSE and the permission to mount.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chaos import fuse
from chaos.unsynced import Dropped, Names

END_TIMEOUT_S: Final = 10.0


def unavailable_reason(folder: Path) -> str:
    """Return why no such directory can be mounted here; empty if one can.

    Args:
        folder: an empty directory to try it in.
    """
    if not Path(fuse.DEVICE).exists():
        return f"there is no {fuse.DEVICE}"
    try:
        device = fuse.mount(folder)
    except OSError as error:
        return f"FUSE cannot be mounted ({error.strerror or error}); it takes root"
    os.close(device)
    fuse.unmount(folder)
    return ""


class PowerCutDisk:
    """A mounted directory that a cut resets to what was synced.

    Args:
        path: the mount point.
        process: the process that serves it.
    """

    def __init__(self, path: Path, process: "subprocess.Popen[str]") -> None:
        self.path = path
        self._process = process

    def cut(self, seed: int | None = None) -> Dropped:
        """Lose unsynced writes, and mount again; processes with open files there get errors.

        Args:
            seed: of a generator that decides for each unsynced page whether it is kept; None: drop
                all.
        """
        return Dropped(**self._command("cut" if seed is None else f"cut {seed}"))

    def sync(self) -> None:
        """Make all present contents durable."""
        self._command("sync")

    def _command(self, line: str) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return _answer(self._process)


def _answer(process: "subprocess.Popen[str]") -> dict[str, int]:
    """Return the server's answer to a command.

    Raises:
        RuntimeError: the server ended; its own error is on standard error.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the FUSE server ended with code {process.wait()}")
    found: dict[str, int] = json.loads(line)
    return found


@contextlib.contextmanager
def power_cut_disk(folder: Path, names: Names = Names.EXT4) -> Iterator[PowerCutDisk]:
    """Mount an empty directory under a folder; unmount it at the end.

    Args:
        folder: will contain the mounted directory, and one for the contents of its files.
        names: which sync makes names durable.
    """
    path, backing = folder / "mounted", folder / "backing"
    path.mkdir(parents=True)
    backing.mkdir()
    words = [sys.executable, "-m", "chaos.fuse", str(backing), str(path), names]
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    with process:
        try:
            _answer(process)
            yield PowerCutDisk(path, process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            if os.path.ismount(path) or not _answers(path):
                fuse.unmount(path)  # the server was killed


def _answers(path: Path) -> bool:
    """Return whether the directory can be read, which that of a dead server cannot."""
    try:
        path.stat()
    except OSError:
        return False
    return True
