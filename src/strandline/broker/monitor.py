"""A broker's record of its own load: rates of the last minute, samples of the last hour, events.

Rules: sampled once a second at the cost of a few additions. The history of the last hour has a
sample every ten seconds: 361 samples in under 200 KiB. Sampling runs on the loop; reading is safe
on any thread.
"""

import asyncio
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from strandline.api.monitoring import ClusterEvent, HistorySample
from strandline.broker.events import EventLog
from strandline.broker.rates import RateMeter
from strandline.broker.write_path.admission import Admission
from strandline.clock import Clock
from strandline.core.metadata.image import MetadataImage
from strandline.telemetry import Telemetry
from strandline.types import BrokerId

SAMPLE_INTERVAL_S = 1.0
HISTORY_EVERY = 10
"""The history gets every tenth of the samples that are taken once a second."""
HISTORY_SAMPLES_MAX = 361
MEMORY_FILE = Path("/proc/self/statm")
PAGE_BYTES = 4096


class Monitored(Protocol):
    """The parts of a broker that are sampled."""

    telemetry: Telemetry
    clock: Clock
    admission: Admission[Any]

    @property
    def image(self) -> MetadataImage:
        """The newest metadata."""
        ...

    @property
    def controller(self) -> BrokerId | None:
        """The controller; None while there is none."""
        ...


class Counters(NamedTuple):
    """The counters at one moment."""

    at_ns: int
    at_ms: float
    records: int
    size_bytes: int
    read_records: int
    read_bytes: int
    syncs: int
    sync_s: float
    cpu_s: float
    memory_bytes: int
    pending_bytes: int
    lag_records: int


class BrokerMonitor:
    """The sampler of one broker.

    Args:
        broker: the broker to sample; all its parts exist.
    """

    def __init__(self, broker: Monitored) -> None:
        self._broker = broker
        self._started_ms = broker.clock.monotonic_ms()
        self._meter = RateMeter()
        self._events = EventLog()
        self._history: deque[Counters] = deque(maxlen=HISTORY_SAMPLES_MAX)

    @property
    def meter(self) -> RateMeter:
        """The rates of the last minute."""
        return self._meter

    @property
    def up_s(self) -> float:
        """Return for how long the broker has run; any thread."""
        return (self._broker.clock.monotonic_ms() - self._started_ms) / 1e3

    async def run(self) -> None:
        """Sample until cancelled."""
        count = 0
        while True:
            self.sample(is_of_history=count % HISTORY_EVERY == 0)
            count += 1
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def sample(self, *, is_of_history: bool) -> None:
        """Take one sample, also for the history of the last hour if asked; loop thread."""
        broker = self._broker
        now_ns = broker.clock.now_ns()
        self._meter.sample(broker.telemetry, broker.clock.monotonic_ms())
        self._events.observe_image(broker.image, broker.controller, now_ns=now_ns)
        if is_of_history:
            rejects = broker.admission.rejects
            self._events.observe_counters(broker.telemetry, rejects, now_ns=now_ns)
            self._history.append(self._counters(now_ns))

    def events(self) -> list[ClusterEvent]:
        """Return the newest events, oldest first; any thread."""
        return self._events.events()

    def history(self) -> list[HistorySample]:
        """Return the samples of the last hour, oldest first; any thread."""
        counters = list(self._history)
        return [_interval(before, now) for before, now in pairwise(counters)]

    def _counters(self, now_ns: int) -> Counters:
        telemetry = self._broker.telemetry
        return Counters(
            at_ns=now_ns,
            at_ms=self._broker.clock.monotonic_ms(),
            records=telemetry.records_appended,
            size_bytes=telemetry.bytes_appended,
            read_records=telemetry.read_records,
            read_bytes=telemetry.read_bytes,
            syncs=telemetry.sync_seconds.count,
            sync_s=telemetry.sync_seconds.total,
            cpu_s=time.process_time(),
            memory_bytes=resident_bytes(),
            pending_bytes=self._broker.admission.pending_bytes,
            lag_records=sum(telemetry.replica_lag_records.values()),
        )


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not tell."""
    try:
        return int(MEMORY_FILE.read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _interval(before: Counters, now: Counters) -> HistorySample:
    seconds = max((now.at_ms - before.at_ms) / 1e3, 1e-3)
    syncs = now.syncs - before.syncs
    return HistorySample(
        at_ns=now.at_ns,
        records_per_s=(now.records - before.records) / seconds,
        bytes_per_s=(now.size_bytes - before.size_bytes) / seconds,
        read_records_per_s=(now.read_records - before.read_records) / seconds,
        read_bytes_per_s=(now.read_bytes - before.read_bytes) / seconds,
        syncs_per_s=syncs / seconds,
        sync_ms=(now.sync_s - before.sync_s) / syncs * 1e3 if syncs else 0.0,
        cpu_share=(now.cpu_s - before.cpu_s) / seconds,
        memory_bytes=now.memory_bytes,
        pending_bytes=now.pending_bytes,
        lag_records=now.lag_records,
    )
