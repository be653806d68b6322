"""The group commit: drain accepted records, write them, sync once, acknowledge, wake readers.

There is one write and one sync per group commit, whatever the number of publishers, connections and
partitions. While a sync runs on a thread the loop continues to accept records, for the next group
commit. Records that other replicas have committed are acknowledged while the disk syncs, not after
it (docs/adr/0035). ``io_plan`` has the order of the steps, and what a failure undoes.

Rules: only one plan is between write and acknowledgement at a time, so at most one journal entry is
unsynced. A plan waits until the journal has a file with room for it; its records stay pending
meanwhile. A failed journal write or sync poisons the storage: everything waiting is rejected, and
nothing is accepted until the storage was reopened. A bug does the same, because the state is
unknown after it. Must not know replicas nor front ends.
"""

import asyncio
from collections.abc import Callable

from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.append_queue import AppendQueue
from strandline.broker.write_path.catch_up_writes import CatchUpWrites
from strandline.broker.write_path.io_plan import IoPlan
from strandline.broker.write_path.journal_sync import JournalSync
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.replica_writes import ReplicaWrites
from strandline.broker.write_path.segment_writeback import SegmentWriteback
from strandline.broker.write_path.send_queue import SendQueue
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock
from strandline.config import LimitsConfig
from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.storage.journal import Journal
from strandline.telemetry import Telemetry


