"""Allocator settings that keep freed memory in the process.

Reading a stream allocates and frees megabytes per batch. By default glibc returns most of that to
the system, so every batch causes page faults again, which is most expensive on a virtual machine
(docs/adr/0022 has figures). Rules: only thresholds are set, and the process keeps at most
``KEPT_BYTES_MAX`` more than by default. Thresholds set by the environment stay, and allocators
other than glibc's are not touched.
"""

import ctypes
import functools
import os
import sys
from typing import Final

KEPT_BYTES_MAX: Final = 64 << 20
"""How much free memory at the top of a heap is kept."""
MAPPED_BYTES_MIN: Final = 32 << 20
"""Allocations of this size or more get a memory map of their own; the largest threshold that
every glibc accepts."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Set the thresholds, once per process; return whether they were set."""
    if sys.platform != "linux" or any(name in os.environ for name in _VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)) and bool(
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    )
