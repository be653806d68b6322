"""A partition as its leader sees it: accept records, write them in the turn, expose what is safe.

In a cluster a replica is attached to it, which says whether records are accepted and how far they
are committed; without one, what is synced here is committed.

Invariants:
- ``log_start_offset <= high_watermark <= log_end_offset <= next_offset``;
- ``next_offset - log_end_offset`` records are pending, in the order in which they were accepted;
- a record below the high watermark is durable as the stream promises and never changes.

Threads: everything runs on the loop's thread, except ``read``, ``wait_beyond``,
``offset_for_timestamp`` and the offsets, which any thread may use.
"""

import threading
from collections.abc import Iterable, Sequence

import pyarrow as pa

from strandline.broker.admission import Admission, Waiter
from strandline.broker.dedup import DedupWindow, load_window
from strandline.broker.pending import (
    ArrowChunk,
    Chunk,
    MarkerChunk,
    RecordChunk,
    Waiting,
    reject_waiting,
)
from strandline.broker.producer_state import Producers, load_producers, note_batches
from strandline.broker.responder import Responder
from strandline.broker.seat import Seat
from strandline.broker.transactions.ledger import Ledger, marker_attributes
from strandline.config import Acks, StreamConfig
from strandline.errors import (
    CorruptBatchError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordTooLargeError,
    StrandlineError,
    UnavailableError,
    WrongLastSequenceError,
)
from strandline.record.batch import Attributes, BatchHeader, Buffer, header_of
from strandline.record.codec import BATCH_RECORDS_MAX, Headers, Stamp
from strandline.storage.log import Log
from strandline.transactions.effects import MarkerKind
from strandline.transactions.state import Producer
from strandline.types import (
    LeaderEpoch,
    LogId,
    Offset,
    PartitionName,
    ProducerStamp,
    TimestampNs,
)

RECORD_OVERHEAD_BYTES = 32
"""Counted for a record besides its bytes, so that a flood of empty records is bounded too."""


