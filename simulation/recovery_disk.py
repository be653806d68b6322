"""A disk in memory for the real storage: it tears, fails, fills up, crashes and optionally lies.

Each file has the contents that readers see and the stored contents. A sync stores what was written.
A power loss keeps none, all, or any sectors of the unsynced writes, and a prefix of the unsynced
changes of names, as a file system's journal does. After a failed sync its writes count as clean, as
on Linux: no later sync stores them, and they are lost when the cache is dropped. A disk that lies
reports syncs that it has not done.

Rules: everything random comes from the generator that is passed in, and every call is an event.
Must not know what the bytes mean.
"""

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from simulation.world import World
from strandline.storage.disk import Bytes, Disk, translated

SECTOR_BYTES: Final = 512
ROOT: Final = Path("/")


class PowerLossError(Exception):
    """The machine lost power in the middle of a call."""


class _Write(NamedTuple):
    """An unstored change of a file's contents; without data, a new length."""

    position: int
    data: bytes | None


class _File:
    """The contents of a file."""

    __slots__ = ("seen", "stored", "unsynced")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.stored = bytearray()
        self.unsynced: list[_Write] = []


class _Directory:
    """A directory's names as readers see them, as they are stored, and the changes in between."""

    __slots__ = ("changes", "names", "stored")

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self.stored: dict[str, _Node] = {}
        self.changes: list[dict[str, _Node | None]] = []

    def change(self, names: "dict[str, _Node | None]") -> None:
        """Change names in one step; None removes a name."""
        _rename(self.names, names)
        self.changes.append(names)


_Node = _File | _Directory


