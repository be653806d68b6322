"""The page cache: takes files out of it, proves that they are out, and times `cat` on them.

Rules: files are synced first, since dirty pages cannot be dropped; pages that a process has mapped
stay, so nothing may have them mapped; `evict` fails rather than let a warm read pass for a cold
one. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

RESIDENT_MAX: Final = 0.01
ATTEMPTS: Final = 5
PAUSE_S: Final = 0.2


class EvictError(RuntimeError):
    """Files stay in the page cache."""


def resident_share(path: Path) -> float:
    """The share of a file's pages that are in the page cache (`mincore`)."""
    size = path.stat().st_size
    if not size:
        return 0.0
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    # A private writable mapping, because ctypes gives no address of a read-only one.
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping,
    ):
        start = ctypes.c_ubyte.from_buffer(mapping)
        address = ctypes.c_void_p(ctypes.addressof(start))
        failed = libc.mincore(address, ctypes.c_size_t(size), flags)
        del start, address  # or the mapping cannot be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return sum(flag & 1 for flag in flags) / pages


def _drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def evict(paths: Sequence[Path]) -> float:
    """Drops files from the page cache; the share that is still there, at most RESIDENT_MAX.

    Raises:
        EvictError: more than that stays.
    """
    total = sum(path.stat().st_size for path in paths)
    share = 1.0
    for _ in range(ATTEMPTS):
        for path in paths:
            _drop(path)
        share = sum(resident_share(path) * path.stat().st_size for path in paths) / max(1, total)
        if share <= RESIDENT_MAX:
            return share
        time.sleep(PAUSE_S)
    raise EvictError(f"{share:.0%} of {len(paths)} files stay in the page cache")


def cat_seconds(paths: Iterable[Path]) -> float:
    """Seconds that `cat FILES > /dev/null` takes."""
    cat = shutil.which("cat") or "cat"
    started = time.perf_counter()
    subprocess.run([cat, *map(str, paths)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def size_bytes(paths: Iterable[Path]) -> int:
    """Bytes of the files, by their length; one that vanishes counts nothing."""
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
