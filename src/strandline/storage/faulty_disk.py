"""A disk that fails on purpose: full, broken, or losing what was not synced; for tests.

It works on real files and records how to undo every change that no sync has made durable. So
``crash`` leaves what a power loss would leave: synced bytes and names, and those unsynced bytes
that the caller chooses. Rules: nothing is random. A killed process needs no ``crash``: open the
files again.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from strandline.storage.disk import Bytes, Disk, failed_sync, translated


class Unsynced(NamedTuple):
    """A write that a crash may undo."""

    path: Path
    position: int
    data: bytes


Keep = Callable[[Unsynced], Sequence[tuple[int, int]]]
"""Returns the byte ranges of an unsynced write that survive the crash."""


def keep_nothing(_: Unsynced) -> Sequence[tuple[int, int]]:
    """Lose everything unsynced."""
    return ()


def keep_all(write: Unsynced) -> Sequence[tuple[int, int]]:
    """Keep everything unsynced, as if it had reached the disk."""
    return ((0, len(write.data)),)


class _Change(NamedTuple):
    """An unsynced change of a file's contents."""

    write: Unsynced
    overwritten: bytes
    size_before: int


@dataclass(slots=True)
class _FileState:
    """Unsynced changes of one file; holds it open so that its inode is not reused."""

    fd: int
    path: Path
    changes: list[_Change] = field(default_factory=list)


class _NameChange(NamedTuple):
    """An unsynced change of a directory."""

    directory: Path
    undo: Callable[[], None]


class FaultyDisk(Disk):
    """A ``Disk`` whose unsynced changes can be undone and whose calls can be made to fail.

    Attributes:
        full: writes that need new space raise ``DiskFullError``; allocated space can be used.
        syncs: how many times a file's contents were synced.
    """

    syncs_plainly = False

    def __init__(self, scratch: Path) -> None:
        self.full = False
        self.syncs = 0
        self._scratch = scratch
        self._files: dict[int, _FileState] = {}
        self._names: list[_NameChange] = []
        self._failures: dict[str, list[tuple[int, int]]] = {}
        self._links = 0
        self._entropy = 0
        scratch.mkdir(parents=True, exist_ok=True)

    def fail(
        self, operation: str, *, code: int = errno.EIO, times: int = 1, after: int = 0
    ) -> None:
        """Make calls of ``write``, ``sync``, ``sync_directory``, ``rename`` or ``open`` fail.

        Args:
            operation: the kind of call.
            code: the system's error number.
            times: how many calls fail.
            after: how many calls succeed before that.
        """
        self._failures.setdefault(operation, []).extend([(0, 0)] * after + [(code, 0)] * times)

    def fail_write_after(self, length: int, *, code: int = errno.ENOSPC) -> None:
        """Make the next write fail when it has written ``length`` bytes."""
        self._failures.setdefault("write", []).append((code, length))

    def crash(self, keep: Keep = keep_nothing) -> None:
        """Lose power: undo what is not synced, except the bytes that ``keep`` names.

        Names go back to those at the last directory sync. Release all open logs and journals
        before; the disk object can be used again.
        """
        for change in reversed(self._names):
            change.undo()
        for file in self._files.values():
            for contents in reversed(file.changes):
                os.ftruncate(file.fd, contents.size_before)
                super().pwrite(file.fd, contents.overwritten, contents.write.position)
            for contents in file.changes:
                write = contents.write
                for start, stop in keep(write):
                    super().pwrite(file.fd, write.data[start:stop], write.position + start)
        self.forget()
        self._failures.clear()
        self.full = False

    def forget(self) -> None:
        """Forget how to undo changes; the files stay as they are."""
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()
        self._names.clear()

    @property
    def unsynced(self) -> list[Unsynced]:
        """Return the writes that a crash would undo."""
        return [change.write for file in self._files.values() for change in file.changes]

    # -- contents ------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: Bytes, position: int) -> None:
        """Write, fail, or write a part and fail."""
        data = bytes(data)
        code, allowed = self._next_failure("write")
        size = self.size(fd)
        if not code and self.full and position + len(data) > size:
            code, allowed = errno.ENOSPC, max(0, size - position)
        written = data if not code else data[:allowed]
        if written:
            before = os.pread(fd, len(written), position)
            super().pwrite(fd, written, position)
            unsynced = Unsynced(self._state(fd).path, position, written)
            self._state(fd).changes.append(_Change(unsynced, before, size))
        if code:
            raise translated(OSError(code, os.strerror(code)), "writing")

    def pwritev(self, fd: int, buffers: Sequence[Bytes], position: int) -> None:
        """Write all buffers by one ``pwrite``."""
        self.pwrite(fd, b"".join(buffers), position)

    def truncate(self, fd: int, length: int) -> None:
        """Truncate; undone by a crash like a write."""
        self._check("truncate")
        size = self.size(fd)
        if length != size:
            lost = os.pread(fd, max(size - length, 0), length)
            unsynced = Unsynced(self._state(fd).path, length, b"")
            self._state(fd).changes.append(_Change(unsynced, lost, size))
        super().truncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        """Make the contents durable."""
        self._check("sync")
        self.syncs += 1
        self._state(fd).changes.clear()

    def drop_cache(self, fd: int) -> None:
        """Do nothing: the cache is the only copy here."""

    def _state(self, fd: int) -> _FileState:
        inode = os.fstat(fd).st_ino
        file = self._files.get(inode)
        if file is None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            file = self._files[inode] = _FileState(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), path)
        return file

    # -- names ---------------------------------------------------------------------------------

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Open; a new name is lost by a crash until its directory is synced."""
        self._check("open")
        if create and not path.exists():
            self._names.append(_NameChange(path.parent, lambda: path.unlink(missing_ok=True)))
        return super().open(path, write=write, create=create)

    def rename(self, source: Path, target: Path) -> None:
        """Rename; undone by a crash until the directory is synced."""
        self._check("rename")
        replaced = self._link(target)

        def undo() -> None:
            if target.exists():
                target.rename(source)
            if replaced is not None:
                replaced.rename(target)

        super().rename(source, target)
        self._names.append(_NameChange(target.parent, undo))

    def unlink(self, path: Path) -> None:
        """Remove; undone by a crash until the directory is synced."""
        link = self._link(path)
        super().unlink(path)
        if link is not None:
            self._names.append(_NameChange(path.parent, lambda: _restore(link, path)))

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self._check("sync_directory")
        self._names = [change for change in self._names if change.directory != path]

    def _link(self, path: Path) -> Path | None:
        """Create a second name for a file that is about to lose its own."""
        if not path.is_file():
            return None
        self._links += 1
        link = self._scratch / str(self._links)
        os.link(path, link)
        return link

    # -- faults --------------------------------------------------------------------------------

    def _next_failure(self, operation: str) -> tuple[int, int]:
        queue = self._failures.get(operation)
        return queue.pop(0) if queue else (0, 0)

    def _check(self, operation: str) -> None:
        code, _ = self._next_failure(operation)
        if code:
            error = OSError(code, os.strerror(code))
            kind = failed_sync if operation == "sync" else translated
            raise kind(error, f"doing '{operation}'") from error

    def entropy(self, length: int) -> bytes:
        """Return the same sequence of values in every run, each value once."""
        self._entropy += 1
        return self._entropy.to_bytes(length, "little")


def _restore(link: Path, path: Path) -> None:
    """Restore a removed name, unless its directory no longer exists."""
    if path.parent.is_dir():
        link.rename(path)