class Partition:
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
    ) -> None:
        self.name = name
        self.config = config
        self.log = log
        self.log_id = log_id
        self.leader_epoch = leader_epoch
        self.dedup: DedupWindow | None = None
        self.producers: Producers | None = None
        """None until it is needed, and while only the log knows."""
        self.ledger: Ledger | None = None
        """None as long as nobody has used transactions."""
        self.next_offset = log.log_end_offset
        self.high_watermark = log.log_end_offset
        self._admission = admission
        self._chunks: list[Chunk] = []
        self._open: RecordChunk | None = None
        self._last_timestamp = TimestampNs(0)
        self._late: list[Waiting] = []
        self._waiters: list[Waiter] = []
        self._is_dirty = False
        self._closed_by: StrandlineError | None = None
        self._unseated_by: StrandlineError | None = None
        self._barred_by: StrandlineError | None = None
        self._refused_by: StrandlineError | None = None
        """The one of these three that matters most."""
        self.seat: Seat | None = None
        self.needs_sync = config.acks_in_force != "memory"
        """Whether a turn with its records has to sync."""
        self.addresses: tuple[str, ...] = ()
        """In a cluster: where Flight reads it, the leader first."""
        self.leader_address = ""
        """In a cluster: Flight of its leader, if it has one."""
        self.in_sync_addresses: tuple[str, ...] = ()
        """In a cluster: Flight of the in-sync replicas in service."""
        self.elsewhere: StrandlineError | None = None
        """In a cluster: why it cannot be read here at all; None: it can."""

    @property
    def log_start_offset(self) -> Offset:
        """Offset of the first record kept."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset after the last record in the log, committed or not."""
        return self.log.log_end_offset

    @property
    def stable_offset(self) -> Offset:
        """Where reading ends: the high watermark, or the first open transaction below it."""
        return self.high_watermark if self.ledger is None else self.ledger.stable_offset

    @property
    def has_copies(self) -> bool:
        """Whether other brokers keep the same records."""
        return self.seat is not None and self.config.replicas > 1

    @property
    def closed(self) -> bool:
        """Whether it takes no more records: the stream was deleted or the broker stops."""
        return self._closed_by is not None

    @property
    def closed_by(self) -> StrandlineError | None:
        """Why it is closed."""
        return self._closed_by

    @property
    def refusal(self) -> StrandlineError | None:
        """Why it takes no records now, such as who leads it instead; None: it does."""
        return self._admission.refusal or self._refused_by

    @property
    def absence(self) -> StrandlineError | None:
        """Why it is not led here now; markers are taken although it is readonly or paused."""
        return self._admission.refusal or self._closed_by or self._unseated_by

    @property
    def has_pending(self) -> bool:
        """Whether accepted records wait for a turn."""
        return bool(self._chunks)

    # Appending

    def append(
        self,
        value: bytes | None,
        *,
        subject: str,
        key: bytes | None = None,
        headers: Headers | None = None,
        responder: Responder | None = None,
        token: object = None,
        message_id: str | None = None,
        expected_last: int | None = None,
        acks: Acks | None = None,
    ) -> None:
        """Accept a record; the outcome reaches ``responder``, never the caller.

        Args:
            value: the payload; None deletes its key when the stream is compacted.
            subject: NATS subject.
            key: key for compaction and partitioning.
            headers: kept as they are.
            responder: whom to tell; None: nobody.
            token: handed back to the responder.
            message_id: deduplicates within the stream's window.
            expected_last: reject unless the last record's sequence (offset + 1) is this.
            acks: less than the stream's, to be told sooner.
        """
        admission = self._admission
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None or headers:
            size += _extra_bytes(key, headers)
        refusal = self._refusal(size)
        if refusal is None and (message_id is not None or expected_last is not None):
            # A repeat is recognised first: what it expected was true when it was stored.
            try:
                if message_id is not None and self._is_duplicate(message_id, responder, token):
                    return
                self._check_last(message_id, expected_last)
            except StrandlineError as error:
                refusal = error
        if refusal is not None:
            if responder is not None:
                responder.rejected(token, refusal)
            return
        chunk = self._open
        if chunk is None or chunk.is_full:
            chunk = self._open = RecordChunk(self.next_offset)
            self._chunks.append(chunk)
        chunk.add(value, subject)
        if key is not None or headers:
            chunk.decorate(key, headers)
        if responder is not None:
            waiting = Waiting(responder, token, self.next_offset)
            (chunk.waiting if acks is None else self._waiting(chunk, acks)).append(waiting)
        chunk.size += size
        admission.pending_bytes += size
        self.next_offset = Offset(self.next_offset + 1)
        if not self._is_dirty:
            self._mark_dirty()

    def append_arrow(
        self,
        batch: pa.RecordBatch,
        *,
        responder: Responder | None = None,
        token: object = None,
        acks: Acks | None = None,
        producer: ProducerStamp | None = None,
        is_transactional: bool = False,
    ) -> None:
        """Accept the rows of an Arrow batch, in order; told once, with the offset of the first.

        Args:
            batch: column ``value`` and perhaps ``key``, ``subject``, ``headers``; not empty.
            responder: whom to tell when all rows are safe.
            token: handed back to the responder.
            acks: less than the stream's, to be told sooner.
            producer: who numbered the rows; they become one batch, and are stored once.
            is_transactional: they count if the producer's transaction is committed.
        """
        refusal = self._refusal(0) or self._batch_refusal(batch, producer)
        if refusal is None and producer is not None:
            try:
                if is_transactional:
                    self._check_transaction(producer)
                rows = batch.num_rows
                if self._is_repeat(producer, rows, responder=responder, token=token):
                    return
            except StrandlineError as error:
                refusal = error
        if refusal is not None:
            if responder is not None:
                responder.rejected(token, refusal)
            return
        first = self.next_offset
        for start in range(0, batch.num_rows, BATCH_RECORDS_MAX):
            piece = batch.slice(start, BATCH_RECORDS_MAX)
            self._chunks.append(ArrowChunk(self.next_offset, piece, self.config.subject))
            self.next_offset = Offset(self.next_offset + piece.num_rows)
            self._admission.pending_bytes += self._chunks[-1].size
        if responder is not None:
            last = self._chunks[-1]
            waiting = Waiting(responder, token, first)
            if acks is None or is_transactional:
                last.waiting.append(waiting)
            else:
                self._waiting(last, acks).append(waiting)
        if producer is not None:
            kind = Attributes.TRANSACTIONAL if is_transactional else 0
            self._number(self._chunks[-1], producer, attributes=kind)
        self._open = None
        if not self._is_dirty:
            self._mark_dirty()

    def _check_transaction(self, producer: ProducerStamp) -> None:
        """Let records of an open transaction in, and no others.

        Raises:
            ProducerFencedError: it is not open here.
        """
        if self.ledger is None:
            raise ProducerFencedError(f"no transaction is open in {self.name}")
        self.ledger.check(Producer(producer.producer_id, producer.epoch))

    def mark(
        self, kind: MarkerKind, producer: Producer, *, responder: Responder, token: object
    ) -> None:
        """Accept the beginning or the end of a transaction; told when it is committed."""
        refusal = self.absence
        if refusal is None and self.ledger is None:
            refusal = UnavailableError(f"{self.name} does not know of transactions yet; retry")
        if refusal is not None:
            responder.rejected(token, refusal)
            return
        assert self.ledger is not None, "else it was refused"
        if not self.ledger.needs(kind, producer):
            responder.acked(token, self.name, self.high_watermark, duplicate=True)
            return
        self.needs_sync = True
        stamp = ProducerStamp(producer.producer_id, producer.epoch, -1)
        chunk = MarkerChunk(self.next_offset, stamp, marker_attributes(kind))
        chunk.waiting.append(Waiting(responder, token, self.next_offset))
        self._chunks.append(chunk)
        self._open = None
        self.next_offset = Offset(self.next_offset + 1)
        if not self._is_dirty:
            self._mark_dirty()

    def _number(self, chunk: Chunk, producer: ProducerStamp, *, attributes: int) -> None:
        """Note whose a chunk is; its offsets are certain now."""
        assert isinstance(chunk, ArrowChunk), "only batches are numbered"
        assert self.producers is not None, "it was checked"
        chunk.producer, chunk.attributes = producer, attributes
        now_ns = self._admission.clock.now_ns()
        self.producers.note(producer, chunk.count, offset=chunk.base_offset, now_ns=now_ns)

    def _waiting(self, chunk: Chunk, acks: Acks) -> list[Waiting]:
        """Who is told of the chunk at the same time as a publish that asked for ``acks``."""
        if acks == "memory":
            return chunk.early
        is_less = (
            acks == "disk" and self.seat is not None and self.config.acks_in_force == "replicated"
        )
        return chunk.on_disk if is_less else chunk.waiting

    def _refusal(self, size: int) -> StrandlineError | None:
        """Why a record of ``size`` bytes is not accepted, or None."""
        admission = self._admission
        if admission.refusal is not None:
            return admission.refusal
        if self._refused_by is not None:
            return self._refused_by
        if admission.pending_bytes > admission.limits.pending_bytes:
            limit = admission.limits.pending_bytes
            return UnavailableError(
                f"more than limits.pending_bytes, {limit}, waits to be stored; retry later"
            )
        if size > admission.limits.record_bytes + RECORD_OVERHEAD_BYTES:
            limit = admission.limits.record_bytes
            return RecordTooLargeError(
                f"record of {size - RECORD_OVERHEAD_BYTES} bytes; limits.record_bytes is {limit}"
            )
        return None

    def _batch_refusal(
        self, batch: pa.RecordBatch, producer: ProducerStamp | None
    ) -> StrandlineError | None:
        """Why a batch is not accepted, whenever it comes, or None."""
        size, limit = int(batch.nbytes), self._admission.limits.batch_bytes
        if size > limit:
            return RecordTooLargeError(
                f"batch of {size} bytes; limits.batch_bytes is {limit}: send smaller batches"
            )
        if producer is not None and batch.num_rows > BATCH_RECORDS_MAX:
            return InvalidRecordError(
                f"numbered batch of {batch.num_rows} records; at most {BATCH_RECORDS_MAX} are "
                "stored as one: send smaller batches"
            )
        return None

    def _check_last(self, message_id: str | None, expected_last: int | None) -> None:
        """Check the last sequence; a record that passes is certain of its offset, so note its id.

        Raises:
            WrongLastSequenceError: somebody else was first.
        """
        if expected_last is not None and expected_last != self.next_offset:
            raise WrongLastSequenceError(f"wrong last sequence: {self.next_offset}")
        if message_id is not None and self.dedup is not None:
            self.dedup.add(message_id, self.next_offset, self._admission.clock.now_ns())

    def _is_duplicate(self, message_id: str, responder: Responder | None, token: object) -> bool:
        """Whether the id is known; then the responder hears of the first record's offset.

        Raises:
            UnavailableError: the window could not be read back from the log.
        """
        if self.config.dedup_window_ms == 0:
            return False
        now_ns = self._admission.clock.now_ns()
        if self.dedup is None:
            self.dedup = load_window(self.log, self.config.dedup_window_ms, now_ns)
        known = self.dedup.find(message_id, now_ns)
        if known is None:
            return False
        self._answer_repeat(known, responder, token)
        return True

    def _is_repeat(
        self, producer: ProducerStamp, records: int, *, responder: Responder | None, token: object
    ) -> bool:
        """Whether the batch was stored before; then the responder hears of its first offset.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError: it is not the next one either.
            UnavailableError: what is known could not be read back from the log.
        """
        if self.producers is None:
            self.producers = load_producers(self.log, self._admission.clock.now_ns())
        known = self.producers.check(producer, records)
        if known is None:
            return False
        self._answer_repeat(known, responder, token)
        return True

    def _answer_repeat(self, known: Offset, responder: Responder | None, token: object) -> None:
        """Tell who repeats what is, or is about to be, at ``known``, as soon as that is safe."""
        self._admission.duplicates += 1
        if responder is None:
            return
        waiting = Waiting(responder, token, known, duplicate=True)
        if known < self.high_watermark:
            responder.acked(token, self.name, known, duplicate=True)
            self._admission.wake()
        elif known < self.log_end_offset:
            self._late.append(waiting)
        else:
            holder = next(chunk for chunk in reversed(self._chunks) if chunk.base_offset <= known)
            holder.waiting.append(waiting)

    def _mark_dirty(self) -> None:
        """Ask for a place in the next turn."""
        self._is_dirty = True
        self._admission.dirty.append(self)
        self._admission.wake()

    # The turn

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
        """Encode a chunk and append it to the log, unsynced; returns the batch for the journal.

        Raises:
            DiskFullError: nothing of the chunk was kept.
            LogPoisonedError: a write failed.
        """
        self._last_timestamp = max(now_ns, self._last_timestamp)
        stamp = Stamp(
            chunk.base_offset, self.leader_epoch, self._last_timestamp, self.config.compression
        )
        batch = chunk.encode(stamp)
        self.log.append(batch, header_of(batch))
        if self.ledger is not None:
            self.ledger.written(batch)
        return batch

    def commit(self, offset: Offset) -> None:
        """Expose the records below ``offset`` and wake who waits for them."""
        assert self.high_watermark <= offset <= self.log_end_offset, "commit only what is written"
        if self.ledger is not None:
            self.ledger.commit(offset)
        self.high_watermark = offset
        if self._waiters:
            self._wake_waiters()
        if self._late:
            told = [late for late in self._late if late.offset < offset]
            self._late = [late for late in self._late if late.offset >= offset]
            for late in told:
                late.responder.acked(late.token, self.name, late.offset, duplicate=True)

    def _wake_waiters(self) -> None:
        """Wake who waits for records; they leave the list meanwhile, on their own threads."""
        for waiter in tuple(self._waiters):
            waiter.set()

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
        if self.ledger is not None:
            self.ledger.forget_from(self.next_offset)
        reject_waiting((*chunks, *pending), error)
        for each in late:
            each.responder.rejected(each.token, error)

    def rebind(self, log: Log, high_watermark: Offset | None = None) -> None:
        """Continue on a log that was reopened after a failure; nothing is pending.

        Args:
            log: as reopened.
            high_watermark: as far as it is committed; None: all of it.
        """
        assert not self._chunks, "everything was rejected when the storage failed"
        self.log = log
        self.dedup = self.producers = None
        self.next_offset = log.log_end_offset
        self.high_watermark = log.log_end_offset if high_watermark is None else high_watermark
        if self.ledger is not None:
            self.keep_ledger(log.log_start_offset)
        self._wake_waiters()

    def keep_ledger(self, start: Offset) -> None:
        """Look after transactions from now on; no batch below ``start`` belongs to one."""
        self.ledger = Ledger(self.log, start=start, high_watermark=self.high_watermark)

    # The seat

    def take_seat(self, seat: Seat, high_watermark: Offset) -> None:
        """Be a replica of a cluster from now on; committed is what the seat says is.

        ``next_offset`` is kept by a leader alone: copies reach the log without it.
        """
        self.seat = seat
        self.needs_sync = True
        self.high_watermark = high_watermark
        if self.ledger is not None:
            self.keep_ledger(self.log_start_offset)

    def lead(self, leader_epoch: LeaderEpoch) -> None:
        """Accept records in a new leadership, behind what the log holds; nothing is pending."""
        assert not self._chunks, "a follower accepts nothing"
        self.leader_epoch = leader_epoch
        self.dedup = None  # who led before knew other ids
        self.next_offset = self.log_end_offset

    def copied(self, batches: Sequence[Buffer]) -> None:
        """Copies of batches were stored: know of producers what their leader knew."""
        now_ns = self._admission.clock.now_ns()
        if self.ledger is not None:
            for batch in batches:
                self.ledger.written(batch)
        if self.producers is None:
            self.producers = load_producers(self.log, now_ns)
            return
        for batch in batches:
            note_batches(self.producers, batch, now_ns)

    def _forget_producers(self) -> None:
        """Forget what is not in the log, or everything if the log alone can tell what was."""
        end = self.log_end_offset
        is_empty = end == self.log_start_offset
        if self.producers is not None and (is_empty or not self.producers.forget_from(end)):
            self.producers = None

    def refuse(self, error: StrandlineError | None) -> None:
        """Refuse records with this error from now on; None: accept them."""
        self._unseated_by = error
        self._settle()

    def bar(self, error: StrandlineError | None) -> None:
        """Refuse records by order of the metadata, whoever leads; None: accept them."""
        if error is None and self._barred_by is None:
            return
        self._barred_by = error
        self._settle()
        self._wake_waiters()

    @property
    def barred_by(self) -> StrandlineError | None:
        """Why the metadata lets it take no records: it is readonly or paused."""
        return self._barred_by

    def _settle(self) -> None:
        self._refused_by = self._closed_by or self._unseated_by or self._barred_by

    def move(self, high_watermark: Offset) -> None:
        """The log was restarted elsewhere: what is committed there may be read."""
        self.next_offset = self.log_end_offset
        self._forget_producers()
        self.high_watermark = high_watermark
        if self.ledger is not None and self.ledger.is_stale(high_watermark):
            self.keep_ledger(self.log_start_offset)
        elif self.ledger is not None:
            self.ledger.forget_from(self.next_offset)
            self.ledger.commit(high_watermark)
        self._wake_waiters()

    def close(self, error: StrandlineError) -> None:
        """Refuse what comes from now on with ``error`` and stop waiting readers.

        The log stays usable for those that are reading.
        """
        self._closed_by = error
        self._settle()
        self._wake_waiters()

    # Reading, from any thread

    def read(self, offset: Offset, bytes_max: int) -> pa.Buffer:
        """Whole batches from the one that holds ``offset``, up to the stable offset.

        Committed batches: none that a transaction in doubt or an aborted one has written, and no
        markers. The caller drops records below ``offset``.

        Returns:
            Batches in order; empty if there is nothing to see from ``offset`` to the stable offset.

        Raises:
            OffsetOutOfRangeError: below the log start offset or beyond the stable offset.
            CorruptBatchError: the batch at ``offset`` is damaged; it says where the next one is.
        """
        end = self.stable_offset
        if not self.log_start_offset <= offset <= end:
            name = "high watermark" if end == self.high_watermark else "first open transaction"
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.name} is outside {self.log_start_offset} (log start) to "
                f"{end} ({name})"
            )
        try:
            if self.ledger is None:
                read = self.log.read if self.config.compact else self.log.read_dense
                return pa.py_buffer(read(offset, bytes_max, below=end).buffer)
            return pa.py_buffer(self.ledger.readable(offset, bytes_max, below=end))
        except CorruptBatchError as error:
            self.met_damage(error)
            raise

    def counts(self, header: BatchHeader) -> bool:
        """Whether the records of a batch below the stable offset do; any thread."""
        if self.ledger is None or not header.attributes & Attributes.TRANSACTIONAL:
            return True
        return self.ledger.counts(header.producer_id, header.base_offset)

    def met_damage(self, error: CorruptBatchError) -> None:
        """Report what was met while reading the log."""
        self._admission.on_damage(self, error)

    def watch(self, waiter: Waiter) -> None:
        """Set ``waiter``, on the loop, at every commit and change of state, until ``unwatch``."""
        self._waiters.append(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Set it no more."""
        self._waiters.remove(waiter)

    def wait_beyond(self, offset: Offset, timeout_s: float) -> bool:
        """Block until the stable offset is above ``offset``; False on timeout or close."""
        waiter = threading.Event()
        self._waiters.append(waiter)
        try:
            if self.stable_offset > offset or self.closed:
                return self.stable_offset > offset
            waiter.wait(timeout_s)
            return self.stable_offset > offset
        finally:
            self._waiters.remove(waiter)

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> Offset:
        """The first offset stored at or after a time; the stable offset if there is none."""
        return min(self.log.offset_for_timestamp(timestamp_ns), self.stable_offset)


def _extra_bytes(key: bytes | None, headers: Headers | None) -> int:
    """Bytes of key and headers."""
    size = len(key) if key is not None else 0
    for name, value in headers or ():
        size += len(name) + len(value)
    return size
