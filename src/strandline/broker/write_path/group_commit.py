"""The turn: take what partitions accepted, write it, sync once, answer, wake readers.

Group commit falls out of it: one write and one sync per turn, whatever the number of publishers,
connections and partitions. While a sync runs beside it the loop goes on accepting; what it
accepts is the next turn.

What other replicas have committed meanwhile is answered while the disk syncs, not after it
(docs/adr/0035).

Rules: only one turn is between write and answer at a time, so at most one journal entry is
unsynced. Nothing is answered before the sync, except what asked for acks 'memory'. Whoever is taken
into a turn is answered exactly once, whatever happens in it. A failed journal write or sync
poisons: everything waiting is rejected and nothing more is accepted until it is reopened; so does
a bug in a turn, because what it left behind is anybody's guess.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from strandline.broker.write_path.ack_sink import AckSink
from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.append_queue import AppendQueue, DrainedBatch
from strandline.broker.write_path.catch_up_writes import CatchUpWrites
from strandline.broker.write_path.journal_sync import JournalSync
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import Chunk, Waiting, acknowledge, reject_waiting
from strandline.broker.write_path.replica_writes import Done, ReplicaWrite, ReplicaWrites
from strandline.broker.write_path.segment_writeback import SegmentWriteback
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock
from strandline.errors import (
    DiskFullError,
    InvalidRequestError,
    LogPoisonedError,
    StrandlineError,
    UnavailableError,
)
from strandline.storage.disk import Bytes
from strandline.storage.journal import Journal
from strandline.storage.log import Log
from strandline.telemetry import Telemetry
from strandline.types import LogId, Offset


class WrittenEntry(NamedTuple):
    """A chunk that is in its log, and where its log ended after it."""

    partition: Partition
    chunk: Chunk
    batch: bytearray
    next_offset: Offset


def _only_source(written: Sequence[WrittenEntry]) -> AckSink | None:
    """The connection that all records came over, as far as each chunk's first and last tell."""
    waiting = (item.chunk.waiting for item in written if item.chunk.waiting)
    sources = (end.ack_sink for each in waiting for end in (each[0], each[-1]))
    first = next(sources, None)
    return first if all(source is first for source in sources) else None


