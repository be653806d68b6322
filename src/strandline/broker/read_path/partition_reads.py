"""A partition as readers see it: what it holds, how far they may go, and waking them.

Threads: any may use ``read``, ``watch``, ``offset_for_timestamp`` and the offsets; the rest is for
the loop's. Must not know how records come in.
"""

from abc import ABC, abstractmethod

import pyarrow as pa

from strandline.broker.read_path.transaction_visibility import PartitionTransactions
from strandline.broker.read_path.visible import read_visible
from strandline.broker.write_path.admission import Admission, Waiter
from strandline.config import StreamConfig
from strandline.errors import CorruptBatchError, OffsetOutOfRangeError, StrandlineError
from strandline.record.batch import HEADER_BYTES, Attributes, BatchHeader
from strandline.record.visible import always_counts
from strandline.storage.log import Log
from strandline.storage.scan import header_at
from strandline.types import Offset, PartitionName, TimestampNs


class PartitionReads(ABC):
    """The read side of a partition."""

    def __init__(
        self, name: PartitionName, config: StreamConfig, log: Log, *, admission: Admission
    ) -> None:
        self.name = name
        self.config = config
        self.log = log
        self.transaction_index: PartitionTransactions | None = None
        """None as long as nobody has used transactions."""
        self.high_watermark = log.log_end_offset
        self._admission = admission
        self._waiters: list[Waiter] = []
        self._closed_by: StrandlineError | None = None
        self.addresses: tuple[str, ...] = ()
        """In a cluster: where Flight reads it, the leader first."""
        self.leader_address = ""
        """In a cluster: Flight of its leader, if it has one."""
        self.in_sync_addresses: tuple[str, ...] = ()
        """In a cluster: Flight of the in-sync replicas in service."""
        self.remote_error: StrandlineError | None = None
        """In a cluster: why it cannot be read here at all; None: it can."""
        self.is_led = True
        """Whether this broker leads it, as far as the metadata here says."""

    @property
    def log_start_offset(self) -> Offset:
        """Offset of the first record kept."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset after the last record in the log, committed or not."""
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> Offset:
        """The end for readers: the high watermark, or the first open transaction below it."""
        return (
            self.high_watermark
            if self.transaction_index is None
            else self.transaction_index.last_stable_offset
        )

    @property
    def hidden_offsets(self) -> int:
        """Offsets below the high watermark that no reader ever sees anything at."""
        return self.hidden_between(self.log_start_offset, self.high_watermark)

    def hidden_between(self, start: int, stop: int) -> int:
        """Count committed offsets of markers and aborted transactions; any thread."""
        return (
            0
            if self.transaction_index is None
            else self.transaction_index.hidden_between(start, stop)
        )

    @property
    def closed(self) -> bool:
        """Whether it takes no more records: the stream was deleted or the broker stops."""
        return self._closed_by is not None

    @property
    def closed_by(self) -> StrandlineError | None:
        """Why it is closed."""
        return self._closed_by

    def read(self, offset: Offset, bytes_max: int) -> pa.Buffer:
        """Whole batches from the one that holds ``offset``, up to the stable offset.

        Committed batches: none that a transaction in doubt or an aborted one has written, and no
        markers. The caller drops records below ``offset``.

        Returns:
            Batches in order; empty if there is nothing to see from ``offset`` to the stable offset.

        Raises:
            OffsetOutOfRangeError: below the log start offset or beyond the stable offset.
            CorruptBatchError: the batch at ``offset`` is corrupt; it says where the next one is.
            StillLoadingError: which transactions there are is still read back.
            EncryptionKeyError, DecryptionError: it is encrypted, and does not open.
        """
        if self.transaction_index is not None:
            self.transaction_index.check_loaded()
        end = self.last_stable_offset
        if not self.log_start_offset <= offset <= end:
            name = "high watermark" if end == self.high_watermark else "first open transaction"
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.name} is outside {self.log_start_offset} (log start) to "
                f"{end} ({name})"
            )
        try:
            if self.transaction_index is not None:
                return self.log.opened(
                    self.transaction_index.readable(offset, bytes_max, below=end)
                )
            if self.config.compact:
                seen = read_visible(self.log, offset, bytes_max, below=end, counts=always_counts)
                return self.log.opened(seen)
            return self.log.opened(self.log.read_dense(offset, bytes_max, below=end).buffer)
        except CorruptBatchError as error:
            self.report_corruption(error)
            raise

    def counts(self, header: BatchHeader) -> bool:
        """Whether the records of a batch below the stable offset do; any thread."""
        if self.transaction_index is None or not header.attributes & Attributes.TRANSACTIONAL:
            return True
        return self.transaction_index.counts(header.producer_id, header.base_offset)

    @abstractmethod
    def report_corruption(self, error: CorruptBatchError) -> None:
        """Report what was met while reading the log."""

    def watch(self, waiter: Waiter) -> None:
        """Set ``waiter``, on the loop, at every commit and change of state, until ``unwatch``.

        Look at what you wait for after this, for it may have come before.
        """
        self._waiters.append(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Set it no more."""
        self._waiters.remove(waiter)

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> Offset:
        """The first offset stored at or after a time; the stable offset if there is none."""
        return min(self.log.offset_for_timestamp(timestamp_ns), self.last_stable_offset)

    def stored_ns(self, offset: int) -> TimestampNs | None:
        """About when the record at an offset, or the next one, was stored: its batch's time.

        Returns:
            None if there is nothing to read from there, or not now.
        """
        end = self.last_stable_offset
        if offset >= end:
            return None
        begin = max(offset, self.log_start_offset)
        try:
            found = self.log.read(begin, HEADER_BYTES, below=end, verify=False).buffer
        except StrandlineError:
            return None  # whoever reads it is told why
        header = header_at(found, 0)
        return None if header is None else header.first_timestamp

    def _wake_waiters(self) -> None:
        """Wake who waits for records; they leave the list meanwhile, on their own threads."""
        for waiter in tuple(self._waiters):
            waiter.set()
