"""Records of a partition as JetStream's messages; on threads, since files are read.

Rules: only committed records are visible, up to the last stable offset. Subjects are looked up in
    the
subject index. Where a segment has no index, a search reads records. It ends with an error after
``SEARCH_BYTES_MAX`` without a match, so that no request costs more than that. Records are counted
by ``state``.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from strandline.api.tickets import ReadRequest
from strandline.broker.read_path.subject_retention import RetainedSearch, SubjectRetention
from strandline.broker.read_path.subject_search import SubjectSearch, Tally
from strandline.broker.write_path.partition import Partition
from strandline.errors import InvalidSubjectError, OffsetOutOfRangeError
from strandline.reading.cursor import Cursor, PartitionRange
from strandline.reading.descending import DescendingCursor
from strandline.record.batch import read_header
from strandline.record.codec import decode_batches, decode_record
from strandline.record.decode import walk
from strandline.record.subjects import has_wildcard, subject_matches, validate_subject
from strandline.servers.nats.jetstream.errors import (
    BAD_REQUEST,
    UNAVAILABLE,
    ApiRejection,
    detailed,
    reject,
)
from strandline.servers.nats.jetstream.messages import (
    COLUMNS,
    MessageRun,
    StoredMessage,
    header_block,
    joined,
    run_of,
)
from strandline.types import Offset

BATCH_BYTES: Final = 2 << 20
FIRST_BYTES: Final = 8 << 10
"""How much to read to find one record; at least its batch is read."""
NEIGHBOUR_OFFSETS: Final = 8
"""Records at most this far apart are read together, including those between them."""
SEARCH_BYTES_MAX: Final = 256 << 20
SUBJECTS_PER_PAGE: Final = 100_000
PORTION_BYTES: Final = 256 << 10
PORTIONS: Final = 64
"""How many portions one call reads if no record in them matches."""


def check_pattern(pattern: str) -> None:
    """Reject a text that is neither a subject nor a pattern of subjects.

    Raises:
        ApiRejection: the text is neither.
    """
    try:
        validate_subject(pattern, wildcards=True)
    except InvalidSubjectError as error:
        reject(BAD_REQUEST, error.message)


def message_at(partition: Partition, offset: int) -> StoredMessage | None:
    """Return the record at an offset; None if there is none or it was removed."""
    retention, end = partition.retention, partition.last_stable_offset
    if not partition.log_start_offset <= offset < end:
        return None
    if retention is not None:
        retention.catch_up(end)
    try:
        # Reading a single record is quicker than filtering its batch by retention.
        at = Offset(offset)
        buffer = partition.committed.read(at, 1, below=Offset(at + 1), with_replaced=True)
    except OffsetOutOfRangeError:
        if offset >= partition.log_start_offset:
            raise
        return None  # it has just been deleted
    record = decode_record(buffer, offset)
    if record is None:
        return None
    if retention is not None and not retention.is_kept(record.subject, offset):
        return None
    block = header_block(record.key, record.headers)
    time_ns, value = record.timestamp_ns, record.value or b""
    return StoredMessage(offset + 1, record.subject, time_ns, block, value)


def is_at_hand(partition: Partition, offset: int) -> bool:
    """Return whether ``message_at`` returns at once, without waiting for a device."""
    retention, end = partition.retention, partition.last_stable_offset
    if not partition.log_start_offset <= offset < end:
        return True
    is_current = retention is None or retention.is_current(end)
    return is_current and partition.log.is_at_hand(offset)


def last_at_hand(partition: Partition, subject: str) -> int | None:
    """Return the offset of a subject's newest record if it is known at once; -1 if there is none.

    Returns None if it is not known at once, or if the subject is a pattern.
    """
    retention = partition.retention
    if retention is None or has_wildcard(subject):
        return None
    return retention.last(subject) if retention.is_current(partition.last_stable_offset) else None


def messages_at(partition: Partition, offsets: list[int]) -> dict[int, StoredMessage | None]:
    """Read the records at some offsets: neighbours together, and each batch once.

    Returns:
        Records by sequence; None for a record that does not exist or was removed. The first offset
        is always answered, the others as long as at most ``PORTION_BYTES`` were read.
    """
    found: dict[int, StoredMessage | None] = {}
    wanted, size = sorted(offsets), 0
    first = wanted.index(offsets[0])
    for run in _neighbours([*wanted[first:], *wanted[:first]]):
        while size < PORTION_BYTES and (left := [each for each in run if each + 1 not in found]):
            # A single record may be in a batch of many; after it nothing is wanted, so ask for 1
            # byte, that is, for its batch only.
            bytes_max = PORTION_BYTES - size if len(left) > 1 else 1
            size += _read_run(partition, left, bytes_max, wanted=wanted, found=found)
    return found


def _neighbours(offsets: list[int]) -> list[list[int]]:
    """Divide offsets into runs of neighbours, which are read together."""
    runs: list[list[int]] = []
    for each in offsets:
        if runs and 0 < each - runs[-1][-1] <= NEIGHBOUR_OFFSETS:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _read_run(
    partition: Partition,
    run: list[int],
    bytes_max: int,
    *,
    wanted: list[int],
    found: dict[int, StoredMessage | None],
) -> int:
    """Read batches from the first offset of a run on, and add wanted records to ``found``.

    Returns:
        The number of bytes read.
    """
    start, stop = run[0], run[-1] + 1
    if not partition.log_start_offset <= start < partition.last_stable_offset:
        found[start + 1] = None
        return 0
    try:
        buffer = partition.read(Offset(start), bytes_max, below=Offset(stop))
    except OffsetOutOfRangeError:
        if start >= partition.log_start_offset:
            raise
        return 0  # it has just been deleted
    for batch in decode_batches(buffer, columns=COLUMNS):
        is_wanted = np.isin(batch.column("offset").to_numpy(), wanted)
        messages = run_of(batch.take(np.flatnonzero(is_wanted))).messages()
        found |= {message.sequence: message for message in messages}
    end, view = stop, memoryview(buffer)
    if buffer.size:
        end = read_header(view, walk(view)[-1][0]).next_offset
    found |= {each + 1: None for each in run if each < end and each + 1 not in found}
    return int(buffer.size)


def next_message(partition: Partition, offset: int, pattern: str = ">") -> StoredMessage | None:
    """Return the first record from an offset on whose subject matches.

    Raises:
        ApiRejection: no match was found within the limit of bytes for one request.
    """
    start, end = max(offset, partition.log_start_offset), partition.last_stable_offset
    if pattern == ">":
        return _first(partition, start, end) if start < end else None
    if start >= end:
        return None
    found = _search(open_cursor(partition, start, end, columns=["offset"], pattern=pattern))
    return None if found is None else message_at(partition, found)


def last_message(partition: Partition, pattern: str = ">") -> StoredMessage | None:
    """Return the newest record whose subject matches.

    Raises:
        ApiRejection: no match was found within the limit of bytes for one request.
    """
    if partition.retention is not None:
        return _last_kept(partition, partition.retention, pattern)
    if pattern == ">":
        newest = newest_offset(partition)
        return None if newest is None else message_at(partition, newest)
    search = partition.find_runs(pattern)
    start, end = partition.log_start_offset, int(partition.last_stable_offset)
    while search is not None and start < end:
        run = search.last_run(start, end)
        found: int | None = run.start
        if run.stop - run.start > 1:  # this range is not indexed
            found = _newest_between(partition, run.start, run.stop, pattern=pattern)
        message = None if found is None or run.start == run.stop else message_at(partition, found)
        if message is not None:
            return message  # if it is None, the record's transaction was aborted
        end = run.start
    return None


def _last_kept(
    partition: Partition, retention: SubjectRetention, pattern: str
) -> StoredMessage | None:
    """Return the newest retained record of the matching subjects."""
    search, before = RetainedSearch(retention, (pattern,)), -1
    while True:
        run = search.last_run(partition.log_start_offset, partition.last_stable_offset)
        if run.start in (run.stop, before):
            return None
        message = message_at(partition, run.start)
        if message is not None:
            return message
        before = run.start  # this record has just been replaced or purged: search once more


def newest_offset(partition: Partition) -> Offset | None:
    """Return the offset of the newest record; None if there is none."""
    start, end = partition.log_start_offset, partition.last_stable_offset
    if partition.retention is not None:
        run = RetainedSearch(partition.retention, ()).last_run(start, end)
        return Offset(run.start) if run.start < run.stop else None
    return _newest_between(partition, start, end) if start < end else None


def _newest_between(
    partition: Partition, start: int, stop: int, *, pattern: str | None = None
) -> Offset | None:
    """Return the offset of the newest matching record in a range, by reading records."""
    request = _request(partition, ["offset"], pattern)
    extent = PartitionRange(partition, Offset(start), Offset(stop), may_move=True)
    return _search(DescendingCursor(request, extent, names=["offset"]))


def _request(
    partition: Partition,
    columns: list[str],
    pattern: str | None,
    *,
    batch_bytes: int | None = None,
) -> ReadRequest:
    return ReadRequest(
        stream=partition.name.stream,
        columns=columns,
        subject=pattern,
        batch_bytes=batch_bytes or BATCH_BYTES,
    )


def open_cursor(
    partition: Partition,
    start: int,
    stop: int,
    *,
    columns: list[str],
    pattern: str | None = None,
    batch_bytes: int | None = None,
) -> Cursor[Partition]:
    """Return a cursor over a range of offsets."""
    extent = PartitionRange(partition, Offset(start), Offset(stop), may_move=True)
    request = _request(partition, columns, pattern, batch_bytes=batch_bytes)
    return Cursor(request, extent, names=columns)


def _first(partition: Partition, start: int, stop: int) -> StoredMessage | None:
    """Return the first record in a range of offsets."""
    cursor = open_cursor(partition, start, stop, columns=COLUMNS, batch_bytes=FIRST_BYTES)
    while cursor.has_more:
        for batch, _ in cursor.read():
            return next(run_of(batch.slice(0, 1)).messages())
    return None


def _search(cursor: Cursor[Partition]) -> Offset | None:
    """Return the offset of the first record that a filtered read returns."""
    for _ in range(SEARCH_BYTES_MAX // BATCH_BYTES):
        if not cursor.has_more:
            return None
        for batch, _ in cursor.read():
            return Offset(batch.column(0)[0].as_py())
    raise _too_much(
        f"no such record among {SEARCH_BYTES_MAX >> 20} MiB, the most that one request reads"
    )


def read_some(
    partition: Partition, offset: int, search: SubjectSearch | None
) -> tuple[MessageRun, int]:
    """Read some records from an offset on whose subjects match a pattern.

    Args:
        partition: the partition.
        offset: the offset of the first record, or one in a gap before it.
        search: finds matching records; None: all records match.

    Returns:
        The records, and the offset at which to continue. There may be none: one call reads a
        limited number of portions.
    """
    start, end = max(offset, partition.log_start_offset), partition.last_stable_offset
    patterns = () if search is None else search.patterns
    if start < end and search is not None and patterns:
        start = search.next_run(start, end).start
    if start >= end:
        return MessageRun.of(()), start
    extent = PartitionRange(partition, Offset(start), end, may_move=True)
    request = ReadRequest(stream=partition.name.stream, columns=COLUMNS, batch_bytes=PORTION_BYTES)
    cursor = Cursor(request, extent, names=COLUMNS)
    for _ in range(PORTIONS):
        if not cursor.has_more:
            break
        found = [run_of(matching(batch, patterns)) for batch, _ in cursor.read()]
        run = joined(found)
        if run.sequences:
            return run, cursor.position
    return MessageRun.of(()), cursor.position


def count_matching(partition: Partition, start: int, end: int, *, patterns: tuple[str, ...]) -> int:
    """Count the records from ``start`` up to ``end`` whose subjects match a pattern."""
    search, first = partition.find_runs(*patterns), max(start, partition.log_start_offset)
    if first >= end or search is None:
        return 0
    count, uncovered = search.count(first, end)
    for extent in uncovered:
        cursor = open_cursor(partition, *extent, columns=["offset", "subject"])
        while cursor.has_more:
            count += sum(matching(batch, patterns).num_rows for batch, _ in cursor.read())
    return count


def matching(batch: pa.RecordBatch, patterns: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows of a batch whose ``subject`` matches one of the patterns."""
    if not patterns or ">" in patterns:
        return batch
    subjects = batch.column("subject")
    found = [
        any(subject_matches(pattern, subject) for pattern in patterns)
        for subject in subjects.dictionary.to_pylist()
    ]
    if all(found):
        return batch
    return batch.filter(pa.array(found, pa.bool_()).take(subjects.indices))


