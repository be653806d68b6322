"""The files of a file system that loses unsynced changes when the power is cut.

Rules: data is written to its backing file at once. For each page that changed since its file's last
sync, the synced content is kept in memory, and a cut writes it back. The names of a directory are
kept twice, the present and the synced ones. A file is created empty: without a sync nothing of it
survives a cut except, perhaps, its name. Must not know FUSE.

Which sync makes names durable is a choice. ``ext4``: any sync commits all names, as the journal of
ext4 does, so a name may outlive the content of its file. ``posix``: a name is durable when its
directory was synced, which is all that POSIX promises.
"""

import enum
import errno
import os
import random
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PAGE: Final = 4096
ROOT: Final = 1


class Names(enum.StrEnum):
    """Which sync makes a directory's names durable."""

    EXT4 = "ext4"
    POSIX = "posix"


@dataclass
class Inode:
    """A file, directory or symbolic link."""

    number: int
    mode: int
    uid: int = 0
    gid: int = 0
    links: int = 1
    mtime_ns: int = field(default_factory=time.time_ns)
    target: bytes = b""
    """The target of a symbolic link."""
    entries: dict[bytes, int] = field(default_factory=dict)
    synced_entries: dict[bytes, int] = field(default_factory=dict)
    descriptor: int = -1
    """The descriptor of a file's backing file."""
    synced_size: int = 0
    replaced: dict[int, bytes] = field(default_factory=dict)
    """The synced content of pages that have changed since, by page number."""

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.target) if self.descriptor < 0 else os.fstat(self.descriptor).st_size


@dataclass
class Dropped:
    """What a cut lost."""

    pages: int = 0
    """The number of pages with unsynced changes, including appended ones."""
    names: int = 0
    """The number of names that were created, removed or changed since they were synced."""


