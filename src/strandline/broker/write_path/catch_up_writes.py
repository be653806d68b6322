"""Large copies on their way past the journal: into their segments, which are synced instead.

What a replica that catches up is sent would else go to the disk twice, and the syncs for which
publishers wait would have to wait for both (docs/adr/0034). Recovery finds such batches where they
are, as it finds those whose journal entry was lost. The disk gets them a part at a time, for the
same publishers' sake.

A log is cut beside the loop, too, since file systems take long for large files.

Rules: on the loop's thread, but for the sync; whoever submits is told exactly once. What is
submitted for a log meanwhile waits for the sync, so that no later batch of it is durable before an
earlier one. A log that cannot do without the journal now, or has something on its way there, goes
on using it.
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
"""From so much on it is the bytes that cost, not the sync."""
STEP_PAUSE_S: Final = 0.003
"""Between two parts that the disk is given, so that a sync of a journal need not wait for all."""


class CatchUpWrites:
    """Finished batches for logs: large ones are written here, the others in the group commit.

    Args:
        loop: the broker's.
        admission: says whether storage has failed, and asks for a group commit.
        copies: those for the group commit.
        telemetry: counters.
        on_poisoned: told when a write or sync failed.
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
        """Logs that are being cut."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being synced or cut."""
        return not self._held and not self.changing

    async def passed(self) -> None:
        """Wait until what is being synced or cut now was answered."""
        if self._syncs:
            await asyncio.wait(set(self._syncs))

    def submit(self, write: ReplicaWrite) -> None:
        """Write finished batches: in the next group commit, or if they are large beside it."""
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
        """Change a log beside the loop, where that may take long: cut it, or begin it anew.

        Args:
            log: nothing of it is on its way, and nothing is submitted for it until ``done``.
            work: runs on a thread, with the sequence up to which the journal is durable.
            done: told the outcome, on the loop.
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
        """Take writes of one log, in order, if they are large and nothing of it is elsewhere.

        Returns:
            False if they are for the journal.
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

    def refuse(self, error: StrandlineError) -> None:
        """Storage has failed: give up what waits; what is being synced may still be in time."""
        for held in self._held.values():
            refused = held.copy()
            held.clear()
            for write in refused:
                write.done(error)

    async def _sync(self, log: Log) -> None:
        """Make what was written durable, a part at a time.

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
        """Why it failed, if it did; what poisons the log poisons all."""
        failure = task.exception()
        if failure is not None and not isinstance(failure, StrandlineError):
            failure = LogPoisonedError(f"internal error, the log is reopened: {failure!r}")
        if isinstance(failure, LogPoisonedError):
            self._on_poisoned(failure)
        return failure

    def _end(self, writes: Sequence[ReplicaWrite], error: StrandlineError | None) -> None:
        """Tell them, and go on with what came meanwhile."""
        for write in writes:
            write.done(error)
        held = self._held.pop(writes[0].log_id)
        if error is not None:
            for write in held:
                write.done(error)
        elif held and not self._begin(held):
            for write in held:
                self._submit(write)
