"""Consumers as stored, and as the answers to requests show them. Pure."""

import msgspec

from strandline.core.consumers.state import ConsumerState
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.times import format_time


class KeptConsumer(msgspec.Struct, kw_only=True):
    """A consumer as it is stored."""

    config: ConsumerConfig
    created_ns: int
    stream_created_ns: int
    """Of its stream: another one of the same name is another stream."""
    state: ConsumerState
    heads_to: int = 0
    """Up to this sequence only the last record of each subject is delivered; 0: every record is."""


class Position(msgspec.Struct, frozen=True):
    """The sequences that deliveries or acknowledgements have reached."""

    consumer_seq: int
    stream_seq: int
    last_active: str | msgspec.UnsetType = msgspec.UNSET
    """When this broker last saw one."""


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as answers show it."""

    stream_name: str
    name: str
    created: str
    config: ConsumerConfig
    delivered: Position
    ack_floor: Position
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_pending: int
    ts: str
    push_bound: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a push consumer has receivers."""
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    pause_remaining: int | msgspec.UnsetType = msgspec.UNSET


def position_of(consumer_seq: int, stream_seq: int, active_ns: int) -> Position:
    """Return a position as answers show it; ``active_ns`` is 0 if there was none yet."""
    return Position(
        consumer_seq, stream_seq, format_time(active_ns) if active_ns else msgspec.UNSET
    )
