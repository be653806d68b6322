"""The durable state of a consumer: its progress, and its pending records.

Rules: sequences count from 1, as NATS clients expect. In a stream of one partition a sequence is an
offset plus one. A consumer of several partitions has a position in each. The sequences of its
records number all partitions together (``merged_sequence``): a sequence gives a record's partition
and its sequence there, but no order between partitions.
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
    pending records lie above the floor and not above what was delivered, each in its partition.
    """

    delivered_stream: int = 0
    """The last sequence delivered or skipped; with several partitions the sum of theirs."""
    delivered_consumer: int = 0
    """The number of deliveries."""
    floor_stream: int = 0
    """All records up to this sequence are acknowledged; with several partitions see ``floors``."""
    floor_consumer: int = 0
    pending: dict[int, PendingRecord] = {}
    """By sequence in the stream, in the order of first deliveries."""
    positions: list[int] = []
    """With several partitions: the last sequence of each that was delivered or skipped."""
    held_floors: list[int] = []
    """With several partitions: their floors, held while a record above them was dropped after its
    last permitted delivery. Empty: none was."""

    def advance(self, sequence: int) -> bool:
        """Note that a partition is delivered up to a sequence; return whether that is new.

        Args:
            sequence: the sequence of a record.
        """
        if not self.positions:
            is_behind = sequence > self.delivered_stream
            self.delivered_stream = max(sequence, self.delivered_stream)
            return is_behind
        within, number = split_sequence(sequence, len(self.positions))
        is_behind = within > self.positions[number]
        self.positions[number] = max(within, self.positions[number])
        self.delivered_stream = sum(self.positions)
        return is_behind

    @property
    def floors(self) -> list[int]:
        """The sequence of each partition up to which all records are acknowledged."""
        if not self.positions:
            return [self.floor_stream]
        if self.held_floors:
            return self.held_floors
        floors, count = list(self.positions), len(self.positions)
        for sequence in self.pending:
            within, number = split_sequence(sequence, count)
            floors[number] = min(floors[number], within - 1)
        return floors


def merged_sequence(within: int, number: int, count: int) -> int:
    """Return the sequence of a record among several partitions.

    Args:
        within: its sequence in its partition.
        number: the partition's number.
        count: the number of partitions.
    """
    return (within - 1) * count + number + 1


def split_sequence(sequence: int, count: int) -> tuple[int, int]:
    """Return a record's sequence in its partition, and the partition's number."""
    before, number = divmod(sequence - 1, count)
    return before + 1, number


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
