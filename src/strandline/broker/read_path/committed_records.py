"""A partition's committed records, as readers see them.

The high watermark says how far records are committed, the transaction index which of them readers
may see, once a transaction has been used.

Rules: any thread may read, watch and look at offsets; the rest is for the loop's.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.broker.read_path.subject_retention import RetainedSearch, retention_of, search_of
from strandline.broker.read_path.subject_search import SubjectSearch
from strandline.broker.read_path.transaction_visibility import PartitionTransactions
from strandline.broker.read_path.visible import read_visible, stored_time
from strandline.clock import Clock
from strandline.config import StreamConfig
from strandline.errors import CorruptBatchError, OffsetOutOfRangeError
from strandline.record.visible import always_counts
from strandline.storage.log import Log
from strandline.types import LogId, Offset, PartitionName, TimestampNs


class Waiter(Protocol):
    """An event to set when there may be more to read: a ``threading.Event`` or an asyncio one."""

    def set(self) -> None:
        """There may be, or there will be none any more."""
        ...


class CorruptRanges(Protocol):
    """Gets batches that cannot be read here from another replica."""

    def __call__(self, first_offset: Offset, next_offset: Offset) -> None:
        """Repair a range, its end exclusive."""
        ...


class CommittedRecords:
    """The committed records of one partition.

    Args:
        name: the name of the partition.
        log: which holds them.
        log_id: the id of the log.
        config: the stream's settings.
        clock: for the age of records.
        corruption: gets reports of corrupt batches; None: only their readers see them.
        repair: is asked to repair them.
    """

    def __init__(
        self,
        name: PartitionName,
        log: Log,
        *,
        log_id: LogId,
        config: StreamConfig,
        clock: Clock,
        corruption: CorruptionReports | None,
        repair: CorruptRanges,
    ) -> None:
        self._name = name
        self._log_id = log_id
        self._config = config
        self._clock = clock
        self._corruption = corruption
        self._repair = repair
        self.log = log
        self.high_watermark = log.log_end_offset
        self.transaction_index: PartitionTransactions | None = None
        """None until a transaction is used."""
        self.retention = retention_of(log, config, clock)
        """Of a stream that keeps so many records of each subject."""
        self.waiters: list[Waiter] = []
        self._is_closed = False

    @property
    def last_stable_offset(self) -> Offset:
        """The end for readers: the high watermark, or the first open transaction below it."""
        index = self.transaction_index
        return self.high_watermark if index is None else index.last_stable_offset

    # What becomes of them

    def commit(self, offset: Offset) -> None:
        """Expose the records below ``offset`` and wake who waits for them."""
        assert self.high_watermark <= offset, "what is committed stays so"
        if self.transaction_index is not None:
            self.transaction_index.commit(offset)
        self.high_watermark = offset
        if self.waiters:
            self.wake()

    def move(self, high_watermark: Offset) -> None:
        """The log was cut or restarted: expose the records below ``high_watermark``.

        Raises:
            UnavailableError: the log cannot be read.
        """
        self.high_watermark = high_watermark
        index = self.transaction_index
        if index is not None and index.is_stale(high_watermark):
            self.keep_transaction_index(self.log.log_start_offset)
        elif index is not None:
            index.forget_from(self.log.log_end_offset)
            index.commit(high_watermark)
        self.wake()

    def reopen(self, log: Log, high_watermark: Offset) -> None:
        """Continue on a log that was reopened after a failure.

        Raises:
            UnavailableError: the log cannot be read.
        """
        self.log = log
        self.retention = retention_of(log, self._config, self._clock)
        self.high_watermark = high_watermark
        if self.transaction_index is not None:
            self.keep_transaction_index(log.log_start_offset)
        self.wake()

    def keep_transaction_index(self, start: Offset) -> None:
        """Look after transactions from now on; no batch below ``start`` belongs to one.

        Raises:
            UnavailableError: the log cannot be read.
        """
        if self.transaction_index is not None:
            self.transaction_index.close()
        index = PartitionTransactions(self.log, start=start, high_watermark=self.high_watermark)
        self.transaction_index = index
        if not self._is_closed:
            index.load(self._name, self.wake)

    def close(self) -> None:
        """Stop waiting readers; the log stays usable for those that are reading."""
        self._is_closed = True
        if self.transaction_index is not None:
            self.transaction_index.close()
        self.wake()

    def report_corruption(self, error: CorruptBatchError) -> None:
        """Report a corrupt batch; any thread."""
        if self._corruption is not None:
            self._corruption.report(self._name, self._log_id, error, repair=self._repair)

    # Reading

    def hidden_between(self, start: int, stop: int) -> int:
        """Count committed offsets of markers and aborted transactions; any thread."""
        index = self.transaction_index
        return 0 if index is None else index.hidden_between(start, stop)

    def read(
        self,
        offset: Offset,
        bytes_max: int,
        *,
        below: Offset | None = None,
        with_replaced: bool = False,
    ) -> pa.Buffer:
        """Whole batches from the one that holds ``offset``, up to the stable offset.

        Committed batches: none that a transaction in doubt or an aborted one has written, and no
        markers. The caller drops records below ``offset``.

        Args:
            offset: the offset of the first record wanted.
            bytes_max: about how many bytes to return, but at least one batch.
            below: only batches whose base offset is less than this; None: up to the stable offset.
            with_replaced: also records that per-subject retention no longer keeps.

        Returns:
            Batches in order; empty if there is nothing to see from ``offset`` to the stable offset.

        Raises:
            OffsetOutOfRangeError: below the log start offset or beyond the stable offset.
            CorruptBatchError: the batch at ``offset`` is corrupt; it says where the next one is.
            StillLoadingError: which transactions there are is still read back.
            EncryptionKeyError, DecryptionError: it is encrypted, and does not open.
        """
        log, index = self.log, self.transaction_index
        if index is not None:
            index.check_loaded()
        end = self.last_stable_offset
        if not log.log_start_offset <= offset <= end:
            name = "high watermark" if end == self.high_watermark else "first open transaction"
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self._name} is outside {log.log_start_offset} (log start) to "
                f"{end} ({name})"
            )
        stop = end if below is None else min(end, below)
        try:
            if self.retention is not None and not with_replaced:
                # Records behind ``stop`` may have replaced some before it.
                self.retention.catch_up(end)
                return self.retention.read(offset, bytes_max, below=stop)
            if index is not None:
                seen = index.readable(offset, bytes_max, below=stop)
            elif self._config.has_gaps:
                seen = read_visible(log, offset, bytes_max, below=stop, counts=always_counts)
            else:
                seen = log.read_dense(offset, bytes_max, below=stop).buffer
            return log.opened(seen)
        except CorruptBatchError as error:
            self.report_corruption(error)
            raise

    def find_runs(self, patterns: Sequence[str]) -> SubjectSearch | RetainedSearch | None:
        """Return who knows where records with matching subjects are; None: nobody; any thread."""
        return search_of(self.log if self.retention is None else self.retention, patterns)

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> Offset:
        """The first offset stored at or after a time; the stable offset if there is none."""
        return min(self.log.offset_for_timestamp(timestamp_ns), self.last_stable_offset)

    def stored_ns(self, offset: int) -> TimestampNs | None:
        """About when the record at an offset, or the next one, was stored; None if not readable."""
        end = self.last_stable_offset
        if offset >= end:
            return None
        return stored_time(self.log, max(offset, self.log.log_start_offset), below=end)

    # Waiting

    def watch(self, waiter: Waiter) -> None:
        """Set ``waiter``, on the loop, at every commit and change of state, until ``unwatch``.

        Look at what you wait for after this, for it may have come before.
        """
        self.waiters.append(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Set it no more."""
        self.waiters.remove(waiter)

    def wake(self) -> None:
        """Wake who waits for records; they leave the list meanwhile, on their own threads."""
        for waiter in tuple(self.waiters):
            waiter.set()
