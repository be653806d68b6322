"""The admin API: names of DoAction actions, their bodies, and what streams look like to clients.

| action | body | results |
|---|---|---|
| create_stream | StreamConfig | StreamInfo |
| delete_stream | StreamName | none |
| delete_records | DeleteRecords | StreamInfo |
| stream_info | StreamInfoRequest | StreamInfo |
| list_streams | empty | StreamInfo, one per stream |
| offsets | OffsetsRequest | Offsets |
| wait_beyond | WaitRequest | Offsets |
| server_info | empty | ServerInfo |
| new_producer | empty | ProducerInfo |

Other modules declare the actions of one area each: ``cluster`` (operating a cluster),
``transactions``, ``encryption`` (encrypted streams), ``local`` (readers on the same machine),
``groups`` (consumer groups), ``access`` (access control) and ``quotas``.

Rules: bodies and results are JSON. Unknown fields are refused in a request and ignored in an
answer.
"""

from typing import Annotated

import msgspec

from strandline.api import access, cluster, encryption, groups, local, quotas, transactions
from strandline.api.tickets import WAIT_MS_MAX, Bound
from strandline.api.wire import Count, Int64, Name, PartitionNumber, WireAnswer, WireMessage
from strandline.config import PARTITIONS_MAX, StreamConfig

PROTOCOL_VERSION = 1

CREATE_STREAM = "create_stream"
DELETE_STREAM = "delete_stream"
DELETE_RECORDS = "delete_records"
STREAM_INFO = "stream_info"
LIST_STREAMS = "list_streams"
OFFSETS = "offsets"
WAIT_BEYOND = "wait_beyond"
SERVER_INFO = "server_info"
NEW_PRODUCER = "new_producer"

ACTIONS: dict[str, str] = {
    CREATE_STREAM: "Create a stream; body: its configuration.",
    DELETE_STREAM: "Delete a stream and its records; body: {name}.",
    DELETE_RECORDS: "Delete records below an offset; body: {name, partition, offset}.",
    STREAM_INFO: "A stream's configuration and offsets; body: {name}.",
    LIST_STREAMS: "All streams; no body.",
    OFFSETS: "The offset that a word or time resolves to in each partition; body: {name, at}.",
    WAIT_BEYOND: "Wait for records beyond offsets; body: {name, beyond, wait_ms_max}.",
    SERVER_INFO: "Version and limits of the broker; no body.",
    NEW_PRODUCER: "An id for an idempotent producer, never given out again; no body.",
    **local.ACTIONS,
    **cluster.ACTIONS,
    **encryption.ACTIONS,
    **transactions.ACTIONS,
    **groups.ACTIONS,
    **access.ACTIONS,
    **quotas.ACTIONS,
}
"""Every action, with its description in ListActions."""


class StreamName(WireMessage, frozen=True, kw_only=True):
    """A reference to a stream."""

    name: Name


_Numbers = Annotated[
    tuple[PartitionNumber, ...], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)
]


class StreamInfoRequest(WireMessage, frozen=True, kw_only=True):
    """A request to describe a stream."""

    name: Name
    led: _Numbers | None = None
    """Partitions whose end has to be that of their leader, as ``OffsetsRequest.of_leader``; those
    of other partitions are what the broker knows, at once."""


class DeleteRecords(WireMessage, frozen=True, kw_only=True):
    """A request to delete a partition's records below an offset."""

    name: Name
    partition: PartitionNumber = 0
    offset: Count


class OffsetsRequest(WireMessage, frozen=True, kw_only=True):
    """A request to resolve an offset or time in each partition."""

    name: Name
    at: Bound = "latest"
    partitions: _Numbers | None = None
    """The partitions; None: all."""
    of_leader: bool = False
    """Be refused where another broker leads them: its copy may end before what was acknowledged.
    A leader waits a moment until it knows; otherwise the answer is what the broker knows."""


_Beyond = Annotated[
    dict[PartitionNumber, Int64], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)
]


class WaitRequest(WireMessage, frozen=True, kw_only=True):
    """A request to wait until a high watermark passes the offset given for its partition."""

    name: Name
    beyond: _Beyond
    wait_ms_max: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 1000


class Offsets(WireAnswer, frozen=True, kw_only=True):
    """Offsets by partition."""

    offsets: dict[int, int]


class PartitionInfo(WireAnswer, frozen=True, kw_only=True):
    """A partition's offsets (half-open), size and replicas."""

    partition: int
    log_start_offset: int
    high_watermark: int
    """The first offset that readers do not see yet; an open transaction holds it back."""
    log_end_offset: int
    size_bytes: int
    hidden_offsets: int = 0
    """Offsets without a visible record: transaction markers, and aborted records."""
    leader: str = ""
    """In a cluster ``host:port`` of its leader's Arrow Flight; empty while there is none."""
    in_sync: tuple[str, ...] = ()
    """In a cluster ``host:port`` of the reachable in-sync replicas."""
    paused: bool = False
    """Whether it refuses records until it is resumed through Liftbridge's API."""

    @property
    def records(self) -> int:
        """Return the number of visible records; fewer exist where compaction left gaps."""
        return self.high_watermark - self.log_start_offset - self.hidden_offsets


class StreamInfo(WireAnswer, frozen=True, kw_only=True):
    """A stream as clients see it."""

    config: StreamConfig
    created_ns: int
    partitions: tuple[PartitionInfo, ...]
    also_answering: tuple[str, ...] = ()
    """Other streams that answer publishes to some of its subjects, too; only in the answers to
    ``create_stream`` and ``stream_info``, and not where access is controlled."""
    metadata_index: int = 0
    """In a cluster the index of the broker's newest metadata entry; a larger one is newer."""

    @property
    def name(self) -> str:
        """Return the stream's name."""
        return self.config.name

    @property
    def subject(self) -> str:
        """Return the NATS subject it records."""
        return self.config.subject


class ServerInfo(WireAnswer, frozen=True, kw_only=True):
    """A broker as clients see it."""

    version: str
    protocol: int
    record_bytes_max: int
    batch_bytes_max: int
    streams: int
    brokers: tuple[str, ...] = ()
    """In a cluster ``host:port`` of every broker in service; empty: this is a single broker."""
    address: str = ""
    """In a cluster its own ``host:port``, as the others name it."""


class ProducerInfo(WireAnswer, frozen=True, kw_only=True):
    """The identity of an idempotent producer."""

    producer_id: int
