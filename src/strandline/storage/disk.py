"""The only module that calls the file system, so that tests can inject faults and crashes.

Rules: a write is complete or raises. Every ``OSError`` is translated: no space (``ENOSPC``,
``EDQUOT``) to ``DiskFullError``, out of descriptors or memory to ``UnavailableError``, anything
else to ``LogPoisonedError``, because after a failed write or sync the contents of the disk are
unknown. Must not know what the bytes mean.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from strandline.errors import DiskFullError, LogPoisonedError, StrandlineError, UnavailableError
from strandline.storage.descriptors import STORAGE_DESCRIPTORS, current_shares

BUFFERS_MAX = 1024
"""``IOV_MAX`` of Linux: buffers in one gathered write."""
ZEROS = bytes(1 << 20)
EMPTIED_BYTES_MIN = 1 << 20
"""Smaller files are removed by one call."""
PIECE_BYTES = 64 << 20

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The system's errors for lack of space."""
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

SYNC_FILE_RANGE_WRITE = 2
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""The flag for reads that do not wait; only Linux has it."""
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

Bytes = bytes | bytearray | memoryview

_maps: dict[weakref.ref[mmap.mmap], int] = {}
"""The memory maps of this process, and the inode of each."""


def _forget_map(reference: weakref.ref[mmap.mmap]) -> None:
    _maps.pop(reference, None)
    STORAGE_DESCRIPTORS.note_closed()


def translated(error: OSError, doing: str) -> UnavailableError:
    """Return our error for the system's ``error`` while ``doing`` something."""
    if error.errno in FULL:
        return DiskFullError(f"no space left while {doing}; free some and retry")
    if error.errno == errno.EMFILE:
        limit = current_shares().limit
        return UnavailableError(
            f"{error.strerror} while {doing}: {limit} are allowed; raise that with 'ulimit -n' "
            "(systemd: LimitNOFILE) and start again"
        )
    if error.errno in _SCARCE:
        return UnavailableError(f"{error.strerror} while {doing}; raise the limit and retry")
    return LogPoisonedError(f"{error.strerror} while {doing}; reopen the log to verify it")


def failed_sync(error: OSError, doing: str) -> LogPoisonedError:
    """Return our error for a sync that failed, for any reason.

    It must not be retried, even for lack of space: the system may have dropped the pages that it
    could not write, and a second sync would succeed (known as fsyncgate; LWN 752063).
    """
    reason = "no space left" if error.errno in FULL else error.strerror
    return LogPoisonedError(f"{reason} while {doing}; reopen the log to verify it")


