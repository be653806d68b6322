"""The state of a put's batch between its arrival and its ack.

Pure. Once a batch is submitted, only the loop's thread uses its state.
"""

from typing import NamedTuple

import pyarrow as pa

from strandline.api.put import NOT_STORED, AckedRange, PutAck
from strandline.api.routing import default_subject
from strandline.api.status import to_body
from strandline.errors import StrandlineError
from strandline.record.codec import MESSAGE_ID_HEADER, Headers
from strandline.types import Offset, PartitionName


class Row(NamedTuple):
    """One row of a batch with message ids."""

    row_index: int
    value: bytes | None
    key: bytes | None
    subject: str
    headers: Headers | None
    message_id: str | None


class BatchInFlight:
    """The outcomes of a batch's rows, from which its ack is made.

    Args:
        sequence: the batch's number in the put.
        size: the batch's bytes, which count in the put's window.
        is_single: whether all its rows go to one partition.
    """

    def __init__(self, sequence: int, size: int, *, is_single: bool = False) -> None:
        self.sequence = sequence
        self.size = size
        self.rejection: StrandlineError | None = None
        """Why the other rows are rejected: an earlier batch was rejected and may be sent again."""
        self._is_single = is_single
        self._pieces: list[tuple[PartitionName, int]] = []
        self._starts: list[Offset | None] = []
        self._offsets: dict[int, int] = {}
        self._partitions: dict[int, int] = {}
        self._duplicates: list[int] = []
        self._error: StrandlineError | None = None
        self._left = 0

    def expect(self, partition: PartitionName, records: int, *, rows: list[Row] | None) -> None:
        """Expect one outcome for a piece of ``records`` rows, or one for each of ``rows``."""
        if rows is None:
            self._pieces.append((partition, records))
            self._starts.append(None)
            self._left += 1
            return
        for row in rows:
            self._offsets[row.row_index] = NOT_STORED
            self._partitions[row.row_index] = partition.partition
        self._left += len(rows)

    @property
    def is_complete(self) -> bool:
        """Whether all outcomes are known."""
        return self._left == 0

    def acked(self, number: int, offset: Offset, *, duplicate: bool) -> None:
        """Record that a piece or a row, by its number, was stored from ``offset`` on."""
        self._left -= 1
        if self._pieces:
            self._starts[number] = offset
            return
        self._offsets[number] = offset
        if duplicate:
            self._duplicates.append(number)

    def rejected(self, error: StrandlineError) -> None:
        """Record that a piece or a row was rejected; the ack reports the first rejection."""
        self._left -= 1
        self._error = self._error or error
        if error.retriable and self._is_single:
            self.rejection = error

    def ack(self) -> PutAck:
        """Return the ack for the client."""
        ranges = tuple(
            AckedRange(name.partition, start, records)
            for (name, records), start in zip(self._pieces, self._starts, strict=True)
            if start is not None
        )
        rows = sorted(self._offsets)
        return PutAck(
            sequence=self.sequence,
            ranges=ranges,
            offsets=tuple(self._offsets[row] for row in rows),
            partitions=tuple(self._partitions[row] for row in rows),
            duplicates=tuple(sorted(self._duplicates)),
            error=None if self._error is None else to_body(self._error),
        )


def rows_of(batch: pa.RecordBatch, row_indexes: pa.Array | None, stream_subject: str) -> list[Row]:
    """Return the rows of a checked batch.

    Args:
        batch: the rows of one partition.
        row_indexes: the rows' indexes in the received batch; None if ``batch`` is all of it.
        stream_subject: the stream's subject, used for rows without one.
    """
    count = batch.num_rows
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing = [None] * count
    default = default_subject(stream_subject)
    return [
        Row(
            row_index,
            value,
            key,
            subject or default,
            _with_id(headers, message_id),
            message_id or None,
        )
        for row_index, value, key, subject, headers, message_id in zip(
            range(count) if row_indexes is None else row_indexes.to_pylist(),
            columns["value"],
            columns.get("key", nothing),
            columns.get("subject", nothing),
            columns.get("headers", nothing),
            columns.get("message_id", nothing),
            strict=True,
        )
    ]


def _with_id(headers: Headers | None, message_id: str | None) -> Headers | None:
    """Return the headers with the message id; deduplication is rebuilt from it after a restart."""
    kept = list(headers or ())
    if not message_id or any(name == MESSAGE_ID_HEADER for name, _ in kept):
        return kept or None
    return [(MESSAGE_ID_HEADER, message_id.encode()), *kept]
