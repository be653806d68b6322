"""A partition as publishers see it: records are accepted, or refused with the reason.

Invariants:
- ``log_end_offset <= next_offset``; the records between are pending, in the order in which they
  were accepted;
- the outcome of each reaches its responder, once, and never the caller.

Rules: on the loop's thread; nothing is written here, that is the turn's.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from strandline.broker.read_path.partition_reads import PartitionReads
from strandline.broker.read_path.transaction_visibility import marker_attributes
from strandline.broker.replica_hooks import ReplicaHooks
from strandline.broker.write_path.ack_sink import AckSink
from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.dedup import DedupWindow, ends_with_ids, load_window
from strandline.broker.write_path.held_appends import HeldAppend, HeldAppends
from strandline.broker.write_path.log_replay import IsWanted, LogReplay
from strandline.broker.write_path.pending import (
    AckWaiter,
    Chunk,
    PendingArrowBatch,
    PendingMarker,
    PendingRecords,
)
from strandline.broker.write_path.producer_state import (
    NotedMeanwhile,
    ProducerStates,
    load_producers,
    producers_from,
)
from strandline.config import Acks, StreamConfig
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer
from strandline.errors import (
    InvalidRecordError,
    ProducerFencedError,
    RecordTooLargeError,
    StillLoadingError,
    StrandlineError,
    UnavailableError,
    WrongLastSequenceError,
)
from strandline.record.batch import Attributes
from strandline.record.codec import BATCH_RECORDS_MAX, Headers
from strandline.storage.log import Log
from strandline.types import Offset, PartitionName, ProducerStamp, TimestampNs

logger = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES = 32
"""Counted for a record besides its bytes, so that a flood of empty records is bounded too."""


class PartitionAppends(PartitionReads):
    """The write side of a partition, on top of the read side."""

    def __init__(
        self, name: PartitionName, config: StreamConfig, log: Log, *, admission: Admission
    ) -> None:
        super().__init__(name, config, log, admission=admission)
        self.dedup: DedupWindow | None = None
        self.producers: ProducerStates | None = None
        """None until it is needed, and while only the log knows."""
        self._dedup_replay: LogReplay[DedupWindow | None] = LogReplay(
            self._take_window, what=f"message ids of {name}", failed=self._window_failed
        )
        self._held = HeldAppends(name.stream, admission)
        self._producers_replay: LogReplay[ProducerStates] = LogReplay(
            self._take_producers, what=f"producers of {name}"
        )
        self._noted_meanwhile = NotedMeanwhile(log.log_end_offset)
        self.next_offset = log.log_end_offset
        self._chunks: list[Chunk] = []
        self._open: PendingRecords | None = None
        self._late: list[tuple[Offset, AckWaiter]] = []
        """Who repeats what is written and not committed, with the last offset of it."""
        self._is_dirty = False
        self._not_leader_error: StrandlineError | None = None
        self._blocked_by: StrandlineError | None = None
        self._refused_by: StrandlineError | None = None
        """Of these two and ``_closed_by`` the one that matters most."""
        self.replica_hooks: ReplicaHooks | None = None
        self.needs_sync = config.acks_in_force != "memory"
        """Whether a turn with its records has to sync."""

    @property
    def refusal(self) -> StrandlineError | None:
        """Why it takes no records now, such as who leads it instead; None: it does."""
        return self._admission.refusal or self._refused_by or self.key_refusal

    @property
    def unavailable_reason(self) -> StrandlineError | None:
        """Why it is not led here now; markers are taken although it is readonly or paused."""
        return (
            self._admission.refusal or self._closed_by or self._not_leader_error or self.key_refusal
        )

    @property
    def key_refusal(self) -> StrandlineError | None:
        """Why its records cannot be encrypted, if they are to be."""
        return None if self.log.sealer is None else self.log.sealer.why_not()

    @property
    def has_pending(self) -> bool:
        """Whether accepted records wait for a turn."""
        return bool(self._chunks)

    def append(
        self,
        value: bytes | None,
        *,
        subject: str,
        key: bytes | None = None,
        headers: Headers | None = None,
        ack_sink: AckSink | None = None,
        token: object = None,
        message_id: str | None = None,
        expected_last: int | None = None,
        acks: Acks | None = None,
    ) -> None:
        """Accept a record; the outcome reaches ``ack_sink``, never the caller.

        Args:
            value: the payload; None deletes its key when the stream is compacted.
            subject: NATS subject.
            key: key for compaction and partitioning.
            headers: kept as they are.
            ack_sink: whom to tell; None: nobody.
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
        is_held = bool(self._held.waiting)
        if (
            refusal is None
            and not is_held
            and (message_id is not None or expected_last is not None)
        ):
            # A repeat is recognised first: what it expected was true when it was stored.
            try:
                if message_id is not None and self._is_duplicate(message_id, ack_sink, token):
                    return
                self._check_last(message_id, expected_last)
            except StillLoadingError:
                is_held = True
            except StrandlineError as error:
                refusal = error
        if refusal is None and is_held:
            again = partial(
                self.append,
                value,
                subject=subject,
                key=key,
                headers=headers,
                ack_sink=ack_sink,
                token=token,
                message_id=message_id,
                expected_last=expected_last,
                acks=acks,
            )
            refusal = self._held.add(HeldAppend(again, ack_sink, token, size))
            if refusal is None:
                return
        if refusal is not None:
            admission.reject(refusal, ack_sink, token, stream=self.name.stream)
            return
        chunk = self._open
        if chunk is None or chunk.is_full:
            chunk = self._open = PendingRecords(self.next_offset)
            self._chunks.append(chunk)
        chunk.add(value, subject)
        if key is not None or headers:
            chunk.decorate(key, headers)
        if ack_sink is not None:
            waiting = AckWaiter(ack_sink, token, self.next_offset)
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
        ack_sink: AckSink | None = None,
        token: object = None,
        acks: Acks | None = None,
        producer: ProducerStamp | None = None,
        is_transactional: bool = False,
    ) -> None:
        """Accept the rows of an Arrow batch, in order; told once, with the offset of the first.

        Args:
            batch: column ``value`` and perhaps ``key``, ``subject``, ``headers``; not empty.
            ack_sink: whom to tell when all rows are safe.
            token: handed back to the responder.
            acks: less than the stream's, to be told sooner.
            producer: who numbered the rows; they become one batch, and are stored once.
            is_transactional: they count if the producer's transaction is committed.
        """
        refusal = self._refusal(0) or self._batch_refusal(batch, producer)
        if refusal is None and self._held.waiting:
            again = partial(
                self.append_arrow,
                batch,
                ack_sink=ack_sink,
                token=token,
                acks=acks,
                producer=producer,
                is_transactional=is_transactional,
            )
            size = int(batch.nbytes)
            refusal = self._held.add(HeldAppend(again, ack_sink, token, size, batch.num_rows))
            if refusal is None:
                return
        if refusal is None and producer is not None:
            try:
                if is_transactional:
                    self._check_transaction(producer)
                rows = batch.num_rows
                if self._is_repeat(producer, rows, ack_sink=ack_sink, token=token):
                    return
            except StrandlineError as error:
                refusal = error
        if refusal is not None:
            rows, stream = batch.num_rows, self.name.stream
            self._admission.reject(refusal, ack_sink, token, stream=stream, records=rows)
            return
        first = self.next_offset
        for start in range(0, batch.num_rows, BATCH_RECORDS_MAX):
            piece = batch.slice(start, BATCH_RECORDS_MAX)
            self._chunks.append(PendingArrowBatch(self.next_offset, piece, self.config.subject))
            self.next_offset = Offset(self.next_offset + piece.num_rows)
            self._admission.pending_bytes += self._chunks[-1].size
        if ack_sink is not None:
            last = self._chunks[-1]
            waiting = AckWaiter(ack_sink, token, first)
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
        if self.transaction_index is None:
            raise ProducerFencedError(f"no transaction is open in {self.name}")
        self.transaction_index.check(TransactionalProducer(producer.producer_id, producer.epoch))

    def mark(
        self, kind: MarkerKind, producer: TransactionalProducer, *, ack_sink: AckSink, token: object
    ) -> None:
        """Accept the beginning or the end of a transaction; told when it is committed."""
        refusal = self.unavailable_reason
        if refusal is None and self.transaction_index is None:
            refusal = UnavailableError(f"{self.name} does not know of transactions yet; retry")
        if refusal is None and self.transaction_index is not None:
            refusal = self.transaction_index.why_loading
        if refusal is not None:
            ack_sink.rejected(token, refusal)
            return
        assert self.transaction_index is not None, "else it was refused"
        if not self.transaction_index.needs(kind, producer):
            ack_sink.acked(token, self.name, self.high_watermark, duplicate=True)
            return
        self.needs_sync = True
        stamp = ProducerStamp(producer.producer_id, producer.epoch, -1)
        chunk = PendingMarker(self.next_offset, stamp, marker_attributes(kind))
        chunk.waiting.append(AckWaiter(ack_sink, token, self.next_offset))
        self._chunks.append(chunk)
        self._open = None
        self.next_offset = Offset(self.next_offset + 1)
        if not self._is_dirty:
            self._mark_dirty()

    def _number(self, chunk: Chunk, producer: ProducerStamp, *, attributes: int) -> None:
        """Note whose a chunk is; its offsets are certain now."""
        assert isinstance(chunk, PendingArrowBatch), "only batches are numbered"
        assert self.producers is not None, "it was checked"
        chunk.producer, chunk.attributes = producer, attributes
        now_ns = self._admission.steady.now_ns()
        self.producers.note(producer, chunk.count, offset=chunk.base_offset, now_ns=now_ns)

    def _waiting(self, chunk: Chunk, acks: Acks) -> list[AckWaiter]:
        """Return the waiters that are notified at the level ``acks`` of a batch."""
        if acks == "memory":
            return chunk.early
        is_less = (
            acks == "disk"
            and self.replica_hooks is not None
            and self.config.acks_in_force == "replicated"
        )
        return chunk.on_disk if is_less else chunk.waiting

    def _refusal(self, size: int) -> StrandlineError | None:
        """Why a record of ``size`` bytes is not accepted, or None."""
        admission = self._admission
        if admission.refusal is not None:
            return admission.refusal
        if self._refused_by is not None:
            return self._refused_by
        if self.log.sealer is not None and (missing := self.log.sealer.why_not()) is not None:
            return missing
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
            self.dedup.add(message_id, self.next_offset, self._admission.steady.now_ns())

    def _is_duplicate(self, message_id: str, ack_sink: AckSink | None, token: object) -> bool:
        """Whether the id is known; then the responder hears of the first record's offset.

        Raises:
            UnavailableError: the window could not be read back from the log.
        """
        if self.config.dedup_window_ms == 0:
            return False
        now_ns = self._admission.steady.now_ns()
        if self.dedup is None:
            self._load_window()
        assert self.dedup is not None, "else it is still read"
        known = self.dedup.find(message_id, now_ns)
        if known is None:
            return False
        self._answer_repeat(known, ack_sink, token, last=known)
        return True

    def _is_repeat(
        self, producer: ProducerStamp, records: int, *, ack_sink: AckSink | None, token: object
    ) -> bool:
        """Whether the batch was stored before; then the responder hears of its first offset.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError: it is not the next one either.
            UnavailableError: what is known could not be read back from the log.
        """
        if self.producers is None:
            self._load_producers()
        assert self.producers is not None, "else they are still read"
        known = self.producers.check(producer, records)
        if known is None:
            return False
        self._answer_repeat(known, ack_sink, token, last=Offset(known + records - 1))
        return True

    def _load_window(self) -> None:
        """Read the message ids of the window back from the log.

        No record with an id is accepted meanwhile, so that the log has all there are.

        Raises:
            StillLoadingError: they are read beside the loop.
            UnavailableError: the log cannot be read.
        """
        log, window_ms = self.log, self.config.dedup_window_ms
        since_ns = TimestampNs(self._admission.clock.now_ns() - window_ms * 1_000_000)
        self._dedup_replay.read(
            self._window_loader(), size_bytes=lambda: log.bytes_from(log.offset_since(since_ns))
        )

    def _window_loader(self) -> Callable[[IsWanted], DedupWindow]:
        """Return a function that reads the message ids back; any thread."""
        log, window_ms = self.log, self.config.dedup_window_ms
        now_ns, steady_ns = self._admission.clock.now_ns(), self._admission.steady.now_ns()
        return lambda is_wanted: load_window(
            log, window_ms, now_ns, steady_ns=steady_ns, is_wanted=is_wanted
        )

    def preload_ids(self) -> None:
        """Begin to read the message ids back, if the newest batch of the log has some.

        So they are likely to be known when the first publish with an id comes. Where nobody uses
        ids, there would be much to read for nothing.
        """
        if self.config.dedup_window_ms == 0 or self.log_end_offset == self.log_start_offset:
            return
        log, load = self.log, self._window_loader()
        self._dedup_replay.begin(lambda is_wanted: load(is_wanted) if ends_with_ids(log) else None)

    def _take_window(self, window: DedupWindow | None) -> None:
        self.dedup = window
        self._held.release()

    def _window_failed(self, error: StrandlineError) -> None:
        logger.warning("%s: message ids cannot be read back: %s", self.name, error)
        self._held.reject(error)

    def _load_producers(self) -> None:
        """Read back from the log what is known of producers.

        Batches that are copied meanwhile are noted when that is done.

        Raises:
            StillLoadingError: it is read beside the loop.
            UnavailableError: the log cannot be read.
        """
        log, now_ns = self.log, self._admission.clock.now_ns()
        end = log.log_end_offset
        if not self._producers_replay.is_under_way:
            self._noted_meanwhile = NotedMeanwhile(end)
        self._producers_replay.read(
            lambda is_wanted: load_producers(log, now_ns, end=end, is_wanted=is_wanted),
            size_bytes=lambda: log.bytes_from(producers_from(log, now_ns)[0]),
        )

    def _take_producers(self, producers: ProducerStates) -> None:
        self._noted_meanwhile.move_to(producers)
        self.producers = producers

    def _drop_producers(self) -> None:
        """Forget all producers: the log alone can tell what was stored."""
        self.producers = None
        self._producers_replay.cancel()

    def _answer_repeat(
        self, known: Offset, ack_sink: AckSink | None, token: object, *, last: Offset
    ) -> None:
        """Tell who repeats what is, or will be, from ``known`` to ``last``, once that is safe."""
        self._admission.duplicates += 1
        if ack_sink is None:
            return
        waiting = AckWaiter(ack_sink, token, known, duplicate=True)
        if last < self.high_watermark:
            ack_sink.acked(token, self.name, known, duplicate=True)
            self._admission.wake()
        elif last < self.log_end_offset:
            self._late.append((last, waiting))
        else:
            holder = next(chunk for chunk in reversed(self._chunks) if chunk.base_offset <= last)
            holder.waiting.append(waiting)

    @abstractmethod
    def _mark_dirty(self) -> None:
        """Ask for a place in the next turn."""


def _extra_bytes(key: bytes | None, headers: Headers | None) -> int:
    """Bytes of key and headers."""
    size = len(key) if key is not None else 0
    for name, value in headers or ():
        size += len(name) + len(value)
    return size
