"""A partition: accepts records, writes them in the group commit, exposes what is committed.

``CommittedRecords`` has the part that readers see.

In a cluster a replica is attached to the partition: it decides whether records are accepted, and
which are committed. Without a replica, what is synced on this broker is committed.

Invariants:
- ``log_start_offset <= high_watermark <= log_end_offset <= next_offset``;
- ``next_offset - log_end_offset`` records are pending, in the order in which they were accepted;
- a record below the high watermark is durable as the stream promises and never changes;
- the outcome of each append reaches its ack sink, once, and never the caller.

Threads: any thread may read, watch and query offsets; everything else is for the loop's thread.
"""

import itertools
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from strandline.broker.read_path.committed_records import CommittedRecords, Waiter
from strandline.broker.read_path.subject_retention import RetainedSearch, SubjectRetention
from strandline.broker.read_path.subject_search import SubjectSearch
from strandline.broker.read_path.transaction_visibility import (
    PartitionTransactions,
    has_transactions,
    marker_attributes,
)
from strandline.broker.replica_hooks import ReplicaHooks
from strandline.broker.write_path.admission import RECORD_OVERHEAD_BYTES, Admission
from strandline.broker.write_path.atomic import AtomicRecord, append_atomic
from strandline.broker.write_path.duplicates import Duplicates, HeldAppend
from strandline.broker.write_path.pending import (
    AckRun,
    AckSink,
    AckWaiter,
    BatchTimes,
    Chunk,
    ChunkAckSink,
    PendingArrowBatch,
    PendingMarker,
    PendingQueue,
    Waiting,
    extra_bytes,
    reject_waiting,
    waiters_at,
)
from strandline.broker.write_path.repeat_answers import RepeatAnswers
from strandline.broker.write_path.schema_check import SchemaCheck, SchemaVerdict
from strandline.broker.write_path.subject_sequences import SubjectSequences
from strandline.config import Acks, StreamConfig
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer
from strandline.errors import (
    ProducerFencedError,
    StillLoadingError,
    StrandlineError,
    UnavailableError,
    WrongLastSequenceError,
)
from strandline.record.batch import Attributes, Buffer, Extent
from strandline.record.codec import BATCH_RECORDS_MAX, Headers, Stamp
from strandline.record.sealed import Sealer
from strandline.storage.log import Log
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName, ProducerStamp, TimestampNs


