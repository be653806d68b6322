"""The preparation of a measurement: wait for a quiet moment, then touch free memory.

In a virtual machine a page that the guest never used, or gave back to its host, costs much more to
touch than one it holds (microseconds, not a fraction of one). Whoever is measured first would pay
for all. The host may take free pages back within seconds, so this is done before every measurement,
not once; what it cannot even out is the same for all systems.

Other work on the machine cannot be excluded either. Waiting for a quiet moment, for a bounded time,
spares a measurement what the one before left behind, such as writing back, and short bursts of
others.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
PROBE_MIB: Final = 256
AVAILABLE_SHARE: Final = 0.5
IDLE_SHARE: Final = 0.85
LOOK_S: Final = 0.3


def _available_mib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
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


def _idle_ticks() -> tuple[int, int]:
    """Idle ticks and all ticks of all cores since boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3], sum(ticks)


def settle(seconds_max: float) -> bool:
    """Waits until the machine is nearly idle, at most so long; whether it is."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        idle, total = _idle_ticks()
        time.sleep(LOOK_S)
        idle_after, total_after = _idle_ticks()
        if idle_after - idle >= IDLE_SHARE * (total_after - total):
            return True
    return False


@dataclass(frozen=True)
class Preparation:
    """Prepare a measurement; by default do nothing."""

    warm_mib: int = 0
    settle_s: float = 0.0

    def run(self, more_mib: int = 0) -> None:
        """Waits, then touches memory: `more_mib` for what the measurement itself will allocate."""
        settle(self.settle_s)
        touch_memory(self.warm_mib + more_mib)


NO_PREPARATION: Final = Preparation()
