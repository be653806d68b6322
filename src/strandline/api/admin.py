"""The stream commands of the admin API, and the description of streams and brokers to clients.

Other modules declare the commands of one area each: ``cluster`` (operation of a cluster),
``transactions``, ``encryption`` (encrypted streams), ``local`` (readers on the broker's
machine), ``groups`` (consumer groups), ``access`` (access control), ``quotas`` and
``monitoring``. ``commands`` has the table of all commands.

Rules: bodies and results are JSON. Unknown fields are rejected in a request and ignored in an
answer.
"""

from types import NoneType
from typing import Annotated, Any, Final

import msgspec

from strandline.api.command import AdminCommand, no_needs
from strandline.api.required_permissions import known_stream, needs_of_stream, stream
from strandline.api.tickets import WAIT_MS_MAX, Bound
from strandline.api.wire import Count, Int64, Name, PartitionNumber, WireAnswer, WireMessage, decode
from strandline.config import PARTITIONS_MAX, StreamConfig, decode_config
from strandline.security.principal import INTERNAL_PREFIX

PROTOCOL_VERSION = 1


class StreamName(WireMessage, frozen=True, kw_only=True):
    """A reference to a stream."""

    name: Name


_Numbers = Annotated[
    tuple[PartitionNumber, ...], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)
]


class UpdateStreamRequest(WireMessage, frozen=True, kw_only=True):
    """A request to change the settings of a stream that may be changed."""

    name: Name
    schema_validation: bool


class StreamInfoRequest(WireMessage, frozen=True, kw_only=True):
    """A request to describe a stream."""

    name: Name
    led: _Numbers | None = None
    """Partitions whose ends must come from their leader, as with ``OffsetsRequest.of_leader``; for
    the others the broker answers at once, with what it knows."""


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
    """Whether to fail for a partition that another broker leads, since this replica may lack
    acknowledged records. A new leader waits a moment until it knows its end. False: answer with
    what the broker knows."""


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
    """The offset after the last record that readers see; an open transaction holds it back."""
    log_end_offset: int
    size_bytes: int
    hidden_offsets: int = 0
    """Offsets without a visible record: transaction markers, and aborted records."""
    leader: str = ""
    """In a cluster the ``host:port`` of the leader's Arrow Flight; empty without a leader."""
    in_sync: tuple[str, ...] = ()
    """In a cluster the ``host:port`` of each in-sync replica that is reachable."""
    paused: bool = False
    """Whether the partition rejects records until it is resumed through Liftbridge's API."""

    @property
    def records(self) -> int:
        """The number of visible records; an upper bound where compaction has left gaps."""
        return self.high_watermark - self.log_start_offset - self.hidden_offsets


class StreamInfo(WireAnswer, frozen=True, kw_only=True):
    """A stream as clients see it."""

    config: StreamConfig
    created_ns: int
    partitions: tuple[PartitionInfo, ...]
    also_answering: tuple[str, ...] = ()
    """Other streams that also acknowledge publishes to some of its subjects. Only in the answers to
    ``create_stream`` and ``stream_info``, and only if access is not controlled."""
    metadata_index: int = 0
    """In a cluster the index of the newest metadata entry that the broker has applied."""

    @property
    def name(self) -> str:
        """Return the stream's name."""
        return self.config.name

    @property
    def subject(self) -> str:
        """Return the subject that the stream records."""
        return self.config.subject


class ServerInfo(WireAnswer, frozen=True, kw_only=True):
    """A broker as clients see it."""

    version: str
    protocol: int
    record_bytes_max: int
    batch_bytes_max: int
    streams: int
    brokers: tuple[str, ...] = ()
    """In a cluster the ``host:port`` of every broker in service; empty for a single broker."""
    address: str = ""
    """In a cluster the broker's own ``host:port``, as other brokers know it."""
    auth_enabled: bool = True
    """Whether it checks access; earlier versions do not say."""


class ProducerInfo(WireAnswer, frozen=True, kw_only=True):
    """The identity of an idempotent producer."""

    producer_id: int


def _parse_config(body: bytes) -> StreamConfig:
    """Decode a stream's configuration; the error for an unknown key suggests a similar one."""
    return decode_config(decode(body, dict[str, Any], what="stream configuration"), StreamConfig)


CREATE_STREAM: Final = AdminCommand(
    name="create_stream",
    help="Create a stream.",
    request=StreamConfig,
    result=StreamInfo,
    needs=needs_of_stream,
    parse=_parse_config,
)
UPDATE_STREAM: Final = AdminCommand(
    name="update_stream",
    help="Change the settings of a stream that may be changed.",
    request=UpdateStreamRequest,
    result=StreamInfo,
    needs=lambda it: [stream(it.name, "admin")],
)
DELETE_STREAM: Final = AdminCommand(
    name="delete_stream",
    help="Delete a stream and its records.",
    request=StreamName,
    result=NoneType,
    needs=lambda it: [stream(it.name, "admin")],
)
DELETE_RECORDS: Final = AdminCommand(
    name="delete_records",
    help="Delete a partition's records below an offset.",
    request=DeleteRecords,
    result=StreamInfo,
    needs=lambda it: [stream(it.name, "admin")],
)
STREAM_INFO: Final = AdminCommand(
    name="stream_info",
    help="Describe a stream's configuration and offsets.",
    request=StreamInfoRequest,
    result=StreamInfo,
    # Every client must find the leaders of internal streams, since these are the coordinators.
    needs=lambda it: [] if it.name.startswith(INTERNAL_PREFIX) else [known_stream(it.name)],
)
LIST_STREAMS: Final = AdminCommand(
    name="list_streams",
    help="List all streams.",
    request=NoneType,
    result=StreamInfo,
    needs=no_needs,
    visibility=lambda it: known_stream(it.name),
)
OFFSETS: Final = AdminCommand(
    name="offsets",
    help="Resolve an offset or a time in each partition.",
    request=OffsetsRequest,
    result=Offsets,
    needs=lambda it: [stream(it.name, "read")],
)
WAIT_BEYOND: Final = AdminCommand(
    name="wait_beyond",
    help="Wait for records beyond offsets.",
    request=WaitRequest,
    result=Offsets,
    needs=lambda it: [stream(it.name, "read")],
)
SERVER_INFO: Final = AdminCommand(
    name="server_info",
    help="Describe the broker's version and limits.",
    request=NoneType,
    result=ServerInfo,
    needs=no_needs,
)
NEW_PRODUCER: Final = AdminCommand(
    name="new_producer",
    help="Allocate an id for an idempotent producer, never allocated again.",
    request=NoneType,
    result=ProducerInfo,
    needs=no_needs,
)
