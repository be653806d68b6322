"""The turn: drain what partitions accepted, write it, sync once, answer, wake readers.

Group commit falls out of it: one write and one sync per turn, whatever the number of publishers,
connections and partitions. While a slow sync runs in its thread the loop goes on accepting; what
it accepts is the next turn.

Rules: only one turn is between write and answer at a time, so at most one journal entry is
unsynced. Nothing is answered before the sync, except what asked for acks 'memory'. A failed
journal write or sync poisons: everything waiting is rejected and nothing more is accepted until
it is reopened.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from strandline.broker.partition import Admission, Partition
from strandline.broker.pending import Chunk, Waiting
from strandline.broker.syncer import Syncer
from strandline.clock import Clock
from strandline.errors import DiskFullError, LogPoisonedError, StrandlineError
from strandline.storage.journal import Journal
from strandline.telemetry import Telemetry
from strandline.types import LogId, Offset


class Written(NamedTuple):
    """A chunk that is in its log, and where its log ended after it."""

    partition: Partition
    chunk: Chunk
    batch: bytearray
    next_offset: Offset


class Turn:
    """Owns the order of write, sync and answer.

    Args:
        loop: the broker's loop; everything here runs on its thread.
        admission: shared with the partitions; its ``dirty`` list is the inbox.
        clock: read once a turn.
        telemetry: counters.
        on_poisoned: called once when a write or sync failed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        admission: Admission,
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
        self._syncer: Syncer | None = None
        self._is_scheduled = False
        self._syncing: list[Written] | None = None
        self.turn_end_callbacks: list[Callable[[], None]] = []

    def attach(self, journal: Journal, syncer: Syncer) -> None:
        """Use this journal from now on (at start, and after a poisoned one was reopened)."""
        self._journal = journal
        self._syncer = syncer

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is between write and answer."""
        return self._syncing is None and not self._admission.dirty

    def wake(self) -> None:
        """Run a turn in the loop's next round, after every socket that is ready was read."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """One turn, unless one is still syncing: its end starts the next."""
        self._is_scheduled = False
        if self._syncing is not None:
            return
        self._admission.now_ns = self._clock.now_ns()
        written = self._write(self._drain())
        if not written:
            self._end()
            return
        if not self._journal_write(written):
            return
        for item in written:
            _answer(item.partition, item.chunk.early)
        self._sync(written)

    def _drain(self) -> list[tuple[Partition, list[Chunk]]]:
        """Take chunks from the dirty partitions, up to the turn's limit of bytes."""
        admission = self._admission
        dirty, admission.dirty = admission.dirty, []
        room = admission.limits.turn_bytes
        drained = []
        for index, partition in enumerate(dirty):
            if room <= 0:
                admission.dirty = dirty[index:] + admission.dirty
                break
            chunks = partition.take(room)
            room -= sum(chunk.size for chunk in chunks)
            drained.append((partition, chunks))
            if partition.has_pending:
                admission.dirty.append(partition)
        return drained

    def _write(self, drained: list[tuple[Partition, list[Chunk]]]) -> list[Written]:
        """Encode and append to the logs; a partition whose disk is full loses its chunks only."""
        written: list[Written] = []
        now_ns = self._admission.now_ns
        for partition, chunks in drained:
            for index, chunk in enumerate(chunks):
                try:
                    batch = partition.write(chunk, now_ns)
                except StrandlineError as error:
                    self._reject(partition, chunks[index:], error)
                    if not isinstance(error, DiskFullError):
                        self._poison(written, error)
                        return []
                    break
                written.append(Written(partition, chunk, batch, partition.log_end_offset))
        return written

    def _journal_write(self, written: list[Written]) -> bool:
        """Write the turn's entry; False if it could not be, and everything is rejected."""
        assert self._journal is not None, "attached before the first record"
        try:
            self._journal.append([(LogId(item.partition.log_id), item.batch) for item in written])
        except DiskFullError as error:
            self._undo(written, error)
            self._end()
            return False
        except LogPoisonedError as error:
            self._poison(written, error)
            return False
        return True

    def _sync(self, written: list[Written]) -> None:
        """Make the entry durable, in the way that suits the disk, then answer."""
        journal = self._journal
        assert journal is not None
        assert self._syncer is not None, "attached together"
        if all(item.partition.config.acks == "memory" for item in written):
            self._complete(written)
            return
        started_ms = self._clock.monotonic_ms()
        if self._syncer.is_inline:
            try:
                journal.sync()
            except LogPoisonedError as error:
                self._poison(written, error)
                return
            self._synced(started_ms)
            self._complete(written)
            return
        fd, sequence = journal.sync_target()
        self._syncing = written

        def done(error: StrandlineError | None) -> None:
            self._syncing = None
            if error is not None:
                self._poison(written, error)
                return
            journal.mark_synced(sequence)
            self._synced(started_ms)
            self._complete(written)

        self._syncer.submit(fd, done)

    def _synced(self, started_ms: float) -> None:
        """Count a sync and learn how long it took."""
        assert self._syncer is not None, "attached with the journal"
        took_ms = self._clock.monotonic_ms() - started_ms
        self._syncer.observe(took_ms)
        self._telemetry.sync_seconds.observe(took_ms / 1e3)

    def _complete(self, written: list[Written]) -> None:
        """Commit, answer and wake; then the next turn, if anything waits."""
        telemetry = self._telemetry
        records = 0
        for partition, chunk, batch, next_offset in written:
            partition.commit(next_offset)
            _answer(partition, chunk.waiting)
            telemetry.acks += len(chunk.waiting) + len(chunk.early)
            telemetry.bytes_appended += len(batch)
            records += chunk.count
        telemetry.turns += 1
        telemetry.disk_full = 0
        telemetry.batches_appended += len(written)
        telemetry.records_appended += records
        telemetry.turn_records.observe(records)
        self._end()

    def _end(self) -> None:
        """Flush the front ends and go on if more was accepted meanwhile."""
        for callback in self.turn_end_callbacks:
            callback()
        if self._admission.dirty:
            self.wake()

    def _reject(self, partition: Partition, chunks: list[Chunk], error: StrandlineError) -> None:
        """Give up taken chunks and whatever the partition accepted after them."""
        before = partition.next_offset
        partition.reject_from(chunks, error)
        lost = before - chunks[0].base_offset if chunks else before - partition.next_offset
        self._telemetry.rejects[error.code] += lost
        self._telemetry.disk_full = int(isinstance(error, DiskFullError))

    def _undo(self, written: list[Written], error: StrandlineError) -> None:
        """Take chunks back out of their logs and reject them."""
        chunks: dict[Partition, list[Chunk]] = {}
        for item in written:
            chunks.setdefault(item.partition, []).append(item.chunk)
        for partition, lost in chunks.items():
            partition.log.truncate_to(lost[0].base_offset)
            self._reject(partition, lost, error)

    def poison(self, error: StrandlineError) -> None:
        """A write or sync outside a turn has failed: nothing is acked until reopened."""
        self._poison([], error)

    def _poison(self, written: list[Written], error: StrandlineError) -> None:
        """After a failed write or sync: reject everything and accept nothing until reopened.

        The logs are left as they are: what the disk holds is known only after reopening.
        """
        if self._journal is not None:
            self._journal.poison()
        is_first = self._admission.refusal is None
        self._admission.refusal = error
        chunks: dict[Partition, list[Chunk]] = {}
        for item in written:
            chunks.setdefault(item.partition, []).append(item.chunk)
        for partition in self._admission.dirty:
            chunks.setdefault(partition, [])
        self._admission.dirty = []
        for partition, lost in chunks.items():
            self._reject(partition, lost, error)
        self._telemetry.journal_poisoned = 1
        if is_first:
            self._on_poisoned(error)
        self._end()


def _answer(partition: Partition, waiting: list[Waiting]) -> None:
    """Tell each responder where its record is."""
    name = partition.name
    for responder, token, offset, duplicate in waiting:
        responder.acked(token, name, offset, duplicate=duplicate)
