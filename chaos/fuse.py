"""A FUSE server in the kernel's own protocol, over the files of `chaos.unsynced`.

Rules: one thread answers requests one after the other. Requests that the kernel can handle itself
(locks, permissions, extended attributes, seeking for holes) are answered with ENOSYS, after which
it does not send them again. The kernel caches no writes, except those of shared mappings: a write
arrives here before its system call returns. Our own threads must never touch the mounted files.

Run as a program (`python -m chaos.fuse BACKING MOUNT NAMES`), it reads commands from stdin, one a
line: ``sync`` makes everything durable; ``cut`` or ``cut SEED`` drops what is unsynced, mounts
again, and prints what was lost. The end of stdin unmounts. Layouts: include/uapi/linux/fuse.h,
protocol 7.31.
"""

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from chaos.unsynced import PAGE, Inode, Names, UnsyncedFiles

DEVICE: Final = "/dev/fuse"
WRITE_MAX: Final = 128 << 10
REQUEST_MAX: Final = WRITE_MAX + PAGE
CAPACITY: Final = 1 << 24
"""How many pages the file system claims to have."""
FOREVER_S: Final = 1 << 30
"""How long the kernel may cache names and attributes: nobody else changes them."""
KEEP_CACHE: Final = 2
BIG_WRITES: Final = 1 << 5
MODE, UID, GID, SIZE, MTIME, MTIME_NOW = 1, 2, 4, 8, 32, 256  # which attributes SETATTR sets
NO_REPLACE: Final = 1
KEEP_SIZE: Final = 1
MNT_DETACH: Final = 2
MS_NOSUID_NODEV: Final = 2 | 4

REQUEST: Final = struct.Struct("<IIQQIIIHH")
REPLY: Final = struct.Struct("<IiQ")
ATTRIBUTES: Final = struct.Struct("<6Q10I")
ENTRY: Final = struct.Struct("<4Q2I")
ATTR_REPLY: Final = struct.Struct("<QII")
OPEN_REPLY: Final = struct.Struct("<QIi")
INIT_REPLY: Final = struct.Struct("<4I2H2I2H8I")
SETATTR: Final = struct.Struct("<II6Q8I")
READ: Final = struct.Struct("<QQIIQII")
ALLOCATE: Final = struct.Struct("<QQQII")
STATFS: Final = struct.Struct("<5Q10I")
DIRENT: Final = struct.Struct("<QQII")

_libc = ctypes.CDLL(None, use_errno=True)
Handler = Callable[[int, memoryview], bytes]


