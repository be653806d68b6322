"""Partitioning of records that are put without a partition number.

| rule of the stream | by |
|---|---|
| suffix | subject ``<stream subject>.N``; else key; else message id; else 0 if it has a subject |
| subject | subject; else key; else message id |
| key | key; else subject; else message id |
| message_id | message id; else subject; else key |

A record with none of these goes to the next partition in turn. The hash is CRC-32 modulo the number
of partitions, the same as for publishes through NATS. Pure.
"""

from collections.abc import Callable

import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.config import StreamConfig
from strandline.record.partitioner import partition_of

WILDCARD_TOKENS = ("*", ">")


def default_subject(pattern: str) -> str:
    """Return the stream's subject with ``_`` for wildcards, for records without a subject."""
    tokens = pattern.split(".")
    return ".".join("_" if token in WILDCARD_TOKENS else token for token in tokens)


class Router:
    """The partitioning of one stream.

    Args:
        config: the stream's settings.
    """

    def __init__(self, config: StreamConfig) -> None:
        self.partitions = config.partitions
        self._rule = config.partition_rule
        self._prefix = config.subject + "."

    def of_record(
        self, key: bytes | None, subject: str | None, message_id: str | None
    ) -> int | None:
        """Return the partition of one record; None if it may go to any.

        Args:
            key: the record's key, if it has one.
            subject: the record's subject, if one was given.
            message_id: the record's message id, if it has one.
        """
        if self.partitions == 1:
            return 0
        if message_id is not None and self._rule == "message_id":
            return partition_of(_id_bytes(message_id), self.partitions)
        if subject is not None:
            if self._rule == "suffix":
                number = self._suffix(subject)
                if number is not None:
                    return number
            elif self._rule != "key" or key is None:
                return partition_of(subject.encode(), self.partitions)
        if key is not None:
            return partition_of(key, self.partitions)
        if message_id is not None:
            return partition_of(_id_bytes(message_id), self.partitions)
        return None if subject is None else 0

    def of_batch(
        self, batch: pa.RecordBatch, *, spread: int
    ) -> list[tuple[int, pa.RecordBatch, pa.Array | None]]:
        """Split a normalised batch by partition, keeping the order of rows.

        Args:
            batch: the rows.
            spread: chooses the partition, modulo their number, of rows that may go to any.

        Returns:
            For each partition its number, its rows, and their row indexes in ``batch`` (None: all
                rows).
        """
        if self.partitions == 1:
            return [(0, batch, None)]
        numbers = self._numbers(batch, spread)
        if pc.count_distinct(numbers).as_py() == 1:
            return [(numbers[0].as_py(), batch, None)]
        # The sort is stable, so rows of one partition stay in order.
        order = pc.array_sort_indices(numbers)
        runs = pc.run_end_encode(numbers.take(order))
        ordered = batch.take(order)
        pieces, start = [], 0
        for end, number in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            places = order.slice(start, end - start)
            pieces.append((number, ordered.slice(start, end - start), places))
            start = end
        return pieces

    def _numbers(self, batch: pa.RecordBatch, spread: int) -> pa.Array:
        """Return the partition of each row; see ``of_record``."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        subject, key, message_id = (columns.get(n) for n in ("subject", "key", "message_id"))
        by_hash = [self._map(key, self._hash), self._map(message_id, self._hash)]
        if self._rule == "suffix":
            found = [self._map(subject, self._suffix_of), *by_hash, self._map(subject, _zero)]
        elif self._rule == "subject":
            found = [self._map(subject, self._hash), *by_hash]
        elif self._rule == "message_id":
            found = [by_hash[1], self._map(subject, self._hash), by_hash[0]]
        else:
            found = [by_hash[0], self._map(subject, self._hash), by_hash[1]]
        rest = pa.repeat(pa.scalar(spread % self.partitions, pa.int32()), batch.num_rows)
        return pc.coalesce(*(array for array in found if array is not None), rest)

    def _map(
        self, column: pa.Array | None, function: Callable[[bytes], int | None]
    ) -> pa.Array | None:
        """Apply a function to each distinct value of a column; null stays null."""
        if column is None or column.null_count == len(column):
            return None
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        values = encoded.dictionary.cast(pa.binary()).to_pylist()
        return pa.array([function(value) for value in values], pa.int32()).take(encoded.indices)

    def _hash(self, data: bytes) -> int:
        return partition_of(data, self.partitions)

    def _suffix_of(self, subject: bytes) -> int | None:
        return self._suffix(subject.decode())

    def _suffix(self, subject: str) -> int | None:
        """Return N of ``<stream subject>.N``, or None if N is no partition or has a leading 0."""
        if not subject.startswith(self._prefix):
            return None
        digits = subject[len(self._prefix) :]
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 5:
            return None
        number = int(digits)
        return number if str(number) == digits and number < self.partitions else None


def _id_bytes(message_id: str) -> bytes:
    """Return a message id's bytes as in the header; see ``record.columns.as_id``."""
    return message_id.encode(errors="surrogateescape")


def _zero(_: bytes) -> int:
    return 0