class Disk:
    """The machine's file system. File descriptors are plain ints; paths are only names.

    Raises:
        DiskFullError: no space, from any method that writes or creates.
        UnavailableError: too many open files or no memory.
        LogPoisonedError: any other failure, from any method, and any failure of ``fdatasync``
            (but not of ``sync_directory``: see there).
    """

    syncs_plainly: ClassVar[bool] = True
    """Whether a sync is only the system call, so that a child process may make it."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Open a file and return its descriptor; ``create`` creates it if missing."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        try:
            return STORAGE_DESCRIPTORS.open(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise translated(error, f"opening {path}") from error

    def close(self, fd: int) -> None:
        """Close a descriptor; what it wrote may still be unsynced."""
        with contextlib.suppress(OSError):  # only `fdatasync` reports failed writes
            os.close(fd)

    def inode(self, fd: int) -> int:
        """Return the inode number of the open file."""
        try:
            return os.fstat(fd).st_ino
        except OSError as error:
            raise translated(error, "looking at a file") from error

    def size(self, fd: int) -> int:
        """Return the length of the open file in bytes."""
        try:
            return os.fstat(fd).st_size
        except OSError as error:
            raise translated(error, "asking for a file's size") from error

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes from ``position``; fewer only at the end of the file."""
        try:
            data = os.pread(fd, length, position)
            if len(data) == length or not data:
                return data
            chunks = [data]
            missing = length - len(data)
            while missing and (data := os.pread(fd, missing, position + length - missing)):
                chunks.append(data)
                missing -= len(data)
        except OSError as error:
            raise translated(error, "reading") from error
        return b"".join(chunks)

    def is_cached(self, fd: int, length: int, position: int) -> bool:
        """Return whether a range is in the page cache; False where the system does not tell."""
        if _NO_WAIT is None:
            return False
        try:
            return os.preadv(fd, [bytearray(length)], position, _NO_WAIT) == length
        except OSError:
            return False

    def pwrite(self, fd: int, data: Bytes, position: int) -> None:
        """Write all of ``data`` at ``position``; not synced."""
        try:
            written = os.pwrite(fd, data, position)
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], position + written)
        except OSError as error:
            raise translated(error, "writing") from error

    def pwritev(self, fd: int, buffers: Sequence[Bytes], position: int) -> None:
        """Write ``buffers`` one after another from ``position``; not synced.

        One system call unless there are more than ``BUFFERS_MAX`` buffers or the write is short.
        """
        if len(buffers) > BUFFERS_MAX:
            head = list(buffers[: BUFFERS_MAX - 1])
            buffers = [*head, b"".join(buffers[BUFFERS_MAX - 1 :])]
        total = sum(map(len, buffers))
        try:
            written = os.pwritev(fd, buffers, position)
        except OSError as error:
            raise translated(error, "writing") from error
        if written < total:
            rest = memoryview(b"".join(buffers))[written:]
            self.pwrite(fd, rest, position + written)

    def truncate(self, fd: int, length: int) -> None:
        """Truncate or extend the file to ``length`` bytes."""
        try:
            os.ftruncate(fd, length)
        except OSError as error:
            raise translated(error, "truncating") from error

    def fdatasync(self, fd: int) -> None:
        """Make all writes to the file, through any descriptor, survive a power loss."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise failed_sync(error, "syncing") from error

    def sync_fresh(self, fd: int) -> None:
        """Sync a new file that is discarded if this fails, so that another one may be tried.

        A failure here does not poison a log.
        """
        try:
            self.fdatasync(fd)
        except LogPoisonedError as error:
            if isinstance(error.__cause__, OSError):
                raise translated(error.__cause__, "syncing") from error.__cause__
            raise

    def write_back(self, fd: int, position: int, length: int) -> None:
        """Start writing a part of a file to the disk, where the system supports that.

        It makes nothing durable. A failure is reported by the next ``fdatasync``: on Linux, a
        range that is not waited for consumes no error (fs/sync.c).
        """
        if _sync_file_range is not None:
            _sync_file_range(fd, position, length, SYNC_FILE_RANGE_WRITE)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory survive a power loss; may be retried if there is no space.

        Unlike a file's pages, names that could not be written are never considered written: ext4,
        XFS and Btrfs keep them in the transaction that the next sync commits, or stop writing
        altogether, and then that sync fails, too. Reopening would verify nothing: the system does
        not read a cached directory again.
        """
        fd = self.open(path)
        try:
            os.fsync(fd)
        except OSError as error:
            raise translated(error, f"syncing directory {path}") from error
        finally:
            self.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename ``source`` to ``target``, replacing it; not synced."""
        try:
            source.rename(target)
        except OSError as error:
            raise translated(error, f"renaming {source}") from error

    def unlink(self, path: Path) -> None:
        """Remove a name if it exists; not synced. Open descriptors and maps stay valid."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise translated(error, f"removing {path}") from error

    def remove_large(self, path: Path) -> None:
        """Remove a file that may be large, if it exists; its space is freed piece by piece.

        So other syncs can run while a file system frees gigabytes, and the space is freed even if
        another process has the file open (it finds the file shorter). A file that is mapped in
        this process is not shortened, since access to the map would kill the process. No thread
        may map it from now on.
        """
        try:
            size = path.stat().st_size
        except OSError:
            size = 0  # remove it like a small file, which reports the error
        if size < EMPTIED_BYTES_MIN:
            self.unlink(path)
            return
        fd = self.open(path, write=True)
        try:
            self.unlink(path)
            found = os.fstat(fd)
            # A file with another name, such as a hard link in a backup, must keep its contents.
            if not (found.st_nlink or found.st_ino in tuple(_maps.values())):
                for length in range(size - size % PIECE_BYTES, 0, -PIECE_BYTES):
                    self.truncate(fd, length)
                self.truncate(fd, 0)
        except OSError as error:
            raise translated(error, f"removing {path}") from error
        finally:
            self.close(fd)

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, durably; no error if it exists."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        try:
            path.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise translated(error, f"creating {path}") from error
        self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory if it exists; not synced."""
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise translated(error, f"removing {path}") from error

    def exists(self, path: Path) -> bool:
        """Whether the name exists."""
        return path.exists()

    def listing(self, path: Path) -> dict[str, int]:
        """Return name and size in bytes of each plain file in a directory, which may be missing."""
        try:
            with STORAGE_DESCRIPTORS.open(lambda: os.scandir(path)) as entries:
                return {e.name: e.stat().st_size for e in entries if e.is_file()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise translated(error, f"listing {path}") from error

    def read_bytes(self, path: Path) -> bytes | None:
        """Return the contents of a small file, or None if it does not exist."""
        try:
            return STORAGE_DESCRIPTORS.open(path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise translated(error, f"reading {path}") from error

    def write_whole(self, path: Path, data: Bytes) -> None:
        """Replace the contents of a small file; neither atomic nor synced.

        It is truncated after the write: ext4 treats a file that is emptied and rewritten as a
        replacement that must not be lost, and flushes it when it is closed.
        """
        fd = self.open(path, write=True, create=True)
        try:
            self.pwrite(fd, data, 0)
            self.truncate(fd, len(data))
        finally:
            self.close(fd)

    def write_atomically(self, path: Path, data: Bytes) -> None:
        """Replace a small file so that a crash leaves either the old or the new contents.

        On return the new contents are durable.
        """
        fresh = path.with_name(path.name + ".new")
        self.write_durably(fresh, data)
        self.rename(fresh, path)
        self.sync_directory(path.parent)

    def write_durably(self, path: Path, data: Bytes) -> None:
        """Create a file whose contents are durable, though not its name.

        If that fails, the file does not exist.
        """
        fd = self.open(path, write=True, create=True)
        try:
            self.truncate(fd, 0)
            self.pwrite(fd, data, 0)
            self.sync_fresh(fd)
        except StrandlineError:
            self.unlink(path)
            raise
        finally:
            self.close(fd)

    def fill_with_zeros(self, fd: int, length: int) -> None:
        """Write zeros to the first ``length`` bytes and sync: later syncs then need no metadata.

        Reserving space alone is not enough: ext4 would still convert extents at every sync.
        """
        for position in range(0, length, len(ZEROS)):
            self.pwrite(fd, ZEROS[: length - position], position)
        self.sync_fresh(fd)

    def map(self, fd: int, length: int) -> mmap.mmap:
        """Map the first ``length`` bytes for reading; the map outlives the descriptor."""
        try:
            inode = os.fstat(fd).st_ino
            mapped = STORAGE_DESCRIPTORS.open(
                lambda: mmap.mmap(fd, length, access=mmap.ACCESS_READ)
            )
        except (OSError, ValueError) as error:
            reason = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            raise translated(reason, "mapping a file") from error
        _maps[weakref.ref(mapped, _forget_map)] = inode
        STORAGE_DESCRIPTORS.note_opened()
        return mapped

    def will_need(self, fd: int, position: int, length: int) -> None:
        """Ask the system to start reading a range of a file.

        The descriptor is used, although readers have a map: the call allocates memory for the
        whole range before it returns, and Python's ``mmap.madvise`` would block all other threads.
        """
        with contextlib.suppress(OSError):  # not every file system supports it
            os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)

    def drop_cache(self, fd: int) -> None:
        """Drop the file's clean pages from the cache.

        That frees memory. After a failed sync it is needed because the cache may show bytes that
        never reached the disk.
        """
        with contextlib.suppress(OSError):  # not every file system supports it
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that this process may still write on the file system of ``path``."""
        try:
            state = os.statvfs(path)
        except OSError as error:
            raise translated(error, f"looking at the file system of {path}") from error
        return state.f_bavail * state.f_frsize

    def descriptors_left(self) -> int:
        """Return how many more files the storage may open."""
        limit = current_shares().limit
        try:
            return limit - len(STORAGE_DESCRIPTORS.open(lambda: os.listdir("/dev/fd")))  # noqa: PTH208  in one go
        except OSError as error:
            return 0 if error.errno in _SCARCE else limit

    def entropy(self, length: int) -> bytes:
        """Return unpredictable bytes, for marks that no stored record can forge."""
        return os.urandom(length)


class OpenFile:
    """A descriptor that is closed when its last user releases it."""

    __slots__ = ("_disk", "fd", "path")

    def __init__(
        self, path: Path, *, disk: Disk, write: bool = False, create: bool = False
    ) -> None:
        self.fd = -1
        self._disk = disk
        self.path = path
        self.fd = disk.open(path, write=write, create=create)
        STORAGE_DESCRIPTORS.note_opened()

    def __del__(self) -> None:
        if self.fd >= 0:
            self._disk.close(self.fd)
            STORAGE_DESCRIPTORS.note_closed()
