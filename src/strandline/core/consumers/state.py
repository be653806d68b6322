"""The durable state of a consumer: how far it has come, and which records are pending.

Rules: sequences count from 1, as NATS clients expect; a stream sequence is an offset plus one.
"""

import msgspec

from strandline.errors import UNDECODABLE, InvalidRecordError


class PendingRecord(msgspec.Struct, array_like=True):
    """A record that was delivered and is not acknowledged yet."""

    consumer_sequence: int
    """The number of its first delivery."""
    deliveries: int


class ConsumerState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The progress of a consumer: delivered, acknowledged and pending records.

    Invariants: ``floor_stream <= delivered_stream``, ``floor_consumer <= delivered_consumer``, and
    pending records lie above the floor and not above what was delivered.
    """

    delivered_stream: int = 0
    """The last sequence that was delivered or skipped."""
    delivered_consumer: int = 0
    """The number of deliveries."""
    floor_stream: int = 0
    """Everything up to here is acknowledged."""
    floor_consumer: int = 0
    pending: dict[int, PendingRecord] = {}
    """By sequence in the stream, in the order of first deliveries."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ConsumerState).decode


def encode_state(state: ConsumerState) -> bytes:
    """Encode a consumer's state for storage."""
    return _encode(state)


def decode_state(data: bytes) -> ConsumerState:
    """Decode a stored state.

    Raises:
        InvalidRecordError: the bytes are not a consumer's state.
    """
    try:
        return _decode(data)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not the state of a consumer: {error}") from error