def _rename(names: dict[str, _Node], changes: dict[str, _Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _change(contents: bytearray, write: _Write) -> None:
    position, data = write
    end = position if data is None else position + len(data)
    if end > len(contents):
        contents.extend(bytes(end - len(contents)))
    if data is None:
        del contents[position:]
    else:
        contents[position:end] = data


class SimDisk(Disk):
    """A ``Disk`` whose faults are planned in advance.

    Attributes:
        full: writes that need new space fail.
        lies: syncs store nothing, but succeed.

    Args:
        world: the generator, and the count of events.
    """

    syncs_plainly = False

    def __init__(self, world: World) -> None:
        self.full = False
        self.lies = False
        self._world = world
        self._rng = world.rng
        self._directories: dict[Path, _Directory] = {ROOT: _Directory()}
        self._open: dict[int, _File] = {}
        self._next_fd = 1
        self._entropy = 0
        self._is_dead = False
        self._dies_in = -1
        self._fails_in: dict[str, int] = {}

    # Faults

    def die_after(self, calls: int) -> None:
        """Lose power at the call after this many."""
        self._dies_in = calls

    def fail_after(self, operation: str, calls: int) -> None:
        """Let one ``write``, ``sync`` or ``name`` (a change or sync of names) fail."""
        self._fails_in[operation] = calls

    def be_well(self) -> None:
        """Cancel all planned faults; the effects of past ones stay."""
        self.full, self.lies, self._dies_in = False, False, -1
        self._fails_in.clear()

    def crash(self, how: str) -> None:
        """Lose power; of unsynced writes keep ``nothing``, ``all`` or any part (``torn``)."""
        self.be_well()
        self._is_dead = False
        self._open.clear()
        root = self._directories[ROOT]
        self._directories = {}
        self._lose(ROOT, root, how)

    def _lose(self, path: Path, node: _Directory, how: str) -> None:
        some = self._rng.randint(0, len(node.changes))
        for changes in node.changes[: {"nothing": 0, "all": len(node.changes)}.get(how, some)]:
            _rename(node.stored, changes)
        node.names, node.changes = dict(node.stored), []
        self._directories[path] = node
        for name, child in node.names.items():
            if isinstance(child, _Directory):
                self._lose(path / name, child, how)
            else:
                self._tear(child, how)

    def _tear(self, file: _File, how: str) -> None:
        for write in file.unsynced:
            if how == "all":
                _change(file.stored, write)
            elif how == "torn":
                self._store_a_part(file, write)
        file.unsynced = []
        file.seen = bytearray(file.stored)

    def _store_a_part(self, file: _File, write: _Write) -> None:
        """Store some of the written sectors: a prefix, or scattered ones."""
        position, data = write
        chance = self._rng.choice((0.0, 0.5, 0.9, 1.0))
        if data is None:
            if self._rng.random() < chance:
                _change(file.stored, write)
            return
        start = 0
        while start < len(data):
            stop = start + SECTOR_BYTES - (position + start) % SECTOR_BYTES
            if self._rng.random() < chance:
                _change(file.stored, _Write(position + start, data[start:stop]))
            start = stop

    def _enter(self, operation: str = "") -> None:
        """Begin a call, which may lose power, or fail."""
        self._world.events += 1
        if self._dies_in >= 0:
            self._dies_in -= 1
            self._is_dead = self._is_dead or self._dies_in < 0
        if self._is_dead:
            raise PowerLossError
        if operation in self._fails_in and self._is_time_to_fail(operation):
            raise translated(OSError(errno.EIO, os.strerror(errno.EIO)), f"doing {operation}")

    def _is_time_to_fail(self, operation: str) -> bool:
        self._fails_in[operation] -= 1
        if self._fails_in[operation] >= 0:
            return False
        del self._fails_in[operation]
        self._world.counts[f"failed {operation}"] += 1
        return True

    # Contents

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Open; a new name is not stored until its directory is synced."""
        del write
        self._enter("name" if create else "")
        directory = self._directories.get(path.parent)
        node = None if directory is None else directory.names.get(path.name)
        if node is None and create and directory is not None:
            node = _File()
            directory.change({path.name: node})
        if not isinstance(node, _File):
            raise translated(OSError(errno.ENOENT, "no such file"), f"opening {path}")
        self._next_fd += 1
        self._open[self._next_fd] = node
        return self._next_fd

    def close(self, fd: int) -> None:
        """Close; files that a power loss has closed are ignored."""
        self._open.pop(fd, None)

    def inode(self, fd: int) -> int:
        """Not implemented: the storage of this simulation needs no inodes."""
        raise NotImplementedError(f"the inode of {fd}")

    def size(self, fd: int) -> int:
        """Return the size that readers see."""
        self._enter()
        return len(self._open[fd].seen)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Return the bytes that readers see."""
        self._enter()
        return bytes(self._open[fd].seen[position : position + length])

    def pwrite(self, fd: int, data: Bytes, position: int) -> None:
        """Write; or write a part, and fail."""
        file, data = self._open.get(fd), bytes(data)
        try:
            self._enter("write")
            self._check_room(file, position + len(data))
        except Exception:
            if file is not None:
                room = len(data) if not self.full else max(0, len(file.seen) - position)
                self._write(file, _Write(position, data[: self._rng.randint(0, room)]))
            raise
        assert file is not None, "it is open"
        self._write(file, _Write(position, data))

    def _check_room(self, file: _File | None, end: int) -> None:
        if self.full and file is not None and end > len(file.seen):
            raise translated(OSError(errno.ENOSPC, "full"), "writing")

    @staticmethod
    def _write(file: _File, write: _Write) -> None:
        if write.data is None or write.data:
            _change(file.seen, write)
            file.unsynced.append(write)

    def pwritev(self, fd: int, buffers: Sequence[Bytes], position: int) -> None:
        """Write all buffers by one ``pwrite``."""
        self.pwrite(fd, b"".join(buffers), position)

    def truncate(self, fd: int, length: int) -> None:
        """Truncate or extend; not synced."""
        self._enter("write")
        if length != len(self._open[fd].seen):
            self._write(self._open[fd], _Write(length, None))

    def fdatasync(self, fd: int) -> None:
        """Store the writes; or fail, and never store them; or lie, and succeed."""
        file = self._open[fd]
        try:
            self._enter("sync")
        except PowerLossError:
            raise
        except Exception:
            for write in file.unsynced:
                self._store_a_part(file, write)
            _change(file.stored, _Write(len(file.seen), None))
            file.unsynced = []
            raise
        if self.lies:
            self._world.counts["lies"] += 1
            return
        for write in file.unsynced:
            _change(file.stored, write)
        file.unsynced = []

    def write_back(self, fd: int, position: int, length: int) -> None:
        """Do nothing durable: it may only start writing."""
        assert fd in self._open, f"the file of {position} to {position + length} is open"
        self._enter()

    def map(self, fd: int, length: int) -> mmap.mmap:
        """Return a copy of the first bytes, which will not change."""
        self._enter()
        if not 0 < length <= len(self._open[fd].seen):
            raise translated(OSError(errno.EINVAL, "invalid length"), "mapping a file")
        mapped = mmap.mmap(-1, length)
        mapped[:] = bytes(self._open[fd].seen[:length])
        return mapped

    def will_need(self, fd: int, position: int, length: int) -> None:
        """Do nothing: everything is in memory."""

    def drop_cache(self, fd: int) -> None:
        """Show readers what is stored, and unsynced writes; writes of failed syncs are lost."""
        self._enter()
        file = self._open[fd]
        length, file.seen = len(file.seen), bytearray(file.stored)
        for write in file.unsynced:
            _change(file.seen, write)
        _change(file.seen, _Write(length, None))

    # Names

    def sync_directory(self, path: Path) -> None:
        """Store the names."""
        self._enter("name")
        directory = self._directories[path]
        if not self.lies:
            directory.stored, directory.changes = dict(directory.names), []

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or a directory within its directory."""
        self._enter("name")
        assert source.parent == target.parent, "nothing moves between directories"
        directory = self._directories[source.parent]
        node = directory.names[source.name]
        directory.change({source.name: None, target.name: node})
        if isinstance(node, _Directory):
            self._directories[target] = self._directories.pop(source)

    def unlink(self, path: Path) -> None:
        """Remove a name if it exists."""
        self._enter("name")
        directory = self._directories.get(path.parent)
        if directory is not None and path.name in directory.names:
            directory.change({path.name: None})

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, durably."""
        if path in self._directories:
            return
        self.make_directory(path.parent)
        self._enter("name")
        node = self._directories[path] = _Directory()
        self._directories[path.parent].change({path.name: node})
        self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory if it exists."""
        self._enter("name")
        if path in self._directories:
            assert not self._directories.pop(path).names, "it is empty"
            self._directories[path.parent].change({path.name: None})

    def exists(self, path: Path) -> bool:
        """Whether the name exists."""
        self._enter()
        directory = self._directories.get(path.parent)
        return directory is not None and path.name in directory.names

    def listing(self, path: Path) -> dict[str, int]:
        """Return names and sizes in order of names, so that a seed repeats."""
        self._enter()
        directory = self._directories.get(path)
        names = sorted(directory.names.items()) if directory else []
        return {name: len(node.seen) for name, node in names if isinstance(node, _File)}

    def read_bytes(self, path: Path) -> bytes | None:
        """Return the contents of a file; None if it does not exist."""
        self._enter()
        directory = self._directories.get(path.parent)
        node = directory.names.get(path.name) if directory else None
        return bytes(node.seen) if isinstance(node, _File) else None

    def entropy(self, length: int) -> bytes:
        """Return bytes that the seed determines."""
        return self._rng.randbytes(length)
