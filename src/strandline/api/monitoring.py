"""The monitoring commands: the state of one broker.

Every command is about the broker that answers. To describe a cluster, ask each broker.
"""

from types import NoneType
from typing import Final

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import cluster
from strandline.api.wire import WireAnswer


class BrokerRates(WireAnswer, frozen=True, kw_only=True):
    """A broker's rates per second, averaged over the last five seconds."""

    records_appended: float = 0.0
    bytes_appended: float = 0.0
    acks: float = 0.0
    read_records: float = 0.0
    read_bytes: float = 0.0
    group_commits: float = 0.0
    syncs: float = 0.0


class BrokerStatus(WireAnswer, frozen=True, kw_only=True):
    """The health, the load and the storage of one broker."""

    broker: int
    """The broker's id; 0 without a cluster."""
    address: str
    """The ``host:port`` of the broker's Arrow Flight in a cluster; empty without a cluster."""
    version: str
    why_not_ready: str
    """Why records cannot be stored or read on the broker now; empty if they can."""
    up_s: float
    data_dir: str
    disk_bytes: int
    """Size of the file system that holds the data directory."""
    disk_free_bytes: int
    log_bytes: int
    """The bytes of the logs of this broker's replicas."""
    memory_bytes: int
    """The resident memory of the process."""
    replicas: int
    led_partitions: int
    under_replicated_partitions: int
    under_min_isr_partitions: int
    offline_partitions: int
    """Partitions of the whole cluster without a leader, as far as this broker knows."""
    pending_bytes: int
    connections: dict[str, int]
    """The number of open connections of each listener."""
    corrupt_batches: int
    rates: BrokerRates


class HistorySample(WireAnswer, frozen=True, array_like=True):
    """The mean values over one interval."""

    at_ns: int
    """The Unix time of the interval's end."""
    records_per_s: float
    bytes_per_s: float
    read_records_per_s: float
    read_bytes_per_s: float
    syncs_per_s: float
    sync_ms: float
    """The mean duration of a sync; 0 without a sync."""
    cpu_share: float
    """CPU seconds that the broker's process used per second."""
    memory_bytes: int
    pending_bytes: int
    lag_records: int
    """Records that followers lack of the partitions that this broker leads."""


class MetricHistoryInfo(WireAnswer, frozen=True, kw_only=True):
    """The samples of the last hour, oldest first."""

    broker: int
    samples: tuple[HistorySample, ...]


class ConnectionInfo(WireAnswer, frozen=True, kw_only=True):
    """A client's connection to one broker."""

    listener: str
    """``flight``, ``ingest``, ``grpc``, or ``nats`` for the broker's own nats-server."""
    address: str
    """The ``host:port`` of the client."""
    principal: str
    """Empty where access is not checked, or before the client is identified."""
    messages: int
    """The number of messages received; for ``flight`` and ``grpc``, of calls."""


class TraceText(WireAnswer, frozen=True, kw_only=True):
    """The end of a broker's trace."""

    text: str
    """Whole events, oldest first, in the format of docs/traces.md; empty without a trace."""


class ClusterEvent(WireAnswer, frozen=True, kw_only=True):
    """Something that happened, as one broker noticed it."""

    at_ns: int
    kind: str
    """``broker``, ``controller``, ``election``, ``isr``, ``move``, ``stream``, ``corruption``,
    ``storage`` or ``refusal``."""
    about: str
    """The partition, stream or broker that the event concerns; empty: the broker itself."""
    text: str


BROKER_STATUS: Final = AdminCommand(
    name="broker_status",
    help="Describe the health, load and storage of the broker asked.",
    request=NoneType,
    result=BrokerStatus,
    needs=lambda _: [cluster("read")],
)
METRIC_HISTORY: Final = AdminCommand(
    name="metric_history",
    help="Return the load of the broker asked over the last hour.",
    request=NoneType,
    result=MetricHistoryInfo,
    needs=lambda _: [cluster("read")],
)
LIST_EVENTS: Final = AdminCommand(
    name="list_events",
    help="List what the broker asked has noticed since it started, oldest first.",
    request=NoneType,
    result=ClusterEvent,
    needs=lambda _: [cluster("read")],
)
LIST_CONNECTIONS: Final = AdminCommand(
    name="list_connections",
    help="List the connections of clients to the broker asked.",
    request=NoneType,
    result=ConnectionInfo,
    needs=lambda _: [cluster("read")],
)
READ_TRACE: Final = AdminCommand(
    name="read_trace",
    help="Return the end of the trace of the broker asked.",
    request=NoneType,
    result=TraceText,
    needs=lambda _: [cluster("admin")],  # the trace names streams that the caller may not see
)
