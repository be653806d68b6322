"""Touches free memory before a measurement, so that no system pays for another's first touch.

In a virtual machine a page that the guest never used, or gave back to its host, costs much more to
touch than one it holds (microseconds, not a fraction of one). Whoever is measured first would pay
for all. The host may take free pages back within seconds, so this is done before every measurement,
not once; what it cannot even out is the same for all systems.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
PROBE_MIB: Final = 256
AVAILABLE_SHARE: Final = 0.5


def _available_mib() -> int:
    with open("/proc/meminfo") as lines:  # noqa: PTH123 - a line of /proc, read as it comes
        found = next(line for line in lines if line.startswith("MemAvailable"))
    return int(found.split()[1]) >> 10


def touch_memory(mib: int) -> float:
    """Touches this much memory (at most half of what is available), frees it; seconds it took."""
    size = min(mib, int(_available_mib() * AVAILABLE_SHARE)) << 20
    if size <= 0:
        return 0.0
    started = time.perf_counter()
    with mmap.mmap(-1, size) as memory:
        memory[::PAGE_BYTES] = bytes(len(range(0, size, PAGE_BYTES)))
    return time.perf_counter() - started


def touch_cost() -> tuple[float, float]:
    """Milliseconds per MiB of touching memory as it is now, and of touching the same again."""
    first = touch_memory(PROBE_MIB)
    return first * 1e3 / PROBE_MIB, touch_memory(PROBE_MIB) * 1e3 / PROBE_MIB