class UnsyncedFiles:
    """The inodes of one file system.

    Args:
        backing: an empty directory for the content of the files.
        names: which sync makes names durable.
    """

    def __init__(self, backing: Path, names: Names) -> None:
        self._backing = backing
        self._names = names
        self._next = ROOT + 1
        self._renamed: set[int] = set()
        """Directories whose names have changed since they were synced."""
        self.inodes: dict[int, Inode] = {ROOT: Inode(ROOT, stat.S_IFDIR | 0o755, links=2)}

    def find(self, parent: int, name: bytes) -> Inode:
        """Return the inode of a name.

        Raises:
            OSError: ENOENT.
        """
        number = self.inodes[parent].entries.get(name)
        if number is None:
            raise OSError(errno.ENOENT, "no such name")
        return self.inodes[number]

    def create(self, parent: int, name: bytes, inode: Inode) -> Inode:
        """Give a new inode its number and its name.

        Raises:
            OSError: EEXIST.
        """
        entries = self._change(parent)
        if name in entries:
            raise OSError(errno.EEXIST, "the name exists")
        inode.number, self._next = self._next, self._next + 1
        if stat.S_ISREG(inode.mode):
            path = self._backing / str(inode.number)
            inode.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.inodes[inode.number] = inode
        entries[name] = inode.number
        return inode

    def link(self, number: int, parent: int, name: bytes) -> Inode:
        """Give an inode another name.

        Raises:
            OSError: EEXIST.
        """
        entries, inode = self._change(parent), self.inodes[number]
        if name in entries:
            raise OSError(errno.EEXIST, "the name exists")
        entries[name] = number
        inode.links += 1
        return inode

    def remove(self, parent: int, name: bytes) -> None:
        """Remove a name. The inode stays: it may be open, or a cut may restore its name.

        Raises:
            OSError: ENOENT, or ENOTEMPTY.
        """
        inode = self.find(parent, name)
        if inode.entries:
            raise OSError(errno.ENOTEMPTY, "the directory is not empty")
        del self._change(parent)[name]
        inode.links -= 2 if inode.is_directory else 1

    def rename(self, parent: int, name: bytes, new: tuple[int, bytes], *, replace: bool) -> None:
        """Rename; ``replace`` allows an existing name to be replaced.

        Raises:
            OSError: ENOENT, EEXIST or ENOTEMPTY.
        """
        moved, (new_parent, new_name) = self.find(parent, name), new
        entries = self._change(new_parent)
        if entries.get(new_name) == moved.number:
            return
        if new_name in entries:
            if not replace:
                raise OSError(errno.EEXIST, "the name exists")
            self.remove(new_parent, new_name)
        del self._change(parent)[name]
        entries[new_name] = moved.number

    def read(self, number: int, position: int, size: int) -> bytes:
        """Return the present content, synced or not."""
        return os.pread(self.inodes[number].descriptor, size, position)

    def write(self, number: int, position: int, data: bytes | memoryview) -> int:
        """Write, and keep the synced content that it replaces."""
        inode = self.inodes[number]
        self._keep(inode, position, position + len(data))
        inode.mtime_ns = time.time_ns()
        return os.pwrite(inode.descriptor, data, position)

    def truncate(self, number: int, size: int) -> None:
        """Set a file's size."""
        inode = self.inodes[number]
        self._keep(inode, size, inode.synced_size)
        os.truncate(inode.descriptor, size)

    def allocate(self, number: int, position: int, length: int) -> None:
        """Extend a file with zeros, as ``posix_fallocate`` does."""
        inode = self.inodes[number]
        if position + length > inode.size:
            self.truncate(number, position + length)

    def sync(self, number: int) -> None:
        """Make a file's content, or a directory's names, durable."""
        inode = self.inodes[number]
        inode.replaced.clear()
        if inode.descriptor >= 0:
            inode.synced_size = inode.size
        synced = self._renamed if self._names is Names.EXT4 else self._renamed & {number}
        for each in synced:
            self.inodes[each].synced_entries = dict(self.inodes[each].entries)
        self._renamed -= set(synced)

    def sync_all(self) -> None:
        """Make everything durable, as the kernel does by itself within half a minute."""
        for number in list(self.inodes):
            self.sync(number)

    def cut(self, seed: int | None = None) -> Dropped:
        """Return to what was synced.

        Args:
            seed: of a generator that decides for each unsynced page of a synced range whether it
                is kept, as on a disk that was being written; None: all are dropped.
        """
        chance = None if seed is None else random.Random(seed)
        dropped = Dropped()
        reachable = self._return_to_synced_names(dropped)
        for number, inode in list(self.inodes.items()):
            if number not in reachable:
                self._discard(inode)
            elif inode.descriptor >= 0:
                dropped.pages += _return_to_synced_content(inode, chance)
        return dropped

    def _change(self, directory: int) -> dict[bytes, int]:
        """Return the names of a directory for changing them, after noting the synced ones."""
        self._renamed.add(directory)
        return self.inodes[directory].entries

    def _return_to_synced_names(self, dropped: Dropped) -> set[int]:
        """Restore all synced names; return the inodes that have a name, including the root."""
        reachable, waiting = {ROOT}, [self.inodes[ROOT]]
        self._renamed.clear()
        for each in self.inodes.values():
            changed = each.entries.items() ^ each.synced_entries.items()
            dropped.names += len({name for name, _ in changed})
            each.links = 2 if each.is_directory else 0
        while waiting:
            directory = waiting.pop()
            directory.entries = dict(directory.synced_entries)
            for number in directory.entries.values():
                inode = self.inodes[number]
                if inode.is_directory:
                    waiting.append(inode)
                else:
                    inode.links += 1
                reachable.add(number)
        return reachable

    def _discard(self, inode: Inode) -> None:
        if inode.descriptor >= 0:
            os.close(inode.descriptor)
            (self._backing / str(inode.number)).unlink()
        del self.inodes[inode.number]

    @staticmethod
    def _keep(inode: Inode, start: int, stop: int) -> None:
        """Keep the synced content of the pages in a range that is about to change."""
        for page in range(start // PAGE, -(-min(stop, inode.synced_size) // PAGE)):
            if page not in inode.replaced:
                inode.replaced[page] = os.pread(inode.descriptor, PAGE, page * PAGE)


def _return_to_synced_content(inode: Inode, chance: random.Random | None) -> int:
    """Restore synced content; return the number of pages that lost changes."""
    beyond = max(0, -(-inode.size // PAGE) - -(-inode.synced_size // PAGE))
    lost = [n for n in sorted(inode.replaced) if chance is None or chance.random() < 0.5]
    os.truncate(inode.descriptor, inode.synced_size)
    for page in lost:
        position = page * PAGE
        content = inode.replaced[page][: inode.synced_size - position]
        os.pwrite(inode.descriptor, content, position)
    inode.replaced.clear()
    return beyond + len(lost)
