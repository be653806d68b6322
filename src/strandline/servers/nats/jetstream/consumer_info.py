"""Consumers as they are stored, and as answers to requests show them. Pure."""

import msgspec

from strandline.core.consumers.state import ConsumerState
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.times import format_time


class KeptConsumer(msgspec.Struct, kw_only=True):
    """The stored form of a consumer."""

    config: ConsumerConfig
    created_ns: int
    stream_created_ns: int
    """When its stream was created, to detect a stream recreated under the same name."""
    state: ConsumerState
    heads_to: int = 0
    """Up to this sequence only each subject's last record is delivered; 0: all records are."""


class Position(msgspec.Struct, frozen=True):
    """The sequences that deliveries or acknowledgements have reached."""

    consumer_seq: int
    stream_seq: int
    last_active: str | msgspec.UnsetType = msgspec.UNSET
    """When this broker last saw a delivery or an acknowledgement."""


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a consumer in answers."""

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
    """Return a position for an answer; ``active_ns`` is 0 if there was no activity."""
    return Position(
        consumer_seq, stream_seq, format_time(active_ns) if active_ns else msgspec.UNSET
    )
