"""Resident memory of a process, told apart by what backs it, and sampled while something goes on.

Rules: reads `/proc` only. `anon` is memory of the process's own (heaps, stacks); `file` is page
cache that it has mapped, which the kernel takes back when it needs it; `total` is both.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SAMPLE_S: Final = 0.05


@dataclass(frozen=True)
class Rss:
    """Resident memory, MiB."""

    total: float
    anon: float
    file: float


def rss(pid: int) -> Rss:
    """Of one process, now."""
    text = Path(f"/proc/{pid}/status").read_text()
    pairs = [line.split(":") for line in text.splitlines() if line.startswith(("VmRSS", "Rss"))]
    kib = {name: int(rest.split()[0]) for name, rest in pairs}
    own = kib.get("RssAnon", 0) + kib.get("RssShmem", 0)
    return Rss(kib.get("VmRSS", 0) / 1024, own / 1024, kib.get("RssFile", 0) / 1024)


def children(pid: int) -> list[int]:
    """Direct children of a process, of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


@dataclass
class Samples:
    """The memory of a process over a while."""

    seen: list[Rss] = field(default_factory=list)

    @property
    def anon_median(self) -> float:
        """Median of the memory of its own, MiB."""
        return statistics.median(each.anon for each in self.seen)

    @property
    def anon_peak(self) -> float:
        """Peak of the memory of its own, MiB."""
        return max(each.anon for each in self.seen)

    @property
    def total_peak(self) -> float:
        """Peak of everything resident, mapped page cache included, MiB."""
        return max(each.total for each in self.seen)


@contextlib.contextmanager
def sampling(pid: int) -> Iterator[Samples]:
    """Samples the process every SAMPLE_S while the block runs, and once at its end."""
    samples, done = Samples(), threading.Event()

    def sample() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                samples.seen.append(rss(pid))
            done.wait(SAMPLE_S)

    thread = threading.Thread(target=sample, name="rss", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(OSError):
            samples.seen.append(rss(pid))
