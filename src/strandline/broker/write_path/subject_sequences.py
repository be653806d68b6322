"""The last sequence of each subject of a partition, for publishes that expect one.

The partition's retention knows the committed records, this module the records accepted since;
together they cover the whole log. Until both are complete, publishes that expect a sequence are
held.

Rules: loop thread, on which only little is read. ``set`` is called at every commit while an append
is held.
is held.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import pyarrow as pa

from strandline.broker.read_path.committed_records import Waiter
from strandline.broker.read_path.subject_retention import SubjectRetention
from strandline.broker.write_path.duplicates import HeldAppends
from strandline.broker.write_path.pending import AckSink, Chunk, PendingPurge
from strandline.errors import (
    InvalidRequestError,
    StillLoadingError,
    StrandlineError,
    WrongLastSequenceError,
)
from strandline.record.codec import Headers
from strandline.storage.subject_history import ROLLUP_HEADER
from strandline.types import Offset

logger = logging.getLogger(__name__)

NOTED_MAX: Final = 4_096
"""If more accepted records are noted, the committed ones among them are moved to the retention."""


class _SequencedPartition(Protocol):
    """The part of a partition that ``SubjectSequences`` uses."""

    next_offset: Offset

    @property
    def retention(self) -> SubjectRetention | None: ...

    @property
    def write_error(self) -> StrandlineError | None: ...

    def add_chunk(self, chunk: Chunk, ack_sink: AckSink, token: object) -> None: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def last_stable_offset(self) -> Offset: ...

    def watch(self, waiter: Waiter) -> None: ...

    def unwatch(self, waiter: Waiter) -> None: ...


class SubjectSequences:
    """The last sequence of each subject of one partition.

    Args:
        partition: its retention knows the committed records.
        held: the appends that wait.
    """

    def __init__(self, partition: _SequencedPartition, held: HeldAppends) -> None:
        self._partition = partition
        self._held = held
        self._accepted: dict[str, Sequence[int]] = {}
        """The offsets, by subject, of accepted records that retention may not have applied yet."""
        self._needed = int(partition.log_end_offset)
        """Retention must have applied the log up to here; ``_accepted`` has only later records."""
        self._noted, self._noted_max = 0, NOTED_MAX
        self._is_watching = False
        self._task: asyncio.Task[None] | None = None

    def check_transactional(self) -> None:
        """Reject a transaction: until its end it is unknown which records it replaces.

        Raises:
            InvalidRequestError: the stream limits its records per subject.
        """
        if self._partition.retention is not None:
            raise InvalidRequestError(
                "a stream with max_records_per_subject takes no transactions; append without one, "
                "or create the stream without that limit"
            )

    def check(self, subject: str, expected: int) -> None:
        """Check that the last sequence of a subject is the one that a publish expects.

        Raises:
            StillLoadingError: the last sequence is being loaded; held appends are released after
                that.
            WrongLastSequenceError: the last sequence is another.
        """
        retention = self._partition.retention
        if retention is None or retention.position < self._needed:
            self.set()
        if retention is None or retention.position < self._needed:
            raise StillLoadingError("the last sequences of subjects are read back; retry")
        last = self._accepted.get(subject, (-1,))[-1]
        if last < retention.position:  # retention has applied it, and may have removed it since
            last = retention.last(subject)
        if last < retention.start:
            last = -1
        if last + 1 != expected:
            raise WrongLastSequenceError(f"wrong last sequence: {last + 1}")

    def note(self, subjects: Iterable[str], offset: int, headers: Headers | None = None) -> None:
        """Note accepted records from ``offset`` on, all with the same headers."""
        if self._partition.retention is None:
            return
        number = 0
        for number, subject in enumerate(subjects, 1):
            self._accepted[subject] = (*self._accepted.get(subject, ()), offset + number - 1)
        self._noted += number
        if headers and any(name == ROLLUP_HEADER for name, _ in headers):
            self.note_barrier(offset)
        if self._noted > self._noted_max:
            self.set()

    def note_batch(self, batch: pa.RecordBatch, offset: int, default_subject: str) -> None:
        """Note the rows of an accepted Arrow batch."""
        if self._partition.retention is None:
            return
        subjects = [default_subject] * batch.num_rows
        if "subject" in batch.schema.names:
            subjects = [each or default_subject for each in batch.column("subject").to_pylist()]
        self.note(subjects, offset)
        if "headers" in batch.schema.names:
            self.note_barrier(offset + batch.num_rows - 1)  # a header may be a rollup

    def note_barrier(self, offset: int) -> None:
        """Note a record that may remove records of other subjects."""
        self._needed = max(self._needed, offset + 1)

    def purge(self, pattern: str, below: Offset, *, ack_sink: AckSink, token: object) -> None:
        """Remove the records below an offset that match a pattern; acknowledged when committed."""
        partition = self._partition
        if partition.write_error is not None:
            ack_sink.rejected(token, partition.write_error)
            return
        self.note_barrier(partition.next_offset)
        partition.add_chunk(PendingPurge(partition.next_offset, pattern, below), ack_sink, token)

    def start_over(self, offset: int) -> None:
        """Forget all noted records: the records before ``offset`` are read from the log."""
        self._accepted.clear()
        self._needed = offset

    def forget_from(self, offset: int) -> None:
        """Forget records at ``offset`` and after: they were accepted but not stored."""
        self._keep(lambda each: each < offset)
        self._needed = min(self._needed, offset)

    def _keep(self, is_kept: Callable[[int], bool]) -> None:
        kept = {name: tuple(filter(is_kept, found)) for name, found in self._accepted.items()}
        self._accepted = {name: found for name, found in kept.items() if found}

    def set(self) -> None:
        """Apply committed records, on a thread if there are many, then release held appends."""
        retention, end = self._partition.retention, self._partition.last_stable_offset
        if retention is None or self._task is not None:
            return
        if self._applies_inline(retention, end):
            self._applied(retention)
            return
        self._task = asyncio.create_task(self._apply(retention, end), name="subject-sequences")

    def _applies_inline(self, retention: SubjectRetention, end: Offset) -> bool:
        try:
            return retention.is_current(end)
        except StrandlineError:
            return False  # the thread gets the same error, and rejects the held appends

    async def _apply(self, retention: SubjectRetention, end: Offset) -> None:
        try:
            await asyncio.to_thread(retention.catch_up, end)
        except StrandlineError as error:
            logger.warning("the last sequences of subjects cannot be loaded: %s", error)
            self._held.reject(error)
        finally:
            self._task = None
        self._applied(retention)

    def _applied(self, retention: SubjectRetention) -> None:
        is_missing = retention.position < self._needed
        if is_missing and not self._is_watching:
            self._partition.watch(self)  # go on when the rest is committed
        elif not is_missing and self._is_watching:
            self._partition.unwatch(self)
        self._is_watching = is_missing
        position = retention.position
        self._keep(lambda each: each >= position)
        self._noted = sum(map(len, self._accepted.values()))
        self._noted_max = max(NOTED_MAX, 2 * self._noted)
        if not is_missing and self._held.waiting:
            asyncio.get_running_loop().call_soon(self._held.release)
