"""Records that are stored all or not at all.

Rules: their conditions are checked together, against the state before the first of them; then they
are one batch, so one entry of the journal.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from strandline.broker.write_path.duplicates import Duplicates, HeldAppend
from strandline.broker.write_path.pending import AckSink
from strandline.broker.write_path.subject_sequences import SubjectSequences
from strandline.config import StreamConfig
from strandline.errors import (
    RepeatedMessageError,
    StillLoadingError,
    StrandlineError,
    WrongLastSequenceError,
)
from strandline.record.codec import Headers
from strandline.record.schema import HEADERS_TYPE
from strandline.types import Offset


class AtomicRecord(NamedTuple):
    """A record, and what it is stored under."""

    value: bytes | None
    subject: str
    key: bytes | None = None
    headers: Headers | None = None
    message_id: str | None = None
    expected_last: int | None = None
    expected_subject_last: int | None = None


class Appendable(Protocol):
    """A partition, as far as this needs it."""

    config: StreamConfig
    duplicates: Duplicates
    sequences: SubjectSequences
    next_offset: Offset

    @property
    def write_error(self) -> StrandlineError | None:
        """The error for records while it accepts none; else None."""
        ...

    def append_arrow(
        self, batch: pa.RecordBatch, *, ack_sink: AckSink | None = None, token: object = None
    ) -> None:
        """Accept the rows of an Arrow batch."""
        ...


def append_atomic(
    partition: Appendable, records: Sequence[AtomicRecord], *, ack_sink: AckSink, token: object
) -> None:
    """Accept records that are stored all or not at all; the one ack has the first one's offset.

    Args:
        partition: of the records.
        records: in order; not empty.
        ack_sink: receives the outcome.
        token: passed back to the ack sink with the outcome.
    """
    held, batch = partition.duplicates.held, _batch_of(records)
    is_held, rejection = bool(held.waiting), partition.write_error
    if rejection is None and not is_held:
        try:
            _check(partition, records)
        except StillLoadingError:
            is_held = True
        except StrandlineError as error:
            rejection = error
    if rejection is None and is_held:
        again = partial(append_atomic, partition, records, ack_sink=ack_sink, token=token)
        rejection = held.add(HeldAppend(again, ack_sink, token, int(batch.nbytes), len(records)))
        if rejection is None:
            return
    if rejection is not None:
        ack_sink.rejected(token, rejection)
        return
    first = partition.next_offset
    partition.append_arrow(batch, ack_sink=ack_sink, token=token)
    if partition.next_offset == first:
        return  # rejected
    for number, record in enumerate(records):
        if record.message_id is not None:
            partition.duplicates.note_message(record.message_id, Offset(first + number))


def _check(partition: Appendable, records: Sequence[AtomicRecord]) -> None:
    """Check the conditions of all records.

    Raises:
        StillLoadingError: the state that the conditions need is still read back.
        StrandlineError: a condition is not met.
    """
    window_ms, ids, subjects = partition.config.dedup_window_ms, set[str](), set[str]()
    for number, record in enumerate(records):
        if (message_id := record.message_id) is not None:
            known = partition.duplicates.find_message(message_id, window_ms)
            if message_id in ids or known is not None:
                raise RepeatedMessageError(f"message id {message_id!r} is there already")
            ids.add(message_id)
        if record.expected_last is not None:
            last = partition.next_offset
            if number or record.expected_last != last:
                raise WrongLastSequenceError(f"wrong last sequence: {last}")
        if record.expected_subject_last is not None:
            if record.subject in subjects:
                raise WrongLastSequenceError("the subject was written to in the same batch")
            partition.sequences.check(record.subject, record.expected_subject_last)
        subjects.add(record.subject)


def _batch_of(records: Sequence[AtomicRecord]) -> pa.RecordBatch:
    """Return records as columns."""
    values, subjects, keys, headers, *_ = zip(*records, strict=True)
    columns = {
        "value": pa.array(values, pa.binary()),
        "subject": pa.array(subjects, pa.string()).dictionary_encode(),
        "key": pa.array(keys, pa.binary()),
        "headers": pa.array(headers, HEADERS_TYPE),
    }
    return pa.RecordBatch.from_pydict(columns)
