"""A partition's committed records, as readers see them.

The high watermark is the end of the committed records. Once transactions are used, the transaction
index decides which of them readers may see.

Rules: any thread may read, watch and query offsets; everything else is for the loop's thread.
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
from strandline.record.visible import always_committed
from strandline.storage.log import Log
from strandline.types import LogId, Offset, PartitionName, TimestampNs


class Waiter(Protocol):
    """An event that is set when there may be more to read: of ``threading`` or of ``asyncio``."""

    def set(self) -> None:
        """Wake the waiting reader: there may be records, or there will be no more."""
        ...


class CorruptRanges(Protocol):
    """Repairs batches that cannot be read here, from another replica."""

    def __call__(self, first_offset: Offset, next_offset: Offset) -> None:
        """Repair the offsets from ``first_offset`` to ``next_offset`` (exclusive)."""
        ...


class CommittedRecords:
    """The committed records of one partition.

    Args:
        name: the name of the partition.
        log: the log that holds the records.
        log_id: the id of the log.
        config: the stream's settings.
        clock: gives the age of records.
        corruption: receives reports of corrupt batches; None: only their readers get the error.
        repair: called with the offsets of corrupt batches.
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
        """None until transactions are used."""
        self.retention = retention_of(log, config, clock)
        """Set if the stream keeps a number of records per subject."""
        self.waiters: list[Waiter] = []
        self._is_closed = False

    @property
    def last_stable_offset(self) -> Offset:
        """The end for readers: the high watermark, or the start of an open transaction below it."""
        index = self.transaction_index
        return self.high_watermark if index is None else index.last_stable_offset

    # Changes

    def commit(self, offset: Offset) -> None:
        """Expose the records below ``offset``, and wake the readers that wait for them."""
        assert self.high_watermark <= offset, "what is committed stays so"
        if self.transaction_index is not None:
            self.transaction_index.commit(offset)
        self.high_watermark = offset
        if self.waiters:
            self.wake()

    def move(self, high_watermark: Offset) -> None:
        """Expose the records below ``high_watermark``, after the log was truncated or restarted.

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
        """Start a transaction index; no batch below ``start`` belongs to a transaction.

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
        """End the waits of readers; reads in progress can still use the log."""
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
        """Count the committed offsets of markers and of aborted records in a range; any thread."""
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
        """Return whole batches from the one that holds ``offset``, up to the stable offset.

        Batches of markers and of aborted transactions are left out. The first batch may begin below
        ``offset``: the caller drops such records.

        Args:
            offset: the offset of the first record wanted.
            bytes_max: about how many bytes to return, but at least one batch.
            below: return only batches that begin below this offset; None: up to the stable offset.
            with_replaced: also return records that per-subject retention no longer keeps.

        Returns:
            Batches in order; empty if readers may see none of these records.

        Raises:
            OffsetOutOfRangeError: below the log start offset, or beyond the stable offset.
            CorruptBatchError: the batch at ``offset`` is corrupt; the error has the next offset.
            StillLoadingError: the transactions are being loaded.
            EncryptionKeyError, DecryptionError: the records are encrypted and cannot be decrypted.
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
                # Records at ``stop`` and after may have replaced records before it.
                self.retention.catch_up(end)
                return self.retention.read(offset, bytes_max, below=stop)
            if index is not None:
                seen = index.readable(offset, bytes_max, below=stop)
            elif self._config.has_gaps:
                seen = read_visible(
                    log, offset, bytes_max, below=stop, is_committed=always_committed
                )
            else:
                seen = log.read_dense(offset, bytes_max, below=stop).buffer
            return log.decrypted(seen)
        except CorruptBatchError as error:
            self.report_corruption(error)
            raise

    def find_runs(self, patterns: Sequence[str]) -> SubjectSearch | RetainedSearch | None:
        """Return a finder of records with matching subjects, None if it has none; any thread."""
        return search_of(self.log if self.retention is None else self.retention, patterns)

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> Offset:
        """Return the first offset stored at or after a time, else the stable offset."""
        return min(self.log.offset_for_timestamp(timestamp_ns), self.last_stable_offset)

    def stored_ns(self, offset: int) -> TimestampNs | None:
        """Return about when the record at or after an offset was stored; None if not readable."""
        end = self.last_stable_offset
        if offset >= end:
            return None
        return stored_time(self.log, max(offset, self.log.log_start_offset), below=end)

    # Waiting

    def watch(self, waiter: Waiter) -> None:
        """Set ``waiter``, on the loop, at every commit and change of state, until ``unwatch``.

        Check the awaited condition again after this call: it may have become true just before.
        """
        self.waiters.append(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Stop setting ``waiter``."""
        self.waiters.remove(waiter)

    def wake(self) -> None:
        """Wake all waiting readers; their threads may call ``unwatch`` meanwhile."""
        for waiter in tuple(self.waiters):
            waiter.set()