def _call(function: str, *arguments: object) -> None:
    """Call the C library.

    Raises:
        OSError: the call failed.
    """
    if getattr(_libc, function)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def mount(path: Path) -> int:
    """Mount a FUSE file system; return the descriptor of its requests.

    Raises:
        OSError: FUSE or the permission to mount is missing.
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    try:
        _call(
            "mount",
            b"power-cut",
            os.fsencode(path),
            b"fuse",
            ctypes.c_ulong(MS_NOSUID_NODEV),
            options.encode(),
        )
    except OSError:
        os.close(device)
        raise
    return device


def unmount(path: Path) -> None:
    """Unmount, even while files are open.

    Raises:
        OSError: nothing is mounted there.
    """
    _call("umount2", os.fsencode(path), MNT_DETACH)


def _name(body: memoryview, skipped: int = 0) -> bytes:
    """Return a name that ends with a zero byte."""
    return bytes(body[skipped:]).partition(b"\0")[0]


def _left_to_kernel(_node: int, _body: memoryview) -> bytes:
    raise OSError(errno.ENOSYS, "the kernel does this without us")


class FuseServer:
    """Answers the kernel's requests.

    Args:
        files: the files.
    """

    def __init__(self, files: UnsyncedFiles) -> None:
        self._files = files
        self._listings: dict[int, list[bytes]] = {}
        """The names of each open directory at the time it was opened."""
        self._next_listing = 1
        self._handlers: dict[int, Handler] = {
            1: lambda node, body: self._entry(files.find(node, _name(body))),
            3: lambda node, _: self._attributes_reply(node),
            4: self._setattr,
            5: lambda node, _: files.inodes[node].target,
            6: self._symlink,
            8: self._make_node,
            9: self._make_directory,
            10: self._remove,
            11: self._remove,
            12: lambda node, body: self._rename(node, body, 8),
            13: lambda node, body: self._entry(
                files.link(struct.unpack_from("<Q", body)[0], node, _name(body, 8))
            ),
            14: lambda _node, _body: OPEN_REPLY.pack(0, KEEP_CACHE, 0),
            15: self._read,
            16: self._write,
            17: lambda _node, _body: self._statfs(),
            18: lambda _node, _body: b"",
            20: self._sync,
            26: self._init,
            27: self._open_directory,
            28: self._read_directory,
            29: self._close_directory,
            30: self._sync,
            35: self._create,
            43: self._allocate,
            45: lambda node, body: self._rename(node, body, 16),
        }

    def answer(self, request: memoryview) -> bytes | None:
        """Return the reply to a request; None if it has none."""
        _, opcode, unique, node, *_ = REQUEST.unpack_from(request)
        if opcode in (2, 36, 42):  # two kinds of FORGET: inodes stay; INTERRUPT: nothing waits
            return None
        error, body = 0, b""
        try:
            body = self._handlers.get(opcode, _left_to_kernel)(node, request[REQUEST.size :])
        except OSError as failed:
            error = failed.errno or errno.EIO
        return REPLY.pack(REPLY.size + len(body), -error, unique) + body

    def _attributes(self, inode: Inode) -> bytes:
        seconds, nanoseconds = divmod(inode.mtime_ns, 10**9)
        return ATTRIBUTES.pack(
            inode.number,
            inode.size,
            -(-inode.size // 512),
            *(seconds,) * 3,
            *(nanoseconds,) * 3,
            inode.mode,
            max(inode.links, 0),
            inode.uid,
            inode.gid,
            0,
            PAGE,
            0,
        )

    def _attributes_reply(self, node: int) -> bytes:
        return ATTR_REPLY.pack(FOREVER_S, 0, 0) + self._attributes(self._files.inodes[node])

    def _entry(self, inode: Inode) -> bytes:
        return ENTRY.pack(inode.number, 0, FOREVER_S, FOREVER_S, 0, 0) + self._attributes(inode)

    def _init(self, _node: int, body: memoryview) -> bytes:
        *_, readahead, flags = struct.unpack_from("<4I", body)
        flags &= BIG_WRITES
        return INIT_REPLY.pack(7, 31, readahead, flags, 16, 12, WRITE_MAX, 1, 0, 0, *(0,) * 8)

    def _setattr(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, _, mode, _, uid, gid, _ = (
            SETATTR.unpack_from(body)
        )
        inode = self._files.inodes[node]
        if valid & SIZE:
            self._files.truncate(node, size)
        if valid & MODE:
            inode.mode = mode
        if valid & UID:
            inode.uid = uid
        if valid & GID:
            inode.gid = gid
        if valid & MTIME_NOW:
            inode.mtime_ns = time.time_ns()
        elif valid & MTIME:
            inode.mtime_ns = mtime * 10**9 + mtime_ns
        return self._attributes_reply(node)

    def _make(self, node: int, name: bytes, mode: int) -> bytes:
        links = 2 if stat.S_ISDIR(mode) else 1
        return self._entry(self._files.create(node, name, Inode(0, mode, links=links)))

    def _make_node(self, node: int, body: memoryview) -> bytes:
        mode = struct.unpack_from("<I", body)[0]
        if not stat.S_ISREG(mode):
            raise OSError(errno.EPERM, "no devices, pipes or sockets")
        return self._make(node, _name(body, 16), mode)

    def _make_directory(self, node: int, body: memoryview) -> bytes:
        return self._make(node, _name(body, 8), stat.S_IFDIR | struct.unpack_from("<I", body)[0])

    def _create(self, node: int, body: memoryview) -> bytes:
        mode = struct.unpack_from("<II", body)[1]
        return self._make(node, _name(body, 16), mode) + OPEN_REPLY.pack(0, KEEP_CACHE, 0)

    def _symlink(self, node: int, body: memoryview) -> bytes:
        name, target, *_ = bytes(body).split(b"\0")
        made = Inode(0, stat.S_IFLNK | 0o777, target=target)
        return self._entry(self._files.create(node, name, made))

    def _remove(self, node: int, body: memoryview) -> bytes:
        self._files.remove(node, _name(body))
        return b""

    def _rename(self, node: int, body: memoryview, skipped: int) -> bytes:
        new_parent = struct.unpack_from("<Q", body)[0]
        flags = struct.unpack_from("<I", body, 8)[0] if skipped == 16 else 0
        if flags & ~NO_REPLACE:
            raise OSError(errno.EINVAL, "names are not exchanged")
        name, new_name, *_ = bytes(body[skipped:]).split(b"\0")
        self._files.rename(node, name, (new_parent, new_name), replace=not flags)
        return b""

    def _read(self, node: int, body: memoryview) -> bytes:
        _, position, size, *_ = READ.unpack_from(body)
        return self._files.read(node, position, size)

    def _write(self, node: int, body: memoryview) -> bytes:
        _, position, size, _, _, flags, _ = READ.unpack_from(body)
        written = self._files.write(node, position, body[READ.size : READ.size + size])
        if flags & (os.O_DSYNC | os.O_SYNC):
            self._files.sync(node)
        return struct.pack("<II", written, 0)

    def _sync(self, node: int, _body: memoryview) -> bytes:
        self._files.sync(node)
        return b""

    def _allocate(self, node: int, body: memoryview) -> bytes:
        _, position, length, mode, _ = ALLOCATE.unpack_from(body)
        if mode & ~KEEP_SIZE:
            raise OSError(errno.EOPNOTSUPP, "no holes are punched")
        if not mode:
            self._files.allocate(node, position, length)
        return b""

    @staticmethod
    def _statfs() -> bytes:
        files = 1 << 20
        counts = (CAPACITY, CAPACITY // 2, CAPACITY // 2, files, files // 2)
        return STATFS.pack(*counts, PAGE, 255, PAGE, *(0,) * 7)

    def _open_directory(self, node: int, _body: memoryview) -> bytes:
        handle, self._next_listing = self._next_listing, self._next_listing + 1
        self._listings[handle] = [b".", b"..", *self._files.inodes[node].entries]
        return OPEN_REPLY.pack(handle, 0, 0)

    def _read_directory(self, node: int, body: memoryview) -> bytes:
        handle, position, size, *_ = READ.unpack_from(body)
        entries, found = self._files.inodes[node].entries, b""
        for number, name in enumerate(self._listings[handle][position:], position + 1):
            inode = self._files.inodes[entries.get(name, node)]
            entry = DIRENT.pack(inode.number, number, len(name), inode.mode >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    def _close_directory(self, _node: int, body: memoryview) -> bytes:
        del self._listings[struct.unpack_from("<Q", body)[0]]
        return b""


class _Mounted:
    """The mounted file system: serves requests until it is cut off or stdin ends."""

    def __init__(self, files: UnsyncedFiles, path: Path) -> None:
        self._files = files
        self._path = path
        self._request = bytearray(REQUEST_MAX)
        self._server = FuseServer(files)
        self._device = mount(path)

    def close(self) -> None:
        """Close the connection, which aborts requests, before unmounting writes mappings back."""
        os.close(self._device)
        unmount(self._path)

    def serve(self, commands: Iterator[list[str]]) -> None:
        """Answer requests and commands until these end."""
        poll = select.poll()
        poll.register(sys.stdin, select.POLLIN)
        poll.register(self._device, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._device in ready:
                self._serve_one()
            elif (words := next(commands, None)) is None:
                return
            elif words == ["sync"]:
                self._files.sync_all()
                print("{}", flush=True)
            else:
                poll.unregister(self._device)
                self._cut(words)
                poll.register(self._device, select.POLLIN)

    def _serve_one(self) -> None:
        try:
            size = os.readv(self._device, [self._request])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the request was withdrawn
                return
            raise
        reply = self._server.answer(memoryview(self._request)[:size])
        if reply is not None:
            with contextlib.suppress(FileNotFoundError):  # the request was interrupted meanwhile
                os.write(self._device, reply)

    def _cut(self, words: list[str]) -> None:
        self.close()
        dropped = self._files.cut(int(words[1]) if len(words) > 1 else None)
        self._server, self._device = FuseServer(self._files), mount(self._path)
        print(json.dumps(dataclasses.asdict(dropped)), flush=True)


def main(backing: str, path: str, names: str) -> None:
    """Serve until stdin ends."""
    mounted = _Mounted(UnsyncedFiles(Path(backing), Names(names)), Path(path))
    print("{}", flush=True)
    try:
        mounted.serve(line.split() for line in iter(sys.stdin.readline, ""))
    finally:
        mounted.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