class GroupCommitter:
    """Executes one group commit after the other; each is an ``IoPlan``.

    Args:
        loop: the broker's event loop; everything here runs on its thread.
        limits: the limits of records, of pending bytes and of a group commit.
        clock: read once per group commit.
        telemetry: counters.
        on_poisoned: called once after a write or sync failed.
        corruption: receives reports of corrupt batches; None: only their readers get the error.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: LimitsConfig,
        *,
        clock: Clock,
        telemetry: Telemetry,
        on_poisoned: Callable[[StrandlineError], None],
        corruption: CorruptionReports | None = None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._telemetry = telemetry
        self._on_poisoned = on_poisoned
        self.send_queue = SendQueue(telemetry, loop)
        self.admission: Admission[Partition] = Admission(
            limits, clock=clock, wake=self.wake, corruption=corruption, send_queue=self.send_queue
        )
        self.append_queue = AppendQueue(loop, self.admission)
        self._copies = ReplicaWrites()
        self._segments = SegmentWriteback(loop, self.poison)
        self.journal_sync = JournalSync(
            loop,
            clock=clock,
            telemetry=telemetry,
            segments=self._segments,
            send_queue=self.send_queue,
        )
        self.catch_up = CatchUpWrites(
            loop,
            admission=self.admission,
            copies=self._copies,
            telemetry=telemetry,
            on_poisoned=self.poison,
            sync=self.sync,
        )
        self._plan: IoPlan | None = None
        """The plan between write and acknowledgement."""
        self._is_scheduled = False
        self._passing: list[asyncio.Future[None]] = []

    # The group commit

    def wake(self) -> None:
        """Start a group commit in the loop's next round, after all ready sockets were read."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self, no_file: UnavailableError | None = None) -> None:
        """Write pending records, send the frames that do not depend on the sync, and sync.

        Args:
            no_file: why a journal file could not be made; rejects an entry that needs one.
        """
        self._is_scheduled = False
        if self._plan is not None:
            return  # the end of the current plan starts the next one
        journal, copies, queue = self.journal_sync, self._copies, self.append_queue
        if no_file is None and not journal.has_room(copies, queue, resume=self._file_made):
            return
        plan = self._plan = IoPlan(
            queue.take(), copies, admission=self.admission, telemetry=self._telemetry
        )
        try:
            is_written = plan.write(journal.journal, self._clock.now_ns(), no_file)
            is_sending = self.send_queue.has_peers and self.send_queue.send_frames()
            is_done = not is_written or journal.sync(plan, is_sending=is_sending, done=self._end)
        except Exception as error:  # noqa: BLE001  a failed write, or a bug that is reported
            self._end(error)
        else:
            if is_done:
                self._end(None)

    def _end(self, error: Exception | None) -> None:
        """Commit and acknowledge the synced plan, or reject it; then start the next one."""
        plan = self._plan
        assert plan is not None, "begun before"
        if error is None:
            try:
                plan.commit()
                if self.send_queue.has_peers:
                    self.send_queue.send_frames()
            except Exception as bug:  # noqa: BLE001  reported after all waiters were notified
                error = bug
        self._plan = None
        if error is not None:
            self._fail(error, plan)
        passing, self._passing = self._passing, []
        for waiter in passing:
            if not waiter.done():
                waiter.set_result(None)
        if self.admission.dirty or self._copies.has_waiting:
            self.wake()
        self.send_queue.deliver()
        if self._segments.logs:
            self._segments.write_soon()

    def _file_made(self, error: BaseException | None) -> None:
        """Continue the group commit that waited for a file; a small one may fit without it."""
        if error is None or (
            isinstance(error, UnavailableError) and not isinstance(error, LogPoisonedError)
        ):
            self._begin(error)
        else:
            self._fail(error)
            self._begin()

    # Failures

    def _fail(self, error: BaseException, plan: IoPlan | None = None) -> None:
        """Reject everything; the storage is not used again until it was reopened.

        Args:
            error: the error of a write or sync, or a bug.
            plan: the plan in progress.
        """
        if not isinstance(error, LogPoisonedError):
            context = {"message": "a group commit failed", "exception": error}
            self._loop.call_exception_handler(context)  # a bug; reopening recovers from it
            error = LogPoisonedError(f"internal error, the log is reopened: {error!r}")
        if plan is not None:
            plan.fail(error)
        self.poison(error)

    def poison(self, error: StrandlineError) -> None:
        """Reject everything after a failed write or sync; acknowledge nothing until the reopening.

        A plan whose sync is in progress ends as that sync does.
        """
        self.journal_sync.journal.poison()
        is_first = self.admission.write_error is None
        if is_first:
            self.admission.write_error = error
        for partition in self.append_queue.partitions:
            self.admission.rejects[error.code] += partition.reject_from((), error)
        self._copies.reject_waiting(error)
        self.catch_up.reject_waiting(error)
        self._telemetry.journal_poisoned = 1
        if is_first:
            self._on_poisoned(error)

    # Around it

    def attach(self, journal: Journal, syncer: SyncPolicy) -> None:
        """Use this journal from now on: at the start, or after the storage was reopened."""
        assert self._plan is None, "a group commit ends with the journal it began with"
        self.journal_sync.attach(journal, syncer)

    @property
    def is_busy(self) -> bool:
        """Whether a plan is between write and acknowledgement, or waits for a journal file."""
        return self._plan is not None or self.journal_sync.is_making_file

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending, in progress or queued for sending."""
        if self.is_busy or self.send_queue.acks or not self.append_queue.is_empty:
            return False
        return self._copies.is_idle and self.catch_up.is_idle

    async def passed(self) -> None:
        """Wait until the current plan and the catch-up writes have ended."""
        await self.catch_up.passed()
        if self.is_busy:
            await self._answered()

    async def _answered(self) -> None:
        answered: asyncio.Future[None] = self._loop.create_future()
        self._passing.append(answered)
        await answered

    async def sync(self) -> int:
        """Sync records that were acknowledged without a sync; on return no plan is in progress.

        Runs on the loop, as does the sync of a full journal file.

        Returns:
            The journal's last sequence.

        Raises:
            LogPoisonedError: this sync failed, or an earlier write or sync.
        """
        while self._plan is not None:  # its own sync must be the one that gets a disk error
            await self._answered()
        try:
            return self.journal_sync.journal.sync()
        except LogPoisonedError as error:
            self.poison(error)
            raise
