"""Records that are stored all or not at all.

Rules: the conditions of all records are checked against the state before the first record. Then the
records become one batch, and so one entry of the journal.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from strandline.broker.write_path.admission import RECORD_OVERHEAD_BYTES, Admission
from strandline.broker.write_path.duplicates import Duplicates, HeldAppend
from strandline.broker.write_path.pending import AckSink, Chunk, PendingRecords, extra_bytes
from strandline.broker.write_path.schema_check import SchemaCheck
from strandline.broker.write_path.subject_sequences import SubjectSequences
from strandline.config import StreamConfig
from strandline.errors import (
    RepeatedMessageError,
    StillLoadingError,
    StrandlineError,
    WrongLastSequenceError,
)
from strandline.record.codec import Headers
from strandline.types import Offset, PartitionName


class AtomicRecord(NamedTuple):
    """A record with its subject, id and conditions."""

    value: bytes | None
    subject: str
    key: bytes | None = None
    headers: Headers | None = None
    message_id: str | None = None
    expected_last: int | None = None
    expected_subject_last: int | None = None


class Appendable(Protocol):
    """The part of a partition that an atomic append needs."""

    name: PartitionName
    config: StreamConfig
    duplicates: Duplicates
    sequences: SubjectSequences
    next_offset: Offset
    schema_check: SchemaCheck | None

    @property
    def write_error(self) -> StrandlineError | None:
        """The error that rejects records now; None while they are accepted."""
        ...

    def add_chunk(self, chunk: Chunk, ack_sink: AckSink, token: object) -> None:
        """Accept a whole batch that was checked."""
        ...


def append_atomic(
    partition: Appendable,
    records: Sequence[AtomicRecord],
    admission: Admission[Any],
    *,
    ack_sink: AckSink,
    token: object,
) -> None:
    """Accept records that are stored all or not at all; one ack has the offset of the first.

    Args:
        partition: the partition of the records.
        records: in order; at least one, and at most as many as one batch can have.
        admission: has limits and counters.
        ack_sink: receives the outcome.
        token: passed back to the ack sink with the outcome.
    """
    held, chunk = partition.duplicates.held, PendingRecords(partition.next_offset)
    largest = _fill(chunk, records)
    is_held, rejection = bool(held.waiting), partition.write_error
    if rejection is None and not is_held:
        try:
            _check(partition, records)
        except StillLoadingError:
            is_held = True
        except StrandlineError as error:
            rejection = error
    rejection = rejection or admission.record_error(largest) or admission.size_error(chunk.size)
    if rejection is None and partition.schema_check is not None:
        rejection = partition.schema_check.values([record.value for record in records])
    if rejection is None and is_held:
        again = partial(
            append_atomic, partition, records, admission, ack_sink=ack_sink, token=token
        )
        rejection = held.add(HeldAppend(again, ack_sink, token, chunk.size, len(records)))
        if rejection is None:
            return
    if rejection is not None:
        stream = partition.name.stream
        admission.reject(rejection, ack_sink, token, stream=stream, records=len(records))
        return
    for number, record in enumerate(records):
        offset = Offset(chunk.base_offset + number)
        partition.sequences.note((record.subject,), offset, record.headers)
        if record.message_id is not None:
            partition.duplicates.note_message(record.message_id, offset)
    partition.add_chunk(chunk, ack_sink, token)


def _fill(chunk: PendingRecords, records: Sequence[AtomicRecord]) -> int:
    """Add records to a pending batch; return the size of the largest record."""
    values, subjects, keys, headers, *_ = map(list, zip(*records, strict=True))
    chunk.values, chunk.subjects, chunk.count = values, subjects, len(values)
    chunk.keys = keys if keys.count(None) < len(keys) else None
    chunk.headers = headers if any(headers) else None
    sizes = [
        RECORD_OVERHEAD_BYTES + len(value or b"") + extra_bytes(key, pairs)
        for value, key, pairs in zip(values, keys, headers, strict=True)
    ]
    chunk.size = sum(sizes)
    return max(sizes)


def _check(partition: Appendable, records: Sequence[AtomicRecord]) -> None:
    """Check the conditions of all records.

    Raises:
        StillLoadingError: the state that the conditions need is being loaded.
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