class Partition:
    """One partition of a stream on this broker."""

    def __init__(
        self,
        name: PartitionName,
        config: StreamConfig,
        log: Log,
        *,
        log_id: LogId,
        leader_epoch: LeaderEpoch,
        admission: "Admission[Partition]",
        sealer: Sealer | None = None,
        high_watermark: Offset | None = None,
        is_led: bool = True,
    ) -> None:
        self.name = name
        self.config = config
        self.log = log
        log.seal_with(sealer)
        self.log_id = log_id
        self.leader_epoch = leader_epoch
        self._admission = admission
        self.committed = CommittedRecords(
            name,
            log,
            log_id=log_id,
            config=config,
            clock=admission.clock,
            corruption=admission.corruption,
            repair=self._repair,
        )
        if high_watermark is not None:
            self.committed.high_watermark = high_watermark
        self.next_offset = log.log_end_offset
        self.pending = PendingQueue()
        self._is_dirty = False
        self._repeats = RepeatAnswers(self, admission)
        self.duplicates = Duplicates(name, log, admission=admission)
        self.sequences = SubjectSequences(self, self.duplicates.held)
        self.times = BatchTimes()
        self.closed_by: StrandlineError | None = None
        """Why it is closed: its stream was deleted or the broker stops; None: it is open."""
        self._not_leader_error: StrandlineError | None = None
        self.blocked_by: StrandlineError | None = None
        """Why the metadata blocks writes: the partition is readonly or paused."""
        self._rejection: StrandlineError | None = None
        """The first of the three errors that is set, for the hot path."""
        self.needs_sync = config.acks_in_force != "memory"
        """Whether a group commit with records of this partition must sync."""
        self.schema_check: SchemaCheck | None = None
        """The schema that values must fit; None: any value is accepted."""
        self.replica_hooks: ReplicaHooks | None = None
        self._led_from: Offset | None = Offset(0)
        """The end of the log when this broker began to lead; None: it does not lead."""
        self.is_led = is_led
        """Whether this broker leads the partition, according to the metadata known here."""
        self.addresses: tuple[str, ...] = ()
        self.leader_address = ""
        self.in_sync_addresses: tuple[str, ...] = ()
        """In a cluster, Flight addresses: all replicas, leader first; the leader; those in sync."""
        self.remote_error: StrandlineError | None = None
        """In a cluster: why the partition cannot be read here at all; None: it can."""

    # State

    @property
    def log_start_offset(self) -> Offset:
        """The offset of the first record kept."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """The offset after the last record in the log, committed or not."""
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        """The offset after the last committed record."""
        return self.committed.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """The end for readers: the high watermark, or the start of an open transaction below it."""
        return self.committed.last_stable_offset

    @property
    def retention(self) -> SubjectRetention | None:
        """The readable records by subject, if the stream keeps a number of records per subject."""
        return self.committed.retention

    @property
    def transaction_index(self) -> PartitionTransactions | None:
        """The records that belong to transactions; None until there is a transaction."""
        return self.committed.transaction_index

    @property
    def has_copies(self) -> bool:
        """Whether other brokers store replicas of the partition."""
        return self.replica_hooks is not None and self.config.replicas > 1

    @property
    def knows_end(self) -> bool:
        """Whether this broker knows that all acknowledged records are committed; any thread.

        Also True if another broker leads the partition: this broker cannot know more then.
        """
        if self.transaction_index is not None and self.transaction_index.is_loading:
            return False
        led_from = self._led_from
        return not self.is_led or (led_from is not None and self.high_watermark >= led_from)

    @property
    def is_gathering(self) -> bool:
        """Whether new records should gather, since enough is in flight to other replicas."""
        return self.replica_hooks is not None and self.replica_hooks.is_gathering

    @property
    def closed(self) -> bool:
        """Whether no more records are accepted: the stream was deleted or the broker stops."""
        return self.closed_by is not None

    @property
    def write_error(self) -> StrandlineError | None:
        """Why records are rejected now, such as because another broker leads; else None."""
        return self._admission.write_error or self._rejection or self.key_error

    @property
    def unavailable_reason(self) -> StrandlineError | None:
        """Why this broker does not lead now. Readonly or paused is no reason: markers may go on."""
        error = self._admission.write_error or self.closed_by
        return error or self._not_leader_error or self.key_error

    @property
    def key_error(self) -> StrandlineError | None:
        """Why records cannot be encrypted, if the stream is to be encrypted; else None."""
        return None if self.log.sealer is None else self.log.sealer.why_not()

    # Accepting

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
        expected_subject_last: int | None = None,
        acks: Acks | None = None,
    ) -> None:
        """Accept a record; the outcome reaches ``ack_sink``, never the caller.

        Args:
            value: the payload; None deletes the key's records when the stream is compacted.
            subject: NATS subject.
            key: key for compaction and partitioning.
            headers: stored unchanged.
            ack_sink: receives the outcome, if given.
            token: passed back to the ack sink with the outcome.
            message_id: deduplicates within the stream's window.
            expected_last: reject unless the last record's sequence (offset + 1) is this.
            expected_subject_last: reject unless the last record of the subject has this sequence.
            acks: a lower level than the stream's, for an earlier ack.
        """
        admission = self._admission
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None or headers:
            size += extra_bytes(key, headers)
        rejection = admission.write_error or self._rejection
        if rejection is None and (
            self.log.sealer is not None
            or admission.pending_bytes > admission.limits.pending_bytes
            or size > admission.record_size_max
            or self.schema_check is not None
        ):
            rejection = self.key_error or admission.record_error(size) or self._misfit(value)
        is_held = admission.held > 0 and bool(self.duplicates.held.waiting)
        is_plain = message_id is None and expected_last is None and expected_subject_last is None
        if rejection is None and not is_plain and not is_held:
            try:
                known = self._check_conditions(
                    subject,
                    message_id,
                    expected_last=expected_last,
                    expected_subject_last=expected_subject_last,
                )
                if known is not None:
                    self._repeats.answer(known, ack_sink, token, last=known)
                    return
            except StillLoadingError:
                is_held = True
            except StrandlineError as error:
                rejection = error
        if rejection is None and is_held:
            again = partial(self.append, value, subject=subject, key=key, headers=headers)
            again = partial(again, ack_sink=ack_sink, token=token, acks=acks, message_id=message_id)
            again = partial(
                again, expected_last=expected_last, expected_subject_last=expected_subject_last
            )
            rejection = self.duplicates.held.add(HeldAppend(again, ack_sink, token, size))
            if rejection is None:
                return
        if rejection is not None:
            admission.reject(rejection, ack_sink, token, stream=self.name.stream)
            return
        offset = self.next_offset
        chunk = self.pending.add_record(offset, value, subject)
        if key is not None or headers:
            chunk.decorate(key, headers)
        if ack_sink is not None:
            waiting = chunk.waiting if acks is None else self._waiting(chunk, acks)
            waiting.append(AckWaiter(ack_sink, token, offset))
        if self.committed.retention is not None:
            self.sequences.note((subject,), offset, headers)
        chunk.size += size
        admission.pending_bytes += size
        self.next_offset = Offset(offset + 1)
        if not self._is_dirty:
            self._enqueue()

    def _misfit(self, value: bytes | None) -> StrandlineError | None:
        return None if self.schema_check is None else self.schema_check.value(value)

    def _check_conditions(
        self,
        subject: str,
        message_id: str | None,
        *,
        expected_last: int | None,
        expected_subject_last: int | None,
    ) -> Offset | None:
        """Check the conditions of a record; return the offset of the record it repeats, or None.

        Raises:
            StillLoadingError: the state that the conditions need is being loaded.
            StrandlineError: a condition is not met.
        """
        # A repeat comes first: what it expects was true when its record was stored.
        if message_id is not None:
            known = self.duplicates.find_message(message_id, self.config.dedup_window_ms)
            if known is not None:
                return known
        if expected_last is not None and expected_last != self.next_offset:
            raise WrongLastSequenceError(f"wrong last sequence: {self.next_offset}")
        if expected_subject_last is not None:
            self.sequences.check(subject, expected_subject_last)
        if message_id is not None:  # from here on the record is sure to get this offset
            self.duplicates.note_message(message_id, self.next_offset)
        return None

    def append_many(
        self,
        values: Sequence[bytes],
        *,
        subjects: Sequence[str],
        ack_sink: ChunkAckSink,
        tokens: Sequence[object],
    ) -> None:
        """Accept plain records, in order, each as by ``append``.

        Args:
            values: their payloads.
            subjects: one for each record, or one for all.
            ack_sink: receives the outcomes.
            tokens: one for each record; None: its publisher asked for no outcome.
        """
        admission, limits, count = self._admission, self._admission.limits, len(values)
        size = sum(map(len, values)) + RECORD_OVERHEAD_BYTES * count
        if (
            self.duplicates.held.waiting
            or self.write_error is not None
            or max(map(len, values)) > limits.record_bytes
            or admission.pending_bytes + size > limits.pending_bytes
            or (self.schema_check is not None and self.schema_check.values(values) is not None)
        ):
            # Some are to be held or rejected.
            each = subjects if len(subjects) == count else itertools.repeat(subjects[0])
            for value, subject, token in zip(values, each, tokens, strict=False):
                sink = None if token is None else ack_sink
                self.append(value, subject=subject, ack_sink=sink, token=token)
            return
        chunk = self.pending.open_batch(self.next_offset, count)
        chunk.add_many(values, subjects)
        if tokens.count(None) < count:
            chunk.waiting.append(AckRun(ack_sink, tokens, self.next_offset))
        if self.committed.retention is not None:
            self.sequences.note(chunk.subjects[-count:], self.next_offset)
        chunk.size += size
        admission.pending_bytes += size
        self.next_offset = Offset(self.next_offset + count)
        self._enqueue()

    def append_arrow(
        self,
        batch: pa.RecordBatch,
        *,
        ack_sink: AckSink | None = None,
        token: object = None,
        acks: Acks | None = None,
        producer: ProducerStamp | None = None,
        is_transactional: bool = False,
        verdict: SchemaVerdict | None = None,
    ) -> None:
        """Accept the rows of an Arrow batch, in order; one ack has the offset of the first.

        Args:
            batch: column ``value`` and perhaps ``key``, ``subject``, ``headers``; not empty.
            ack_sink: receives the outcome, once all rows are as safe as required.
            token: passed back to the ack sink with the outcome.
            acks: a lower level than the stream's, for an earlier ack.
            producer: the producer's number of the rows; they become one batch, stored once.
            is_transactional: the rows become visible if the producer's transaction is committed.
            verdict: the result of an earlier check of the values against the stream's schema.
        """
        rejection = (
            self.write_error
            or self._admission.record_error(0)
            or self._admission.batch_error(batch, is_numbered=producer is not None)
        )
        if rejection is None and self.duplicates.held.waiting:
            again = partial(self.append_arrow, batch, ack_sink=ack_sink, token=token, acks=acks)
            again = partial(again, producer=producer, is_transactional=is_transactional)
            again = partial(again, verdict=verdict)
            held = HeldAppend(again, ack_sink, token, int(batch.nbytes), batch.num_rows)
            rejection = self.duplicates.held.add(held)
            if rejection is None:
                return
        if rejection is None and producer is not None:
            try:
                if is_transactional:
                    self.sequences.check_transactional()
                    if self.transaction_index is None:
                        raise ProducerFencedError(f"no transaction is open in {self.name}")
                    transactional = TransactionalProducer(producer.producer_id, producer.epoch)
                    self.transaction_index.check(transactional)
                known = self.duplicates.find_batch(producer, batch.num_rows)
                if known is not None:
                    last = Offset(known + batch.num_rows - 1)
                    self._repeats.answer(known, ack_sink, token, last=last)
                    return
            except StrandlineError as error:
                rejection = error
        if rejection is None and self.schema_check is not None:
            rejection = self.schema_check.error_of(batch, verdict)
        if rejection is not None:
            rows, stream = batch.num_rows, self.name.stream
            self._admission.reject(rejection, ack_sink, token, stream=stream, records=rows)
            return
        first = self.next_offset
        for start in range(0, batch.num_rows, BATCH_RECORDS_MAX):
            piece = batch.slice(start, BATCH_RECORDS_MAX)
            chunk = PendingArrowBatch(self.next_offset, piece, self.config.subject)
            self.pending.add(chunk)
            self.next_offset = Offset(self.next_offset + piece.num_rows)
            self._admission.pending_bytes += chunk.size
        self.sequences.note_batch(batch, first, self.config.subject)
        if ack_sink is not None:
            waiting = self._waiting(chunk, None if is_transactional else acks)
            waiting.append(AckWaiter(ack_sink, token, first))
        if producer is not None:  # then the rows are one batch, and sure to get its offset
            chunk.producer = producer
            chunk.attributes = Attributes.TRANSACTIONAL if is_transactional else 0
            self.duplicates.note_batch(producer, chunk.count, chunk.base_offset)
        self._enqueue()

    def append_atomic(
        self, records: Sequence[AtomicRecord], *, ack_sink: AckSink, token: object
    ) -> None:
        """Accept records that are stored all or not at all; see ``atomic``."""
        append_atomic(self, records, self._admission, ack_sink=ack_sink, token=token)

    def mark(
        self, kind: MarkerKind, producer: TransactionalProducer, *, ack_sink: AckSink, token: object
    ) -> None:
        """Accept the beginning or the end of a transaction; acknowledged when it is committed."""
        index = self.transaction_index
        unknown = UnavailableError(f"{self.name} does not know of transactions yet; retry")
        rejection = self.unavailable_reason or (unknown if index is None else index.why_loading)
        if index is None or rejection is not None:
            ack_sink.rejected(token, rejection or unknown)
            return
        if not index.needs(kind, producer):
            ack_sink.acked(token, self.name, self.high_watermark, duplicate=True)
            return
        self.needs_sync = True
        stamp = ProducerStamp(producer.producer_id, producer.epoch, -1)
        chunk = PendingMarker(self.next_offset, stamp, marker_attributes(kind))
        self.add_chunk(chunk, ack_sink, token)

    def add_chunk(self, chunk: Chunk, ack_sink: AckSink, token: object) -> None:
        """Accept a whole batch that was checked; its one ack is sent when it is committed."""
        chunk.waiting.append(AckWaiter(ack_sink, token, self.next_offset))
        self.pending.add(chunk)
        self.next_offset = Offset(self.next_offset + chunk.count)
        self._admission.pending_bytes += chunk.size
        self._enqueue()

    def _enqueue(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._admission.dirty.append(self)
            self._admission.wake()

    def _waiting(self, chunk: Chunk, acks: Acks | None) -> list[Waiting]:
        """Return the list for waiters that are acknowledged at the level ``acks``."""
        full = "disk" if self.replica_hooks is None else self.config.acks_in_force
        return waiters_at(chunk, acks, full)

    # The group commit

    def take(self, bytes_max: int, records_max: int) -> tuple[list[Chunk], int, int]:
        """Take chunks for a group commit, at least one; see ``PendingQueue.take``."""
        chunks, size, records = self.pending.take(bytes_max, records_max)
        self._is_dirty = bool(self.pending.batches)
        self._admission.pending_bytes -= size
        return chunks, size, records

    def write(self, chunk: Chunk, now_ns: TimestampNs, logs: list[Log]) -> Buffer:
        """Encode a batch, encrypt it if the stream is encrypted, append it to the log, unsynced.

        Returns:
            The batch for the journal; ``logs`` gets the log if it should be written to files soon.

        Raises:
            DiskFullError: nothing of the batch was kept.
            LogPoisonedError: a write failed.
        """
        base, log = chunk.base_offset, self.log
        next_offset = Offset(base + chunk.count)
        now_ns = self.times.next(base, next_offset, now_ns)
        batch = chunk.encode(Stamp(base, self.leader_epoch, now_ns, self.config.compression))
        if log.sealer is not None:
            batch = log.sealer.seal(batch)
        if log.append(batch, Extent(base, next_offset, len(batch), now_ns, now_ns)):
            logs.append(log)
        if (index := self.committed.transaction_index) is not None:
            index.written(batch)
        return batch

    def commit(self, offset: Offset) -> None:
        """Expose the records below ``offset``, and wake the readers that wait for them."""
        self.committed.commit(offset)
        if self._repeats.late:
            self._repeats.committed(offset)

    def journaled(self, chunk: Chunk, batch: Buffer) -> None:
        """Acknowledge at level ``memory``: a batch is in the journal, not synced."""
        if chunk.early:
            self._admission.send_queue.acknowledge(self.name, chunk.early)
            chunk.early = None
        if self.replica_hooks is not None:
            self.replica_hooks.journaled(chunk, batch)

    def synced(self, chunk: Chunk, next_offset: Offset) -> None:
        """Commit and acknowledge a batch: on this broker it is as safe as the stream requires."""
        if self.replica_hooks is not None:
            self.replica_hooks.synced(chunk, next_offset)
            return
        self.commit(next_offset)
        self._admission.send_queue.acks.append((self.name, chunk.waiting))
        chunk.waiting = []

    def reject_from(self, chunks: Sequence[Chunk], error: StrandlineError) -> int:
        """Reject batches that were taken but not stored, and everything accepted after them.

        Returns:
            The number of rejected records.
        """
        before = self.next_offset
        pending = self.pending.clear()
        self._admission.pending_bytes -= sum(chunk.size for chunk in pending)
        self.next_offset = self.log_end_offset
        self.duplicates.forget_from(self.next_offset)
        self.sequences.forget_from(self.next_offset)
        if self.transaction_index is not None:
            self.transaction_index.forget_from(self.next_offset)
        reject_waiting((*chunks, *pending), error)
        self.duplicates.held.reject(error)
        self._repeats.reject(error)
        self._admission.send_queue.deliver_soon()
        return before - (chunks[0].base_offset if chunks else self.next_offset)

    # The log and the role

    def rebind(self, log: Log, high_watermark: Offset | None = None) -> None:
        """Continue on a log that was reopened after a failure; nothing is pending.

        Args:
            log: the reopened log.
            high_watermark: the end of the committed records; None: all are committed.
        """
        assert not self.pending.batches, "everything was rejected when the storage failed"
        log.seal_with(self.log.sealer)
        self.log = log
        self._led_from = Offset(0) if self.replica_hooks is None else None  # set by ``lead``
        self.duplicates.rebind(log)
        self.sequences.start_over(log.log_end_offset)
        self.next_offset = log.log_end_offset
        if self.replica_hooks is None:
            self.preload_ids()
        end = log.log_end_offset if high_watermark is None else high_watermark
        self.committed.reopen(log, end)

    def preload_ids(self) -> None:
        """Start to load the message ids if the log shows that they are used."""
        self.duplicates.preload_messages(self.config.dedup_window_ms)

    def attach_replica(self, replica_hooks: ReplicaHooks, high_watermark: Offset) -> None:
        """Become a replica of a cluster: the hooks decide what is accepted and committed.

        Only a leader maintains ``next_offset``: replicated batches reach the log without it.
        """
        self.replica_hooks = replica_hooks
        self.needs_sync = True
        self._led_from = None
        is_known = high_watermark == self.high_watermark
        self.committed.high_watermark = high_watermark
        if self.transaction_index is not None and not is_known:
            self.committed.keep_transaction_index(self.log_start_offset)

    def lead(self, leader_epoch: LeaderEpoch) -> None:
        """Start a leadership: accept records after the end of the log; nothing is pending."""
        assert not self.pending.batches, "a follower accepts nothing"
        self.leader_epoch = leader_epoch
        self.duplicates.forget_messages()  # they lack the ids that the leader before has stored
        self.next_offset = self._led_from = self.log_end_offset
        self.sequences.start_over(self.next_offset)
        self.preload_ids()
        self.committed.wake()

    def change_leader_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Continue to lead with another leader epoch."""
        self.leader_epoch = leader_epoch

    def follow(self) -> None:
        """Stop leading; wake waiting readers, so that they look for the new leader."""
        if self._led_from is not None:
            self._led_from = None
            self.committed.wake()

    def locate(self, addresses: tuple[str, ...], *, in_sync: tuple[str, ...], leader: str) -> None:
        """Note the Flight addresses: of the replicas (leader first), those in sync, the leader."""
        self.addresses, self.in_sync_addresses, self.leader_address = addresses, in_sync, leader

    def set_led(self, *, is_led: bool) -> None:
        """Note whether this broker leads, according to the metadata known here."""
        self.is_led = is_led

    def copied(self, batches: Sequence[Buffer]) -> None:
        """Note the transactions and producers of batches that were replicated from the leader."""
        if self.transaction_index is not None:
            for batch in batches:
                self.transaction_index.written(batch)
        elif any(map(has_transactions, batches)):
            # The leader uses transactions already, and the metadata here does not show it yet.
            self.committed.keep_transaction_index(self.high_watermark)
        self.duplicates.copied(batches)

    def set_write_error(self, error: StrandlineError | None) -> None:
        """Reject records with this error from now on; None: accept them."""
        self._not_leader_error = error
        self._update_rejection()

    def block_writes(self, error: StrandlineError | None) -> None:
        """Reject records because the metadata says so, for any leader; None: accept them."""
        if error is None and self.blocked_by is None:
            return
        self.blocked_by = error
        self._update_rejection()
        self.committed.wake()

    def _update_rejection(self) -> None:
        self._rejection = self.closed_by or self._not_leader_error or self.blocked_by

    def _repair(self, first_offset: Offset, next_offset: Offset) -> None:
        """Fetch batches that cannot be read here from another replica."""
        if self.replica_hooks is not None and not self.closed:
            self.replica_hooks.corruption_found(first_offset, next_offset)

    def move(self, high_watermark: Offset) -> None:
        """Continue at the end of a log that was restarted elsewhere; all before it is committed."""
        self.next_offset = self.log_end_offset
        self.duplicates.forget_producers_from(self.log_end_offset)
        self.committed.move(high_watermark)

    def close(self, error: StrandlineError) -> None:
        """Reject records with ``error`` from now on, and end the readers' waits.

        Reads in progress can still use the log.
        """
        self.closed_by = error
        self._update_rejection()
        self.duplicates.close(error)
        self.committed.close()

    # For readers, who know a partition as a whole

    def read(self, offset: Offset, bytes_max: int, *, below: Offset | None = None) -> pa.Buffer:
        """Return whole batches from ``offset`` on; see ``CommittedRecords.read``."""
        return self.committed.read(offset, bytes_max, below=below)

    def hidden_between(self, start: int, stop: int) -> int:
        """Count the committed offsets of markers and of aborted records in a range; any thread."""
        return self.committed.hidden_between(start, stop)

    def find_runs(self, *patterns: str) -> SubjectSearch | RetainedSearch | None:
        """Return a finder of records with matching subjects, None if it has none; any thread."""
        return self.committed.find_runs(patterns) if self.remote_error is None else None

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> Offset:
        """Return the first offset stored at or after a time, else the stable offset."""
        return self.committed.offset_for_timestamp(timestamp_ns)

    def stored_ns(self, offset: int) -> TimestampNs | None:
        """Return about when the record at or after an offset was stored, if it is readable."""
        return self.committed.stored_ns(offset)

    def watch(self, waiter: Waiter) -> None:
        """Set ``waiter``, on the loop, at every commit and change of state, until ``unwatch``."""
        self.committed.watch(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """End a ``watch``."""
        self.committed.unwatch(waiter)
