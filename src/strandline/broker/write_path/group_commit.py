"""The group commit: drain what was accepted, write it, sync once, acknowledge, wake readers.

One write and one sync per group commit, whatever the number of publishers, connections and
partitions. While a sync runs beside it the loop goes on accepting; what it accepts is the next
group commit. What other replicas have committed meanwhile is answered while the disk syncs, not
after it (docs/adr/0035). ``io_plan`` has the order of the steps, and what a failure undoes.

Rules: only one plan is between write and answer at a time, so at most one journal entry is
unsynced. It waits until the journal has a file with room for it; what it will take is pending
meanwhile. A failed journal write or sync poisons: everything waiting is rejected and nothing more
is accepted until it is reopened; so does a bug, because what it left behind is anybody's guess.
Must not know replicas nor front ends.
"""

import asyncio
from collections.abc import Callable

from strandline.broker.write_path.ack_sink import AckSink
from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.append_queue import AppendQueue
from strandline.broker.write_path.catch_up_writes import CatchUpWrites
from strandline.broker.write_path.io_plan import IoPlan
from strandline.broker.write_path.journal_sync import JournalSync
from strandline.broker.write_path.outbox import Outbox
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.replica_writes import Done, ReplicaWrite, ReplicaWrites
from strandline.broker.write_path.segment_writeback import SegmentWriteback
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock
from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.storage.journal import Journal, entry_bytes
from strandline.storage.log import Log
from strandline.telemetry import Telemetry


