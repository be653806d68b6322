"""Describes the machine of a result: CPU, kernel, file system, what a sync and fresh memory cost.

Rules: nothing here names the machine or a path on it; units are in the names.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.warmup import touch_cost

SYNC_SAMPLES = 300
PREALLOCATED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class SyncCost:
    """One write and fdatasync of `size_bytes`: over preallocated space, and growing a file."""

    size_bytes: int
    overwrite_p50_us: float
    overwrite_p99_us: float
    append_p50_us: float
    append_p99_us: float


@dataclass(frozen=True)
class Machine:
    """The facts about the machine that a reader needs to judge a result."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    file_system: str
    touch_first_ms: float
    """Per MiB of memory, touched as it was found."""
    touch_again_ms: float
    """Per MiB of memory, touched again at once."""
    load_average: float
    """Of the last minute, before the benchmark began: what others did to the machine."""
    sync: SyncCost
    group_sync: SyncCost | None = None
    """Of the records of all appenders at once: what the disk allows at best."""


def machine_of(values: dict[str, Any]) -> Machine:
    """The machine of stored results."""
    syncs = {name: SyncCost(**values[name]) for name in ("sync", "group_sync") if values.get(name)}
    return Machine(**{**values, **syncs})


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    """Type of the file system that holds `path`, for example ext4."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs_type = line.split()[:3]
        if path.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, fs_type
    return kind


def _time_syncs(path: Path, payload: bytes, *, preallocate: bool) -> list[float]:
    """Microseconds of each of SYNC_SAMPLES write-and-fdatasync pairs."""
    samples = []
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    fd = os.open(path, flags, 0o600)
    try:
        if preallocate:
            os.pwrite(fd, bytes(PREALLOCATED_BYTES), 0)
            os.fsync(fd)
        for number in range(SYNC_SAMPLES):
            start = time.perf_counter()
            os.pwrite(fd, payload, number * len(payload) % PREALLOCATED_BYTES)
            os.fdatasync(fd)
            samples.append((time.perf_counter() - start) * 1e6)
    finally:
        os.close(fd)
        path.unlink()
    return samples


def measure_sync(data_root: Path, size_bytes: int) -> SyncCost:
    """Measure one synced write on the file system of `data_root`, without any server."""
    data_root.mkdir(parents=True, exist_ok=True)
    path = data_root / f"sync-probe-{os.getpid()}"
    payload = os.urandom(size_bytes)
    overwrite = statistics.quantiles(_time_syncs(path, payload, preallocate=True), n=100)
    append = statistics.quantiles(_time_syncs(path, payload, preallocate=False), n=100)
    return SyncCost(size_bytes, overwrite[49], overwrite[98], append[49], append[98])


def describe(data_root: Path, size_bytes: int, group: int = 0) -> Machine:
    """Measures and describes this machine; ``group``: how many records a sync may cover."""
    load_average = os.getloadavg()[0]
    sync = measure_sync(data_root, size_bytes)
    group_sync = measure_sync(data_root, group * size_bytes) if group else None
    touch_first_ms, touch_again_ms = touch_cost()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=round(memory, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        file_system=_file_system(data_root),
        touch_first_ms=touch_first_ms,
        touch_again_ms=touch_again_ms,
        load_average=round(load_average, 1),
        sync=sync,
        group_sync=group_sync,
    )