class GroupCommitter:
    """Owns the order of write, sync and answer.

    Args:
        loop: the broker's loop; everything here runs on its thread.
        admission: shared with the partitions.
        clock: read once a turn.
        telemetry: counters.
        on_poisoned: called once when a write or sync failed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        admission: Admission[Partition],
        clock: Clock,
        telemetry: Telemetry,
        on_poisoned: Callable[[StrandlineError], None],
    ) -> None:
        self._loop = loop
        self._admission = admission
        self._clock = clock
        self._telemetry = telemetry
        self._on_poisoned = on_poisoned
        self._journal: Journal | None = None
        self._is_scheduled = False
        self.append_queue = AppendQueue(loop, admission)
        self._under_way: list[DrainedBatch] = []
        self._raw = ReplicaWrites()
        self._late = SegmentWriteback(loop, self.poison)
        self._bulk = CatchUpWrites(
            loop,
            telemetry=telemetry,
            on_poisoned=self.poison,
            go_on=self._submit,
            is_busy=self._raw.has,
        )
        self._entry_sync = JournalSync(
            loop,
            clock=clock,
            telemetry=telemetry,
            late=self._late,
            send_answers=self.send_answers,
            end_with=self._end_with,
        )
        self._is_busy = False
        self._passing: list[asyncio.Future[None]] = []
        self._met_full_disk = False
        self.answered_callbacks: list[Callable[[], None]] = []
        self.replication: Callable[[], bool] | None = None
        """In a cluster: called after each journal write and after each sync; whether frames are
        about to leave."""

    def reads(self, ack_sink: AckSink) -> None:
        """The loop itself reads what comes over a connection, so it can while the disk works."""
        self._entry_sync.read_here.add(ack_sink)

    def attach(self, journal: Journal, syncer: SyncPolicy) -> None:
        """Use this journal from now on (at start, and after a poisoned one was reopened)."""
        assert not self._is_busy, "a turn ends with the journal it began with"
        self._journal = journal
        self._entry_sync.attach(journal, syncer)

    @property
    def is_busy(self) -> bool:
        """Whether a turn is between write and answer."""
        return self._is_busy

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is between write and answer."""
        if self._is_busy or not self.append_queue.is_empty:
            return False
        return self._raw.is_idle and self._bulk.is_idle

    async def passed(self) -> None:
        """Wait until the turn that is under way, and what is done beside it, is answered."""
        await self._bulk.passed()
        if self._is_busy:
            await self._answered()

    async def _answered(self) -> None:
        answered: asyncio.Future[None] = self._loop.create_future()
        self._passing.append(answered)
        await answered

    async def sync(self) -> int:
        """Make durable what was answered without a sync; no turn is under way on return.

        On the loop, as it is done, too, whenever a journal file is full. Returns the journal's
        last sequence.

        Raises:
            LogPoisonedError: now or earlier a write or sync failed.
        """
        while self._is_busy:  # whose sync may be told of a failure that ours would not be
            await self._answered()
        assert self._journal is not None, "attached before the first record"
        try:
            return self._journal.sync()
        except LogPoisonedError as error:
            self.poison(error)
            raise

    def submit(self, write: ReplicaWrite) -> None:
        """Write finished batches: in the next turn, or if they are large beside it."""
        if self._admission.refusal is not None:
            self._loop.call_soon(write.done, self._admission.refusal)
        elif not self._bulk.holds(write):
            self._submit(write)

    def _submit(self, write: ReplicaWrite) -> None:
        if not self._bulk.begin([write]):
            self._raw.submit(write)
            self.wake()

    def change(self, log: Log, work: Callable[[int], None], done: Done) -> None:
        """Change a log beside the loop, where that may take long: cut it, or begin it anew.

        Args:
            log: nothing of it is on its way, and nothing is submitted for it until ``done``.
            work: runs on a thread, with the sequence up to which the journal is durable.
            done: told the outcome, on the loop.
        """
        if self._admission.refusal is not None:
            self._loop.call_soon(done, self._admission.refusal)
        else:
            self._bulk.change(log, self._changed(work), done)

    async def _changed(self, work: Callable[[int], None]) -> None:
        sequence = await self.sync()  # what comes into the journal after it is of other logs
        await self._loop.run_in_executor(None, work, sequence)

    def is_changing(self, log: Log) -> bool:
        """Whether a log is being changed beside the loop."""
        return log in self._bulk.changing

    def wake(self) -> None:
        """Run a turn in the loop's next round, after every socket that is ready was read."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """One turn, unless one is still syncing: its end starts the next."""
        self._is_scheduled = False
        if self._is_busy:
            self.send_answers()
            return
        self._admission.now_ns = self._clock.now_ns()
        self._met_full_disk = False
        self._guarded(self._begin)
        if not self._is_busy:
            self._end()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step of the turn; if it fails everyone in the turn is answered all the same."""
        try:
            step()
        except LogPoisonedError as error:
            self._poison(error)
        except Exception as bug:
            # Not handled, only survived: the log is reopened, and the loop reports the bug.
            self._poison(LogPoisonedError(f"internal error, the log is reopened: {bug!r}"))
            self._end()
            raise

    def _begin(self) -> None:
        """Take, write, and sync or have it done beside the loop."""
        self._is_busy = True
        self._under_way = self.append_queue.take()
        # Copies first: a follower that has just become the leader goes on behind them.
        parts = self._raw.write()
        written = self._write()
        parts += [(item.partition.log_id, item.batch) for item in written]
        if parts and self._journal_write(parts):
            self._note_logs(written)
            for item in written:
                if item.chunk.early:
                    self._answer(item.partition, item.chunk.early)
                if item.partition.replica_hooks is not None:
                    item.partition.replica_hooks.journaled(item.chunk, item.batch)
            size = sum(len(batch) for _, batch in parts)
            self._sync(written, size=size, is_sending=self._flush())
        else:
            self._under_way = []
            self._is_busy = False

    def _write(self) -> list[WrittenEntry]:
        """Encode and append to the logs; a partition whose disk is full loses its chunks only.

        Raises:
            LogPoisonedError: a write failed.
        """
        written: list[WrittenEntry] = []
        now_ns = self._admission.now_ns
        for partition, chunks in self._under_way:
            for index, chunk in enumerate(chunks):
                try:
                    batch = partition.write(chunk, now_ns)
                except LogPoisonedError:
                    raise
                except StrandlineError as error:
                    self._give_up(partition, chunks, error, index=index)
                    break
                next_offset = Offset(chunk.base_offset + chunk.count)
                written.append(WrittenEntry(partition, chunk, batch, next_offset))
        return written

    def _give_up(
        self, partition: Partition, chunks: list[Chunk], error: StrandlineError, *, index: int
    ) -> None:
        """Reject the chunk at ``index`` and, as offsets are dense, everything behind it."""
        lost = chunks[index:]
        del chunks[index:]
        if isinstance(error, InvalidRequestError):  # nobody else's fault
            reject_waiting(lost[:1], error)
            error = UnavailableError("a record before this one could not be stored; retry")
        self._reject(partition, lost, error)

    def _journal_write(self, parts: Sequence[tuple[LogId, Bytes]]) -> bool:
        """Write the turn's entry; False if there is no room for it, and everything is undone.

        Raises:
            LogPoisonedError: the write failed.
        """
        assert self._journal is not None, "attached before the first record"
        try:
            self._journal.append(parts)
        except LogPoisonedError:
            raise
        except UnavailableError as error:
            self._undo(error)
            return False
        return True

    def _note_logs(self, written: list[WrittenEntry]) -> None:
        """Let what the logs were given be written to their segments."""
        for log in self._raw.logs:
            self._late.note(log)
        for item in written:
            self._late.note(item.partition.log)

    def _sync(self, written: list[WrittenEntry], *, size: int, is_sending: bool) -> None:
        """Make the entry durable if anything in it has to be, then answer.

        Args:
            written: the turn's chunks.
            size: bytes of the entry's batches.
            is_sending: frames leave when the loop comes round.

        Raises:
            LogPoisonedError: the sync failed.
        """
        needs_sync = any(item.partition.needs_sync for item in written)
        if not needs_sync and self._raw.is_idle:
            self._complete(written)
            return
        # With replicas the ack waits for others, who need the CPU.
        is_alone = len(written) == 1 and written[0].chunk.count == 1 and self.replication is None
        self._entry_sync.begin(
            size,
            source=_only_source(written),
            is_alone=is_alone,
            is_sending=is_sending,
            then=lambda: self._complete(written),
        )

    def _end_with(self, last_step: Callable[[], None]) -> None:
        """End a turn that took more than one round of the loop."""
        self._guarded(last_step)
        self._end()

    def _complete(self, written: list[WrittenEntry]) -> None:
        """Commit, answer and wake."""
        telemetry = self._telemetry
        records = size = 0
        for partition, chunk, batch, next_offset in written:
            if partition.replica_hooks is not None:
                partition.replica_hooks.synced(chunk, next_offset)
            else:
                partition.commit(next_offset)
                if chunk.waiting:
                    self._answer(partition, chunk.waiting)
            size += len(batch)
            records += chunk.count
        self._under_way = []
        self._is_busy = False
        self._raw.complete()
        self._flush()
        telemetry.turns += 1
        telemetry.disk_full = int(self._met_full_disk)
        telemetry.batches_appended += len(written)
        telemetry.records_appended += records
        telemetry.bytes_appended += size
        telemetry.turn_bytes.observe(size)
        telemetry.turn_records.observe(records)

    def _flush(self) -> bool:
        """Let the replicas of a cluster say what this step of the turn gave them to say.

        Returns:
            Whether frames leave when the loop comes round.
        """
        return self.replication is not None and self.replication()

    def _answer(self, partition: Partition, waiting: list[Waiting]) -> None:
        """Acknowledge records."""
        self._telemetry.acks += acknowledge(waiting, partition.name)

    def _end(self) -> None:
        """Go on if more was accepted meanwhile, and flush the front ends."""
        passing, self._passing = self._passing, []
        for waiter in passing:
            if not waiter.done():
                waiter.set_result(None)
        if self._admission.dirty or self._raw.has_waiting:
            self.wake()
        self.send_answers()
        self._late.go_on()

    def send_answers(self) -> None:
        """Let the front ends send what was answered: by this turn, or by a commit."""
        for callback in self.answered_callbacks:
            callback()

    def _reject(self, partition: Partition, chunks: list[Chunk], error: StrandlineError) -> None:
        """Give up taken chunks and whatever the partition accepted after them."""
        before = partition.next_offset
        partition.reject_from(chunks, error)
        lost = before - chunks[0].base_offset if chunks else before - partition.next_offset
        self._admission.rejects[error.code] += lost
        self._note_full_disk(error)

    def _note_full_disk(self, error: StrandlineError) -> None:
        if isinstance(error, DiskFullError):
            self._met_full_disk = True
            self._telemetry.count_full_disk()

    def _undo(self, error: StrandlineError) -> None:
        """Take the turn's chunks back out of their logs and reject them.

        Raises:
            LogPoisonedError: a log could not be cut.
        """
        self._note_full_disk(error)
        for partition, chunks in self._under_way:
            if not chunks:
                continue
            try:
                partition.log.undo_to(chunks[0].base_offset)
            except UnavailableError as failure:
                raise LogPoisonedError(
                    f"a turn could not be undone, the log is reopened: {failure.message}"
                ) from failure
            lost = chunks.copy()
            chunks.clear()
            self._reject(partition, lost, error)
        self._raw.undo(error)

    def poison(self, error: StrandlineError) -> None:
        """A write or sync outside a turn has failed: nothing is acked until reopened.

        A turn whose sync is under way ends as that sync does.
        """
        assert self._journal is not None, "attached before anything is written"
        self._journal.poison()
        is_first = self._admission.refusal is None
        if is_first:
            self._admission.refusal = error
        for partition in self.append_queue.partitions:
            self._reject(partition, [], error)
        self._raw.refuse(error)
        self._bulk.refuse(error)
        self._telemetry.journal_poisoned = 1
        if is_first:
            self._on_poisoned(error)

    def _poison(self, error: StrandlineError) -> None:
        """A write or sync of this turn has failed: reject what it took, too.

        The logs are left as they are: what the disk holds is known only after reopening.
        """
        under_way, self._under_way = self._under_way, []
        self._is_busy = False
        for partition, chunks in under_way:
            self._reject(partition, chunks, error)
        self._raw.fail(error)
        self.poison(error)
