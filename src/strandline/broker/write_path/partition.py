"""A partition as its leader sees it: accept records, write them in the turn, expose what is safe.

In a cluster a replica is attached to it, which says whether records are accepted and how far they
are committed; without one, what is synced here is committed. ``partition_appends`` accepts,
``partition_reads`` is for readers.

Invariants:
- ``log_start_offset <= high_watermark <= log_end_offset <= next_offset``;
- ``next_offset - log_end_offset`` records are pending, in the order in which they were accepted;
- a record below the high watermark is durable as the stream promises and never changes.

Threads: everything runs on the loop's thread, but what readers use.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from strandline.broker.read_path.transaction_visibility import (
    Noted,
    PartitionTransactions,
    has_transactions,
)
from strandline.broker.replica_hooks import ReplicaHooks
from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.log_replay import LogReplay
from strandline.broker.write_path.partition_appends import RECORD_OVERHEAD_BYTES, PartitionAppends
from strandline.broker.write_path.pending import Chunk, reject_waiting
from strandline.broker.write_path.producer_state import NotedMeanwhile, ProducerStates, note_batches
from strandline.config import StreamConfig
from strandline.errors import CorruptBatchError, StillLoadingError, StrandlineError
from strandline.record.batch import Buffer, Extent
from strandline.record.codec import Stamp
from strandline.record.sealed import Sealer
from strandline.storage.log import Log
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName, TimestampNs

logger = logging.getLogger(__name__)

STAMP_AHEAD_NS_MAX = 1_000_000_000
"""How far timestamps may run ahead of a clock that was set back; beyond that they go back too."""

__all__ = ["RECORD_OVERHEAD_BYTES", "Admission", "Partition"]

STAMPS_KEPT: Final = 64
RETRY_S: Final = 1.0


class Partition(PartitionAppends):
    """One partition, led by this broker."""

    def __init__(
        self,
        name: PartitionName,
        config: StreamConfig,
        log: Log,
        *,
        log_id: LogId,
        leader_epoch: LeaderEpoch,
        admission: Admission,
        sealer: Sealer | None = None,
    ) -> None:
        super().__init__(name, config, log, admission=admission)
        log.sealer = sealer
        self.log_id = log_id
        self.leader_epoch = leader_epoch
        self._led_from: Offset | None = Offset(0)
        """Where the log ended when this broker began to lead; None: it does not lead."""
        self._index_replay: LogReplay[list[Noted]] = LogReplay(
            self._take_transaction_index,
            what=f"transactions of {name}",
            failed=self._transaction_index_failed,
        )
        self._last_timestamp = TimestampNs(0)
        self._stamps: deque[tuple[Offset, Offset, TimestampNs]] = deque(maxlen=STAMPS_KEPT)
        """Offsets, half-open, and time of the batches written last."""

    @property
    def has_copies(self) -> bool:
        """Whether other brokers keep the same records."""
        return self.replica_hooks is not None and self.config.replicas > 1

    @property
    def knows_end(self) -> bool:
        """Whether all that may have been acknowledged is known to be committed here; any thread.

        Also where another broker leads: what is known here is all that can be had here.
        """
        if self.transaction_index is not None and self.transaction_index.is_loading:
            return False
        led_from = self._led_from
        return not self.is_led or (led_from is not None and self.high_watermark >= led_from)

    # The turn

    def _mark_dirty(self) -> None:
        self._is_dirty = True
        self._admission.dirty.append(self)
        self._admission.wake()

    @property
    def pending(self) -> Sequence[Chunk]:
        """What was accepted and no turn has taken yet."""
        return self._chunks

    def take(self, bytes_max: int, records_max: int) -> tuple[list[Chunk], int, int]:
        """The chunks for this turn, at least one, up to so many bytes and records.

        Returns:
            The chunks, how many bytes they have and how many records.
        """
        taken, size, records = 0, 0, 0
        for chunk in self._chunks:
            next_size, next_records = size + chunk.size, records + chunk.count
            if taken and (next_size > bytes_max or next_records > records_max):
                break
            taken, size, records = taken + 1, next_size, next_records
        chunks, self._chunks = self._chunks[:taken], self._chunks[taken:]
        if not self._chunks:
            self._open = None
            self._is_dirty = False
        self._admission.pending_bytes -= size
        return chunks, size, records

    def write(self, chunk: Chunk, now_ns: TimestampNs) -> bytearray:
        """Encode a chunk, encrypt it if the stream is, and append it to the log, unsynced.

        Returns:
            The batch for the journal.

        Raises:
            DiskFullError: nothing of the chunk was kept.
            LogPoisonedError: a write failed.
        """
        if 0 < self._last_timestamp - now_ns <= STAMP_AHEAD_NS_MAX:
            now_ns = self._last_timestamp  # a clock that was set back a little
        self._last_timestamp = now_ns
        stamp = Stamp(chunk.base_offset, self.leader_epoch, now_ns, self.config.compression)
        batch = chunk.encode(stamp)
        if self.log.sealer is not None:
            batch = self.log.sealer.seal(batch)
        base = chunk.base_offset
        extent = Extent(base, Offset(base + chunk.count), len(batch), now_ns, now_ns)
        self.log.append(batch, extent)
        self._stamps.append((base, extent.next_offset, now_ns))
        if self.transaction_index is not None:
            self.transaction_index.written(batch)
        return batch

    def stamp_of(self, offset: Offset) -> TimestampNs | None:
        """Return the timestamp of a record that was written here; None if it cannot be read."""
        for base, end, stamp_ns in reversed(self._stamps):
            if base <= offset < end:
                return stamp_ns
        return self.stored_ns(offset)

    def commit(self, offset: Offset) -> None:
        """Expose the records below ``offset`` and wake who waits for them."""
        assert self.high_watermark <= offset <= self.log_end_offset, "commit only what is written"
        if self.transaction_index is not None:
            self.transaction_index.commit(offset)
        self.high_watermark = offset
        if self._waiters:
            self._wake_waiters()
        if self._late:
            due = [late for last, late in self._late if last < offset]
            self._late = [each for each in self._late if each[0] >= offset]
            for late in due:
                late.ack_sink.acked(late.token, self.name, late.offset, duplicate=True)

    def reject_from(self, chunks: Iterable[Chunk], error: StrandlineError) -> None:
        """Give up chunks that were taken but not stored, and everything accepted after them."""
        late, self._late = self._late, []
        pending, self._chunks = self._chunks, []
        self._admission.pending_bytes -= sum(chunk.size for chunk in pending)
        self._open = None
        self.next_offset = self.log_end_offset
        if self.dedup is not None:
            self.dedup.forget_from(self.next_offset)
        self._forget_producers()
        if self.transaction_index is not None:
            self.transaction_index.forget_from(self.next_offset)
        reject_waiting((*chunks, *pending), error)
        self._held.reject(error)
        for _, each in late:
            each.ack_sink.rejected(each.token, error)

    def rebind(self, log: Log, high_watermark: Offset | None = None) -> None:
        """Continue on a log that was reopened after a failure; nothing is pending.

        Args:
            log: as reopened.
            high_watermark: as far as it is committed; None: all of it.
        """
        assert not self._chunks, "everything was rejected when the storage failed"
        log.sealer = self.log.sealer
        self.log = log
        self._led_from = Offset(0) if self.replica_hooks is None else None  # who leads next says so
        self._drop_window()
        self._drop_producers()
        self.next_offset = log.log_end_offset
        self.high_watermark = log.log_end_offset if high_watermark is None else high_watermark
        if self.transaction_index is not None:
            self.keep_transaction_index(log.log_start_offset)
        if self.replica_hooks is None:
            self.preload_ids()
        self._wake_waiters()

    def keep_transaction_index(self, start: Offset) -> None:
        """Look after transactions from now on; no batch below ``start`` belongs to one.

        Raises:
            UnavailableError: the log cannot be read.
        """
        self._index_replay.cancel()
        hw = self.high_watermark
        self.transaction_index = PartitionTransactions(self.log, start=start, high_watermark=hw)
        self._load_transaction_index()

    def _load_transaction_index(self) -> None:
        transaction_index, log = self.transaction_index, self.log
        if self.closed or transaction_index is None or not transaction_index.is_loading:
            return
        with contextlib.suppress(StillLoadingError):  # who reads meanwhile is told so
            self._index_replay.read(
                transaction_index.read_back,
                size_bytes=lambda: log.bytes_from(transaction_index.start),
            )

    def _take_transaction_index(self, noted: list[Noted]) -> None:
        assert self.transaction_index is not None, "whoever drops it cancels the load"
        self.transaction_index.take(noted)
        self._wake_waiters()

    def _transaction_index_failed(self, error: StrandlineError) -> None:
        logger.warning("%s: transactions cannot be read back, will try again: %s", self.name, error)
        asyncio.get_running_loop().call_later(RETRY_S, self._load_transaction_index)

    # The seat

    def attach_replica(self, replica_hooks: ReplicaHooks, high_watermark: Offset) -> None:
        """Be a replica of a cluster from now on; committed is what the seat says is.

        ``next_offset`` is kept by a leader alone: copies reach the log without it.
        """
        self.replica_hooks = replica_hooks
        self.needs_sync = True
        self._led_from = None
        is_known = high_watermark == self.high_watermark
        self.high_watermark = high_watermark
        if self.transaction_index is not None and not is_known:
            self.keep_transaction_index(self.log_start_offset)

    def lead(self, leader_epoch: LeaderEpoch) -> None:
        """Accept records in a new leadership, behind what the log holds; nothing is pending."""
        assert not self._chunks, "a follower accepts nothing"
        self.leader_epoch = leader_epoch
        self._drop_window()  # who led before knew other ids
        self.next_offset = self._led_from = self.log_end_offset
        self.preload_ids()
        self._wake_waiters()

    def follow(self) -> None:
        """Another broker leads; those who wait for what this one would know look there."""
        if self._led_from is not None:
            self._led_from = None
            self._wake_waiters()

    def copied(self, batches: Sequence[Buffer]) -> None:
        """Copies of batches were stored: know of producers what their leader knew."""
        now_ns = self._admission.steady.now_ns()
        if self.transaction_index is not None:
            for batch in batches:
                self.transaction_index.written(batch)
        elif any(map(has_transactions, batches)):
            self.keep_transaction_index(
                self.high_watermark
            )  # the leader has heard of transactions before us
        noted: ProducerStates | NotedMeanwhile | None = self.producers
        if noted is None:
            if not self._producers_replay.is_under_way:
                self._begin_to_know_producers()
                return  # these are in the log by now
            noted = self._noted_meanwhile
        for batch in batches:
            note_batches(noted, batch, now_ns)

    def _begin_to_know_producers(self) -> None:
        try:
            self._load_producers()
        except StillLoadingError:
            logger.debug("%s: producers are read back beside the loop", self.name)
        except StrandlineError as error:  # who publishes here later asks again, and is told
            logger.warning("%s: producers cannot be read back: %s", self.name, error)

    def _forget_producers(self) -> None:
        """Forget what is not in the log, or everything if the log alone can tell what was."""
        end = self.log_end_offset
        is_empty = end == self.log_start_offset
        if self.producers is None or is_empty or not self.producers.forget_from(end):
            self._drop_producers()

    def _drop_window(self) -> None:
        """Forget all message ids: the log alone can tell what was stored."""
        self.dedup = None
        self._dedup_replay.cancel()

    def refuse(self, error: StrandlineError | None) -> None:
        """Refuse records with this error from now on; None: accept them."""
        self._not_leader_error = error
        self._settle()

    def block_writes(self, error: StrandlineError | None) -> None:
        """Refuse records by order of the metadata, whoever leads; None: accept them."""
        if error is None and self._blocked_by is None:
            return
        self._blocked_by = error
        self._settle()
        self._wake_waiters()

    @property
    def blocked_by(self) -> StrandlineError | None:
        """Why the metadata lets it take no records: it is readonly or paused."""
        return self._blocked_by

    def report_corruption(self, error: CorruptBatchError) -> None:
        """Report a corrupt batch; any thread."""
        self._admission.on_corruption(self, error)

    def _settle(self) -> None:
        self._refused_by = self._closed_by or self._not_leader_error or self._blocked_by

    def move(self, high_watermark: Offset) -> None:
        """The log was restarted elsewhere: what is committed there may be read."""
        self.next_offset = self.log_end_offset
        self._forget_producers()
        self.high_watermark = high_watermark
        if self.transaction_index is not None and self.transaction_index.is_stale(high_watermark):
            self.keep_transaction_index(self.log_start_offset)
        elif self.transaction_index is not None:
            self.transaction_index.forget_from(self.next_offset)
            self.transaction_index.commit(high_watermark)
        self._wake_waiters()

    def close(self, error: StrandlineError) -> None:
        """Refuse what comes from now on with ``error`` and stop waiting readers.

        The log stays usable for those that are reading.
        """
        self._closed_by = error
        self._dedup_replay.cancel()
        self._held.reject(error)
        self._producers_replay.cancel()
        self._index_replay.cancel()
        self._settle()
        self._wake_waiters()
