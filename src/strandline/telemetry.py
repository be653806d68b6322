"""Metrics of the broker, each declared once: name, kind and help text are beside the field.

Rules: counting costs one addition on a plain attribute (``telemetry.group_commits += 1``); the text
for Prometheus is rendered only for a scrape. A metric is named after its field,
``strandline_<field>`` (plus ``_total`` for counters), in base units. Each broker owns one
``Telemetry``, so brokers in one process do not mix their metrics. Fields are
written by the loop thread, except where a method with a lock says otherwise. This module must not
know who updates the metrics, nor how they are exported.
"""

# ruff: noqa: RUF009 - the calls in the class body declare fields, they do not make shared values
import dataclasses
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.version import __version__

if TYPE_CHECKING:
    # Imported at the first scrape, because it loads an HTTP server.
    from prometheus_client import Metric

PREFIX = "strandline_"
SECONDS_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
BYTES_BUCKETS = tuple(float(1 << power) for power in range(8, 26, 2))
RECORDS_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0, 16384.0)


class Histogram:
    """Counts of values by bucket, plus their sum; written by one thread.

    Args:
        bounds: upper bounds of the buckets, inclusive and rising; +Inf is added.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Return how many values were observed."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield each upper bound with the count of values at or below it, as Prometheus expects."""
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            yield ("+Inf" if bound == float("inf") else repr(bound)), running


class PartitionSample(NamedTuple):
    """A partition's offsets at the time of a scrape; ends are exclusive."""

    stream: str
    partition: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


class GroupSample(NamedTuple):
    """Progress of a consumer group in a partition; unknown values are None."""

    group: str
    stream: str
    partition: int
    position: int
    lag_records: int | None = None
    oldest_unread_seconds: float | None = None


def counter(help_text: str) -> Any:
    """Declare a plain counter, an ``int`` or ``float`` field that only grows."""
    return dataclasses.field(default=0, metadata={"kind": "counter", "help": help_text})


def gauge(help_text: str) -> Any:
    """Declare a plain gauge, an ``int`` or ``float`` field."""
    return dataclasses.field(default=0, metadata={"kind": "gauge", "help": help_text})


def labelled(kind: str, label: str, help_text: str) -> Any:
    """Declare counters or gauges with one label: a mapping from label value to number."""
    return dataclasses.field(
        default_factory=lambda: defaultdict(int),
        metadata={"kind": kind, "label": label, "help": help_text},
    )


def histogram(help_text: str, bounds: Sequence[float] = SECONDS_BUCKETS) -> Any:
    """Declare a histogram; the default buckets suit seconds."""
    return dataclasses.field(
        default_factory=lambda: Histogram(bounds),
        metadata={"kind": "histogram", "help": help_text},
    )