def tally_subjects(
    partition: Partition, *patterns: str, stop: int | None = None
) -> dict[str, Tally]:
    """Return the tallies of all subjects that match one of the patterns.

    Args:
        partition: the partition.
        patterns: the patterns of subjects.
        stop: only records below this offset count; None: all.

    Raises:
        ApiRejection: there is no index, and more would have to be read than the limit.
    """
    search, budget = partition.find_runs(*patterns), SEARCH_BYTES_MAX // BATCH_BYTES
    if search is None:
        return {}
    end = partition.last_stable_offset if stop is None else stop
    tallies, uncovered = search.tally(partition.log_start_offset, end)
    for extent in uncovered:
        cursor = open_cursor(partition, *extent, columns=["offset", "subject"])
        while cursor.has_more:
            budget -= 1
            if budget < 0:
                raise _too_much(f"more than {SEARCH_BYTES_MAX >> 20} MiB of records")
            for batch, _ in cursor.read():
                _tally_batch(tallies, matching(batch, patterns))
    return tallies


def _tally_batch(tallies: dict[str, Tally], batch: pa.RecordBatch) -> None:
    """Add the records of a batch, which may precede or follow those already counted."""
    offsets, subjects = (column.to_pylist() for column in batch.columns)
    for offset, subject in zip(offsets, subjects, strict=True):
        before = tallies.get(subject, Tally(0, -1))
        tallies[subject] = Tally(before.records + 1, max(before.last, offset))


def _too_much(what: str) -> ApiRejection:
    return ApiRejection(detailed(UNAVAILABLE, f"{what}, and they have no subject index"))
