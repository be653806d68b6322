"""A directory whose unsynced files can be lost at will, as by a power cut.

Rules: another process serves the file system (`chaos.fuse`), since one that waits for its own
answer would wait for ever. Kill whatever writes there before the cut: an ack that is sent after the
cut is nobody's promise. Needs FUSE and the right to mount.
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
        folder: an empty directory to try it at.
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
    """A mounted directory that a cut takes back to what was synced.

    Args:
        path: where it is mounted.
        process: what serves it.
    """

    def __init__(self, path: Path, process: "subprocess.Popen[str]") -> None:
        self.path = path
        self._process = process

    def cut(self, seed: int | None = None) -> Dropped:
        """Lose what is unsynced, and mount again; processes with open files there get errors.

        Args:
            seed: drop each unsynced page of a synced range by this chance; by default drop all.
        """
        return Dropped(**self._command("cut" if seed is None else f"cut {seed}"))

    def sync(self) -> None:
        """Make everything durable that is there now."""
        self._command("sync")

    def _command(self, line: str) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return _answer(self._process)


def _answer(process: "subprocess.Popen[str]") -> dict[str, int]:
    """Return what the server says.

    Raises:
        RuntimeError: it ended; its own error is on standard error.
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
        folder: gets the mounted directory, and one for the content of its files.
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
    """Return whether the directory can be looked at, as that of a dead server cannot."""
    try:
        path.stat()
    except OSError:
        return False
    return True