class GroupCommitter:
    """Executes one plan after the other.

    Args:
        loop: the broker's loop; everything here runs on its thread.
        admission: shared with the partitions.
        clock: read once a group commit.
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
        self.outbox: Outbox = admission.outbox
        self.append_queue = AppendQueue(loop, admission)
        self._copies = ReplicaWrites()
        self._plan: IoPlan | None = None
        """Between write and answer."""
        self._is_scheduled = False
        self._is_making_file = False
        self._passing: list[asyncio.Future[None]] = []
        self._journal: Journal | None = None
        self._segments = SegmentWriteback(loop, self.poison)
        self._catch_up = CatchUpWrites(
            loop,
            telemetry=telemetry,
            on_poisoned=self.poison,
            go_on=self._submit,
            is_busy=self._copies.has,
        )
        self._journal_sync = JournalSync(
            loop, clock=clock, telemetry=telemetry, segments=self._segments, outbox=self.outbox
        )

    # The group commit

    def wake(self) -> None:
        """Run a group commit in the loop's next round, after all ready sockets were read."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """One group commit, unless one is still syncing: its end starts the next."""
        self._is_scheduled = False
        if self._plan is not None or self._is_making_file or not self._has_room():
            self.outbox.send_answers()
        else:
            self._commit()

    def _commit(self, no_file: UnavailableError | None = None) -> None:
        """Begin a group commit.

        Args:
            no_file: why the journal could make no file, if the entry needs one.
        """
        self._guarded(lambda: self._begin(no_file))
        if self._plan is None:
            self._end()

    def _begin(self, no_file: UnavailableError | None) -> None:
        """Write, send what may leave before the sync, and sync.

        Raises:
            LogPoisonedError: a write or the sync failed.
        """
        now_ns = self._admission.now_ns = self._clock.now_ns()
        plan = self._plan = IoPlan(
            self.append_queue.take(),
            self._copies,
            admission=self._admission,
            telemetry=self._telemetry,
        )
        plan.write_logs(now_ns)
        if not plan.parts or not self._write_journal(plan, no_file):
            self._plan = None
            return
        for log in plan.logs:
            self._segments.note(log)
        plan.journaled()
        is_sending = self.outbox.send_frames()
        if not plan.needs_sync or self._journal_sync.begin(
            plan, is_sending=is_sending, done=self._synced
        ):
            self._complete(plan)

    def _write_journal(self, plan: IoPlan, no_file: UnavailableError | None) -> bool:
        """Write the plan's entry; return False if there is no room and everything is undone.

        Raises:
            LogPoisonedError: the write failed.
        """
        assert self._journal is not None, "attached before the first record"
        try:
            if no_file is not None and not self._journal.has_room(entry_bytes(plan.parts)):
                raise no_file
            self._journal.append(plan.parts)
        except LogPoisonedError:
            raise
        except UnavailableError as error:
            plan.undo(error)
            return False
        return True

    def _synced(self, sync: Callable[[], None]) -> None:
        """Go on after a sync that took more than one round of the loop.

        Args:
            sync: ends it; raises what it failed for.
        """

        def complete() -> None:
            sync()
            assert self._plan is not None, "it was syncing"
            self._complete(self._plan)

        self._guarded(complete)
        self._end()

    def _complete(self, plan: IoPlan) -> None:
        """Commit, acknowledge and wake."""
        plan.synced()
        self._plan = None
        self.outbox.send_frames()

    def _end(self) -> None:
        """Go on if more was accepted meanwhile, and send the answers."""
        passing, self._passing = self._passing, []
        for waiter in passing:
            if not waiter.done():
                waiter.set_result(None)
        if self._admission.dirty or self._copies.has_waiting:
            self.wake()
        self.outbox.send_answers()
        self._segments.go_on()

    # Room in the journal

    def _has_room(self) -> bool:
        """Whether the journal has room for the next entry; if not, a file is being made."""
        assert self._journal is not None, "attached before the first record"
        waiting, queue = self._copies.waiting_bytes, self.append_queue
        # What is pending is looked at only where this is near the end of the last file.
        if self._journal.has_room(waiting + queue.bytes_max):
            return True
        length = waiting + queue.bytes_ahead()
        if not length or self._journal.has_room(length):
            return True
        self._is_making_file = True
        # Beside the loop: to fill it with zeros takes a quarter of a second.
        made = self._loop.run_in_executor(None, self._journal.allocate_spare, length)
        made.add_done_callback(self._file_made)
        return False

    def _file_made(self, made: asyncio.Future[None]) -> None:
        """Go on with the group commit that waited for a file; without one it may still fit."""
        self._is_making_file = False
        error = made.exception()
        if isinstance(error, UnavailableError) and not isinstance(error, LogPoisonedError):
            self._commit(error)
            return
        self._guarded(made.result)
        self._run()

    # Failures

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step; if it fails everyone in the plan is answered all the same."""
        try:
            step()
        except LogPoisonedError as error:
            self._fail(error)
        except Exception as bug:
            # Not handled, only survived: the log is reopened, and the loop reports the bug.
            self._fail(LogPoisonedError(f"internal error, the log is reopened: {bug!r}"))
            self._end()
            raise

    def _fail(self, error: StrandlineError) -> None:
        """Reject the plan, too: its write or sync has failed.

        The logs are left as they are: what the disk holds is known only after reopening.
        """
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.fail(error)
        self.poison(error)

    def poison(self, error: StrandlineError) -> None:
        """A write or sync outside a group commit has failed: nothing is acked until reopened.

        A plan whose sync is under way ends as that sync does.
        """
        assert self._journal is not None, "attached before anything is written"
        self._journal.poison()
        is_first = self._admission.write_error is None
        if is_first:
            self._admission.write_error = error
        for partition in self.append_queue.partitions:
            self._admission.rejects[error.code] += partition.reject_from((), error)
        self._copies.refuse(error)
        self._catch_up.refuse(error)
        self._telemetry.journal_poisoned = 1
        if is_first:
            self._on_poisoned(error)

    # Around it

    def reads(self, ack_sink: AckSink) -> None:
        """The loop itself reads what comes over a connection, so it can while the disk works."""
        self._journal_sync.read_here.add(ack_sink)

    def attach(self, journal: Journal, syncer: SyncPolicy) -> None:
        """Use this journal from now on (at start, and after a poisoned one was reopened)."""
        assert self._plan is None, "a turn ends with the journal it began with"
        self._journal = journal
        self._journal_sync.attach(journal, syncer)

    @property
    def is_busy(self) -> bool:
        """Whether a turn is between write and answer."""
        return self._plan is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is between write and answer."""
        if self._plan is not None or self._is_making_file or not self.append_queue.is_empty:
            return False
        return self._copies.is_idle and self._catch_up.is_idle

    async def passed(self) -> None:
        """Wait until the turn that is under way, and what is done beside it, is answered."""
        await self._catch_up.passed()
        if self._plan is not None or self._is_making_file:
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
        while self._plan is not None:  # whose sync may be told of a failure that ours would not be
            await self._answered()
        assert self._journal is not None, "attached before the first record"
        try:
            return self._journal.sync()
        except LogPoisonedError as error:
            self.poison(error)
            raise

    def submit(self, write: ReplicaWrite) -> None:
        """Write finished batches: in the next turn, or if they are large beside it."""
        if self._admission.write_error is not None:
            self._loop.call_soon(write.done, self._admission.write_error)
        elif not self._catch_up.holds(write):
            self._submit(write)

    def _submit(self, write: ReplicaWrite) -> None:
        if not self._catch_up.begin([write]):
            self._copies.submit(write)
            self.wake()

    def change(self, log: Log, work: Callable[[int], None], done: Done) -> None:
        """Change a log beside the loop, where that may take long: cut it, or begin it anew.

        Args:
            log: nothing of it is on its way, and nothing is submitted for it until ``done``.
            work: runs on a thread, with the sequence up to which the journal is durable.
            done: told the outcome, on the loop.
        """
        if self._admission.write_error is not None:
            self._loop.call_soon(done, self._admission.write_error)
        else:
            self._catch_up.change(log, self._changed(work), done)

    async def _changed(self, work: Callable[[int], None]) -> None:
        sequence = await self.sync()  # what comes into the journal after it is of other logs
        await self._loop.run_in_executor(None, work, sequence)

    def is_changing(self, log: Log) -> bool:
        """Whether a log is being changed beside the loop."""
        return log in self._catch_up.changing
