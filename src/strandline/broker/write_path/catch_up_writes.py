"""Large writes of a replica that catches up: into segments, which are synced, not into the journal.

Through the journal such batches would be written to disk twice, and the syncs for which publishers
wait would have to wait for both writes (docs/adr/0034). Recovery finds the batches in the segments,
like batches whose journal entry was lost. They are flushed to the disk one part at a time, so that
publishers' syncs wait for one part only.

A log is truncated on a thread, since that takes long for large files.

Rules: all on the loop's thread, except syncs and truncations; each write's ``done`` is called
exactly once. Writes for a log that arrive during its sync wait for the sync, so that no later batch
is durable before an earlier one. A log with a write in the journal that has not ended continues to
use the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.replica_writes import (
    Done,
    ReplicaWrite,
    ReplicaWrites,
    append_whole,
)
from strandline.broker.write_path.segment_writeback import write_back
from strandline.errors import LogPoisonedError, StrandlineError
from strandline.storage.log import Log
from strandline.telemetry import Telemetry
from strandline.types import LogId

BULK_BYTES: Final = 1 << 20
"""The size from which writing the bytes twice costs more than a sync."""
STEP_PAUSE_S: Final = 0.003
"""The pause between two parts, so that the journal can be synced between them."""


class CatchUpWrites:
    """Writes of finished batches: large ones go to the segments, others to the group commit.

    Args:
        loop: the broker's event loop.
        admission: has the error after storage failed, and requests a group commit.
        copies: the writes that the group commit makes.
        telemetry: counters.
        on_poisoned: called when a write or sync failed.
        sync: makes the journal durable, and returns its last sequence.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        admission: Admission[Any],
        copies: ReplicaWrites,
        telemetry: Telemetry,
        on_poisoned: Callable[[StrandlineError], None],
        sync: Callable[[], Awaitable[int]],
    ) -> None:
        self._loop = loop
        self._admission = admission
        self._copies = copies
        self._telemetry = telemetry
        self._on_poisoned = on_poisoned
        self._sync_journal = sync
        self._held: dict[LogId, list[ReplicaWrite]] = {}
        self._syncs: set[asyncio.Task[None]] = set()
        self.changing: set[Log] = set()
        """The logs that ``change`` is working on."""

    @property
    def is_idle(self) -> bool:
        """Whether no log is being synced or truncated."""
        return not self._held and not self.changing

    async def passed(self) -> None:
        """Wait until the outcome of the current syncs and truncations was reported."""
        if self._syncs:
            await asyncio.wait(set(self._syncs))

    def submit(self, write: ReplicaWrite) -> None:
        """Write finished batches: large ones into segments, others with the next group commit."""
        held = self._held.get(write.log_id)
        if self._admission.write_error is not None:
            self._loop.call_soon(write.done, self._admission.write_error)
        elif held is not None:
            held.append(write)
        else:
            self._submit(write)

    def _submit(self, write: ReplicaWrite) -> None:
        if not self._begin([write]):
            self._copies.submit(write)
            self._admission.wake()

    def change(self, log: Log, work: Callable[[int], None], done: Done) -> None:
        """Change a log on a thread, such as by truncation, since that may take long.

        Args:
            log: has no write in progress; none may be submitted until ``done`` is called.
            work: runs on a thread; its argument is the sequence up to which the journal is durable.
            done: receives the outcome, on the loop.
        """
        if self._admission.write_error is not None:
            self._loop.call_soon(done, self._admission.write_error)
            return
        assert log not in self.changing, "one change at a time"
        self.changing.add(log)
        task = self._loop.create_task(self._change(work))
        self._syncs.add(task)

        def changed(task: asyncio.Task[None]) -> None:
            self._syncs.remove(task)
            self.changing.remove(log)
            if not task.cancelled():  # cancelled: the loop is closing
                done(self._failure_of(task))

        task.add_done_callback(changed)

    async def _change(self, work: Callable[[int], None]) -> None:
        sequence = await self._sync_journal()  # later entries are for other logs
        await self._loop.run_in_executor(None, work, sequence)

    def _begin(self, writes: Sequence[ReplicaWrite]) -> bool:
        """Start a log's writes, in order, if they are large and the log has no others in progress.

        Returns:
            False if they must go to the journal.
        """
        log_id, log = writes[0].log_id, writes[0].log
        batches = [batch for write in writes for batch in write.batches]
        size = sum(map(len, batches))
        if size < BULK_BYTES or not log.can_do_without_journal or self._copies.has(log_id):
            return False
        try:
            error = append_whole(log, batches, is_written=True)
        except LogPoisonedError as failure:
            self._on_poisoned(failure)
            error = failure
        self._held[log_id] = []
        if error is None:
            self._telemetry.bulk_bytes += size
            sync = self._loop.create_task(self._sync(log))
            self._syncs.add(sync)
            sync.add_done_callback(lambda done: self._synced(writes, done))
        else:
            self._loop.call_soon(self._end, writes, error)
        return True

    def reject_waiting(self, error: StrandlineError) -> None:
        """Reject waiting writes, because the storage failed; a running sync may still succeed."""
        for held in self._held.values():
            rejected = held.copy()
            held.clear()
            for write in rejected:
                write.done(error)

    async def _sync(self, log: Log) -> None:
        """Make a log's written batches durable, one part at a time.

        Raises:
            LogPoisonedError: a sync failed, now or earlier.
            ShuttingDownError: the log was closed or deleted.
        """
        await write_back(log, pause_s=STEP_PAUSE_S)
        await self._loop.run_in_executor(None, log.sync_written)

    def _synced(self, writes: Sequence[ReplicaWrite], sync: asyncio.Task[None]) -> None:
        self._syncs.remove(sync)
        if not sync.cancelled():  # cancelled: the loop is closing
            self._end(writes, self._failure_of(sync))

    def _failure_of(self, task: asyncio.Task[None]) -> StrandlineError | None:
        """Return the task's error, or None; if a log is poisoned, poison the whole storage."""
        failure = task.exception()
        if failure is not None and not isinstance(failure, StrandlineError):
            failure = LogPoisonedError(f"internal error, the log is reopened: {failure!r}")
        if isinstance(failure, LogPoisonedError):
            self._on_poisoned(failure)
        return failure

    def _end(self, writes: Sequence[ReplicaWrite], error: StrandlineError | None) -> None:
        """Report the outcome of writes, then start those that arrived in the meantime."""
        for write in writes:
            write.done(error)
        held = self._held.pop(writes[0].log_id)
        if error is not None:
            for write in held:
                write.done(error)
        elif held and not self._begin(held):
            for write in held:
                self._submit(write)
