"""The state of a consumer that has to survive: how far it has come, and what is not acknowledged.

Rules: sequences count from 1, as clients know them; those of the stream are offsets plus one. Pure.
"""

import msgspec

from strandline.errors import UNDECODABLE, InvalidRecordError


class PendingRecord(msgspec.Struct, array_like=True):
    """A record that was delivered and is not acknowledged."""

    consumer_sequence: int
    """Of its first delivery."""
    deliveries: int


class ConsumerState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The progress of a consumer: delivered, acknowledged and pending records.

    Invariants: ``floor_stream <= delivered_stream``, ``floor_consumer <= delivered_consumer``, and
    pending records lie above the floor and not above what was delivered.
    """

    delivered_stream: int = 0
    """The last sequence that was delivered or passed over."""
    delivered_consumer: int = 0
    """How many deliveries there were."""
    floor_stream: int = 0
    """Everything up to here is acknowledged."""
    floor_consumer: int = 0
    pending: dict[int, PendingRecord] = {}
    """By sequence in the stream, in the order of first deliveries."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ConsumerState).decode


def encode_state(state: ConsumerState) -> bytes:
    """Return a state as it is stored."""
    return _encode(state)


def decode_state(data: bytes) -> ConsumerState:
    """Return a stored state.

    Raises:
        InvalidRecordError: it is none.
    """
    try:
        return _decode(data)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not the state of a consumer: {error}") from error
