"""Large writes of a replica that catches up: into segments, which are synced, not into the journal.

Through the journal they would be written to disk twice, and the syncs for which publishers wait
would have to wait for both (docs/adr/0034). Recovery finds such batches in the segments, as it
finds those whose journal entry was lost. They are flushed to the disk one part at a time, so that
publishers' syncs do not wait for all of it.

A log is truncated on a thread, too, since file systems take long for large files.

Rules: on the loop's thread, except for the sync; each write's ``done`` is called exactly once.
Writes for a log that arrive during its sync wait for it, so that no later batch is durable before
an earlier one. A log that needs the journal now, or has a write in it, continues to use it.
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
"""From this size on the bytes cost more than the sync."""
STEP_PAUSE_S: Final = 0.003
"""Between two parts that are flushed, so that a sync of the journal need not wait for all."""


class CatchUpWrites:
    """Finished batches for logs: large ones are written here, the others in the group commit.

    Args:
        loop: the broker's event loop.
        admission: says whether storage has failed, and requests a group commit.
        copies: the writes of the group commit.
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
        """Logs that are being changed."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being synced or truncated."""
        return not self._held and not self.changing

    async def passed(self) -> None:
        """Wait until the syncs and truncations under way have been reported."""
        if self._syncs:
            await asyncio.wait(set(self._syncs))

    def submit(self, write: ReplicaWrite) -> None:
        """Write finished batches: large ones into segments, others in the next group commit."""
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
        """Change a log on a thread, where that may take long: truncate it, or restart it elsewhere.

        Args:
            log: has no write under way, and gets none until ``done`` is called.
            work: runs on a thread, with the sequence up to which the journal is durable.
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
            if not task.cancelled():  # else the loop is being closed
                done(self._failure_of(task))

        task.add_done_callback(changed)

    async def _change(self, work: Callable[[int], None]) -> None:
        sequence = await self._sync_journal()  # what comes after it is of other logs
        await self._loop.run_in_executor(None, work, sequence)

    def _begin(self, writes: Sequence[ReplicaWrite]) -> bool:
        """Begin a log's writes, in order, if they are large and the log has no others under way.

        Returns:
            False if they belong into the journal.
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
        """Reject waiting writes, because the storage failed; a sync under way may still succeed."""
        for held in self._held.values():
            rejected = held.copy()
            held.clear()
            for write in rejected:
                write.done(error)

    async def _sync(self, log: Log) -> None:
        """Make what was written durable, one part at a time.

        Raises:
            LogPoisonedError: a sync failed, now or earlier.
            ShuttingDownError: the log was closed or deleted.
        """
        await write_back(log, pause_s=STEP_PAUSE_S)
        await self._loop.run_in_executor(None, log.sync_written)

    def _synced(self, writes: Sequence[ReplicaWrite], sync: asyncio.Task[None]) -> None:
        self._syncs.remove(sync)
        if not sync.cancelled():  # else the loop is being closed
            self._end(writes, self._failure_of(sync))

    def _failure_of(self, task: asyncio.Task[None]) -> StrandlineError | None:
        """Return the task's error, if it failed; an error that poisons one log poisons all."""
        failure = task.exception()
        if failure is not None and not isinstance(failure, StrandlineError):
            failure = LogPoisonedError(f"internal error, the log is reopened: {failure!r}")
        if isinstance(failure, LogPoisonedError):
            self._on_poisoned(failure)
        return failure

    def _end(self, writes: Sequence[ReplicaWrite], error: StrandlineError | None) -> None:
        """Report the outcome of writes, and continue with those that arrived meanwhile."""
        for write in writes:
            write.done(error)
        held = self._held.pop(writes[0].log_id)
        if error is not None:
            for write in held:
                write.done(error)
        elif held and not self._begin(held):
            for write in held:
                self._submit(write)