@dataclass(slots=True, eq=False)
class Telemetry:
    """The metrics of one broker. Increment the fields; ``render`` returns the Prometheus text."""

    # Input.
    records_appended: int = counter("Records stored.")
    bytes_appended: int = counter("Bytes of encoded batches stored.")
    bulk_bytes: int = counter(
        "Bytes of large replicated batches written to segments only, not to the journal."
    )
    batches_appended: int = counter("Batches stored.")
    acks: int = counter("Publishes acknowledged, duplicates included.")
    duplicates: int = counter("Publishes recognized as duplicates of a stored record.")
    rejects: dict[str, int] = labelled(
        "counter", "code", "Records rejected, at once or after they were accepted, by error code."
    )
    messages_received: dict[str, int] = labelled(
        "counter", "listener", "Messages received, by listener: nats, ingest, flight or grpc."
    )
    connections: dict[str, int] = labelled(
        "gauge", "listener", "Open connections, by listener: ingest, flight or grpc."
    )
    pending_bytes: int = gauge("Bytes accepted and not yet stored.")

    # Quotas; only for principals that have one.
    quota_published_bytes: dict[str, int] = labelled(
        "counter", "principal", "Bytes published by a principal with a quota of published bytes."
    )
    quota_read_bytes: dict[str, int] = labelled(
        "counter", "principal", "Bytes delivered to a principal with a quota of read bytes."
    )
    quota_wait_seconds: dict[str, float] = labelled(
        "counter", "principal", "Time for which a quota delayed a principal."
    )
    quota_rejections: dict[str, int] = labelled(
        "counter",
        "principal",
        "Requests and connections of a principal rejected because of its quota.",
    )

    # The group commit, the journal, the disk.
    group_commits: int = counter("Group commits that stored records.")
    commit_records: Histogram = histogram("Records stored by one group commit.", RECORDS_BUCKETS)
    commit_bytes: Histogram = histogram(
        "Bytes of batches stored by one group commit.", BYTES_BUCKETS
    )
    sync_seconds: Histogram = histogram(
        "Time of one sync of the journal; it covers all records of a group commit."
    )
    journal_bytes: int = gauge("Bytes of the journal that a restart would replay.")
    journal_poisoned: int = gauge("1 from a failed write or sync until the log is reopened.")
    disk_full: int = gauge("1 while publishes are rejected for lack of space.")
    disk_full_writes: int = counter("Writes that failed for lack of space.")
    checkpoint_seconds: Histogram = histogram("Time of one checkpoint.")
    corrupt_batches: int = counter("Corrupt batches found while reading or recovering.")
    scrubbed_bytes: int = counter("Bytes of logs read by the scrubber.")
    repaired_batches: int = counter("Corrupt batches repaired from another replica.")
    failed_repairs: int = counter("Answers of replicas that did not repair the corruption.")

    # Deletion and compaction.
    retention_segments: int = counter("Segments deleted by retention or record deletion.")
    retention_bytes: int = counter("Bytes deleted by retention or record deletion.")
    compaction_seconds: Histogram = histogram("Time of compacting one partition.")
    compaction_records: int = counter("Records removed by compaction.")

    # Output.
    reads: int = counter("Reads answered; a read that follows counts once for each delivery.")
    read_records: int = counter("Records delivered to readers, local reads not counted.")
    read_bytes: int = counter("Bytes of batches delivered to readers.")

    # Transactions; counted by their coordinator.
    transactions_open: int = gauge("Transactions that are neither committed nor aborted.")
    transactions_timed_out: dict[str, int] = labelled(
        "counter",
        "transaction",
        "Transactions aborted at their timeout, by transactional id.",
    )

    # Consumer groups; counted by their coordinator.
    groups: int = gauge("Consumer groups.")
    group_members: int = gauge("Members of consumer groups.")
    group_members_expired: int = counter("Members removed because their session expired.")
    offset_commits: int = counter("Offset commits of consumer groups.")

    # The cluster; all 0 for a broker alone.
    replicas: int = gauge("Replicas on this broker.")
    led_partitions: int = gauge("Partitions led here.")
    under_replicated_partitions: int = gauge(
        "Partitions led here with a replica that is not in sync."
    )
    under_min_isr_partitions: int = gauge(
        "Partitions led here with fewer than min_isr in-sync replicas; they accept no records."
    )
    offline_partitions: int = gauge("Partitions of the whole cluster without a leader.")
    replica_lag_records: dict[str, int] = labelled(
        "gauge", "broker", "Records of partitions led here that a broker's replicas lack."
    )
    replica_lag_bytes: dict[str, int] = labelled(
        "gauge",
        "broker",
        "Approximate bytes of the records that a broker's replicas lack, never too few.",
    )
    leader_elections: int = counter("Leaderships that began here.")
    isr_shrinks: int = counter("Replicas of partitions led here that fell out of sync.")
    isr_expands: int = counter("Replicas of partitions led here that came into sync.")
    commit_seconds: Histogram = histogram(
        "Time from a batch's journal write here until it was committed."
    )
    controller: int = gauge("1 while this broker is the controller.")
    consensus_term: int = gauge("Newest known term of the metadata quorum.")
    consensus_commit_index: int = gauge("Last entry of the metadata log known to be committed.")

    # The process.
    streams: int = gauge("Streams.")
    partitions: int = gauge("Partitions of all streams.")
    ready: int = gauge("1 while /health/ready says ready.")
    recovery_seconds: float = gauge("Time the last start took to recover the log.")
    recovery_records: int = gauge("Records the last start replayed from the journal.")
    recovery_torn_bytes: int = gauge("Bytes of torn tail discarded by the last start.")
    nats_server_restarts: int = counter("Restarts of the embedded nats-server.")
    nats_connections: int = gauge(
        "Connections to NATS, each for a share of the streams; one more for the JetStream API."
    )
    jetstream_covered_streams: int = gauge(
        "Streams whose publishes JetStream on the nats-server also acknowledges."
    )

    partition_samples: Callable[[], Iterable[PartitionSample]] = tuple
    """Called at each scrape, on the scraping thread; returns the offsets of all partitions."""
    group_samples: Callable[[], Iterable[GroupSample]] = tuple
    """Called in the same way; returns the groups that are coordinated here."""
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def count_full_disk(self) -> None:
        """Count a write that failed for lack of space."""
        self.disk_full = 1
        self.disk_full_writes += 1

    def count_read(self, *, records: int, size_bytes: int) -> None:
        """Count one delivery to a reader; any thread."""
        with self._lock:
            self.reads += 1
            self.read_records += records
            self.read_bytes += size_bytes

    def count_listener(self, listener: str, *, connections: int = 0, messages: int = 0) -> None:
        """Add to a listener's metrics; any thread. Once per read of a socket, not per message.

        Args:
            listener: ``nats``, ``ingest`` or ``flight``.
            connections: +1 when one opens, -1 when it closes.
            messages: how many messages arrived.
        """
        with self._lock:
            self.connections[listener] += connections
            self.messages_received[listener] += messages

    def count_quota(self, name: str, principal: str, amount: float) -> None:
        """Add to one of the quota metrics; any thread.

        Args:
            name: the field.
            principal: the principal with the quota.
            amount: the value to add.
        """
        with self._lock:
            getattr(self, name)[principal] += amount

    def render(self) -> bytes:
        """Return all metrics as Prometheus text; any thread."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> "Iterator[Metric]":
        """Convert the fields to metric families, as a collector does."""
        from prometheus_client.core import GaugeMetricFamily

        info = GaugeMetricFamily(PREFIX + "info", INFO_HELP, labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        for field in METRICS:
            yield _family(field, getattr(self, field.name))
        yield from _sampled("partition", PARTITION_METRICS, self.partition_samples())
        yield from _sampled("group", GROUP_METRICS, self.group_samples())


def _sampled(
    what: str, metrics: Mapping[str, str], samples: Iterable[PartitionSample | GroupSample]
) -> "Iterator[Metric]":
    """Yield one gauge family per metric of the samples, omitting None."""
    from prometheus_client.core import GaugeMetricFamily

    samples = list(samples)
    labels = (["group"] if what == "group" else []) + ["stream", "partition"]
    for name, help_text in metrics.items():
        family = GaugeMetricFamily(f"{PREFIX}{what}_{name}", help_text, labels=labels)
        for sample in samples:
            value = getattr(sample, name)
            if value is not None:
                family.add_metric([str(getattr(sample, label)) for label in labels], value)
        yield family


INFO_HELP = "Always 1; the label has the version of the broker."
PARTITION_METRICS = {
    "log_start_offset": "First offset kept in the partition.",
    "high_watermark": "First offset that is not committed.",
    "log_end_offset": "Offset the next record will get.",
}
GROUP_METRICS = {
    "position": "Committed offset of the group.",
    "lag_records": "Offsets from the committed offset to the high watermark; 0 if it is beyond.",
    "oldest_unread_seconds": "Age of the oldest record from the committed offset on; 0 if none.",
}
METRICS = tuple(field for field in dataclasses.fields(Telemetry) if "kind" in field.metadata)


def metric_names() -> list[str]:
    """Return every metric's name as Prometheus shows it; docs/metrics.md lists them (tested)."""
    fields = [
        f"{PREFIX}{field.name}" + ("_total" if field.metadata["kind"] == "counter" else "")
        for field in METRICS
    ]
    partitions = [f"{PREFIX}partition_{name}" for name in PARTITION_METRICS]
    groups = [f"{PREFIX}group_{name}" for name in GROUP_METRICS]
    return [f"{PREFIX}info", *fields, *partitions, *groups]


def _family(field: "dataclasses.Field[Any]", value: Any) -> "Metric":
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    name, help_text = PREFIX + field.name, field.metadata["help"]
    kind = field.metadata["kind"]
    if kind == "histogram":
        return HistogramMetricFamily(
            name, help_text, buckets=list(value.cumulative()), sum_value=value.total
        )
    family_type = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    if "label" not in field.metadata:
        return family_type(name, help_text, value=value)
    family = family_type(name, help_text, labels=[field.metadata["label"]])
    # A copy, because the loop thread may add a label value while a scrape iterates.
    for label_value, number in sorted(value.copy().items()):
        family.add_metric([label_value], number)
    return family
