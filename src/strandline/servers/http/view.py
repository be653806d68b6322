"""The interface of a broker that the pages need, and a snapshot of it as plain values.

Rules: the protocols are minimal, so that tests need no broker. A snapshot may be taken on any
thread: the list of streams is a copy, and offsets are safe to read on any thread.
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
    """The interface of a partition that the pages need."""

    @property
    def name(self) -> PartitionName:
        """The partition's stream and number."""
        ...

    @property
    def log_start_offset(self) -> int:
        """The first offset kept."""
        ...

    @property
    def high_watermark(self) -> int:
        """The first offset that readers do not see yet."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def hidden_between(self, start: int, stop: int) -> int:
        """Count the offsets of a range where readers find no record."""
        ...

    @property
    def remote_error(self) -> Exception | None:
        """Why the partition cannot be read here: only other brokers have replicas; else None."""
        ...

    def stored_ns(self, offset: int) -> int | None:
        """Return about when the record at an offset was stored; None if it cannot be read."""
        ...


class StreamView(Protocol):
    """The interface of a stream that the pages need."""

    @property
    def config(self) -> StreamConfig:
        """The stream's settings."""
        ...

    @property
    def partitions(self) -> Sequence[PartitionView]:
        """The stream's partitions, by number."""
        ...

    @property
    def created_ns(self) -> int:
        """The Unix time of the stream's creation, in nanoseconds."""
        ...


class BrokerView(Protocol):
    """The interface of a broker that the pages need."""

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings."""
        ...

    @property
    def clock(self) -> Clock:
        """The source of time."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether the rules and tokens in the metadata are recent enough to be used."""
        ...

    @property
    def flight_address(self) -> str:
        """The broker's Arrow Flight address in a cluster; empty for a broker alone."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """The broker's metrics."""
        ...

    @property
    def why_not_ready(self) -> str:
        """Return why records cannot be stored and read now; empty if they can."""
        ...

    def refresh_telemetry(self) -> None:
        """Update metrics that are computed on demand; loop thread."""
        ...

    def streams(self) -> Sequence[StreamView]:
        """Return the broker's streams; loop thread."""
        ...

    def group_positions(self) -> Sequence[GroupSample]:
        """Return the progress of the groups coordinated here, without lags; loop thread."""
        ...


class PartitionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in ``/api/streams``."""

    partition: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    hidden_offsets: int = 0
    """Offsets between the other two where readers find no record: transaction markers, and
    records of aborted transactions."""

    @property
    def records(self) -> int:
        """The number of records readers can see; compaction may have left fewer."""
        return self.high_watermark - self.log_start_offset - self.hidden_offsets


class StreamSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in ``/api/streams``."""

    config: StreamConfig
    created_ns: int
    partitions: list[PartitionSnapshot]

    @property
    def records(self) -> int:
        """The number of records readers can see, over all partitions."""
        return sum(partition.records for partition in self.partitions)


def snapshot(streams: Sequence[StreamView]) -> list[StreamSnapshot]:
    """Return the current state of ``streams``, sorted by name; any thread."""
    return [
        StreamSnapshot(
            config=stream.config,
            created_ns=stream.created_ns,
            partitions=[_partition_state(partition) for partition in stream.partitions],
        )
        for stream in sorted(streams, key=lambda stream: stream.config.name)
    ]


def partition_samples(streams: Sequence[StreamView]) -> list[PartitionSample]:
    """Return the offsets of every partition for a scrape; any thread."""
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
    """Return the groups' progress with lags, from local replicas, for a scrape; any thread."""
    every = (partition for stream in streams for partition in stream.partitions)
    here = {partition.name: partition for partition in every if partition.remote_error is None}
    found = []
    for sample in positions:
        partition = here.get(PartitionName(sample.stream, sample.partition))
        if partition is None:
            found.append(sample)
            continue
        # This replica may be behind the one that the group has read.
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
        hidden_offsets=partition.hidden_between(
            partition.log_start_offset, partition.high_watermark
        ),
    )
