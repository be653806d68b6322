"""What the pages need to know of a broker, and a snapshot of it as plain values.

Rules: the protocols name the least that will do, so tests need no broker. A snapshot may be taken
on any thread: the list of streams is the broker's own copy, and offsets are safe to read anywhere.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from strandline.clock import Clock
from strandline.config import BrokerConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.telemetry import GroupSample, PartitionSample, Telemetry
from strandline.types import PartitionName


class PartitionView(Protocol):
    """A partition, as far as the pages care."""

    @property
    def name(self) -> PartitionName:
        """Its stream and number."""
        ...

    @property
    def log_start_offset(self) -> int:
        """First offset kept."""
        ...

    @property
    def high_watermark(self) -> int:
        """First offset readers do not see yet."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        ...

    @property
    def hidden_offsets(self) -> int:
        """Offsets that readers can see nothing at."""
        ...

    @property
    def remote_error(self) -> Exception | None:
        """Why it cannot be read here, if other brokers alone have copies."""
        ...

    def stored_ns(self, offset: int) -> int | None:
        """About when the record at an offset was stored; None if nothing is to be read there."""
        ...


class StreamView(Protocol):
    """A stream, as far as the pages care."""

    @property
    def config(self) -> StreamConfig:
        """What it is."""
        ...

    @property
    def partitions(self) -> Sequence[PartitionView]:
        """Its partitions, by number."""
        ...

    @property
    def created_ns(self) -> int:
        """Unix time of its creation, nanoseconds."""
        ...


class BrokerView(Protocol):
    """A broker, as far as the pages care."""

    @property
    def config(self) -> BrokerConfig:
        """What it was told at start."""
        ...

    @property
    def clock(self) -> Clock:
        """Where it gets the time from."""
        ...

    @property
    def image(self) -> MetadataImage:
        """Its metadata as it is now."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether the rules and tokens of the metadata may still be acted upon."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Its figures."""
        ...

    @property
    def why_not_ready(self) -> str:
        """Why records cannot be stored and read there now; empty: they can."""
        ...

    def refresh_telemetry(self) -> None:
        """Bring figures up to date that are only looked at; loop thread."""
        ...

    def streams(self) -> Sequence[StreamView]:
        """Its streams; loop thread."""
        ...

    def group_positions(self) -> Sequence[GroupSample]:
        """Where the groups stand that it coordinates, without lags; loop thread."""
        ...


class PartitionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One partition in ``/api/streams``."""

    partition: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    hidden_offsets: int = 0
    """Transaction markers, and records that were aborted."""

    @property
    def records(self) -> int:
        """Records readers can see; compaction may have left fewer."""
        return self.high_watermark - self.log_start_offset - self.hidden_offsets


class StreamSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One stream in ``/api/streams``."""

    config: StreamConfig
    created_ns: int
    partitions: list[PartitionSnapshot]

    @property
    def records(self) -> int:
        """Records readers can see, over all partitions."""
        return sum(partition.records for partition in self.partitions)


def snapshot(streams: Sequence[StreamView]) -> list[StreamSnapshot]:
    """The state of ``streams`` now, sorted by name; any thread."""
    return [
        StreamSnapshot(
            config=stream.config,
            created_ns=stream.created_ns,
            partitions=[_partition_state(partition) for partition in stream.partitions],
        )
        for stream in sorted(streams, key=lambda stream: stream.config.name)
    ]


def partition_samples(streams: Sequence[StreamView]) -> list[PartitionSample]:
    """The offsets of every partition for a scrape; any thread."""
    return [
        PartitionSample(
            stream.config.name,
            partition.name.partition,
            partition.log_start_offset,
            partition.high_watermark,
            partition.log_end_offset,
        )
        for stream in streams
        for partition in stream.partitions
    ]


def group_samples(
    positions: Sequence[GroupSample], streams: Sequence[StreamView], *, now_ns: int
) -> list[GroupSample]:
    """Positions with their lags, by the copies that are here, for a scrape; any thread."""
    every = (partition for stream in streams for partition in stream.partitions)
    here = {partition.name: partition for partition in every if partition.remote_error is None}
    found = []
    for sample in positions:
        partition = here.get(PartitionName(sample.stream, sample.partition))
        if partition is None:
            found.append(sample)
            continue
        # A copy that follows may know less than the one the group has read.
        lag = max(0, partition.high_watermark - sample.position)
        stored_ns = partition.stored_ns(sample.position) if lag else None
        age_s = 0.0 if stored_ns is None else max(0, now_ns - stored_ns) / 1e9
        found.append(sample._replace(lag_records=lag, oldest_unread_seconds=age_s))
    return found


def _partition_state(partition: PartitionView) -> PartitionSnapshot:
    return PartitionSnapshot(
        partition=partition.name.partition,
        log_start_offset=partition.log_start_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log_end_offset,
        hidden_offsets=partition.hidden_offsets,
    )
