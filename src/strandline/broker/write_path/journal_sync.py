"""The journal as the group commit uses it: room for the next entry, and its sync.

A sync runs on the loop, on a thread or in a process. In each case earlier group commits are
acknowledged and segments written while the disk works.

Rules: one entry at a time. The group committer continues after the sync, and handles its errors: a
failed sync poisons the logs.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakSet

from strandline.broker.write_path.append_queue import AppendQueue
from strandline.broker.write_path.busy_poll import BusyPoll
from strandline.broker.write_path.io_plan import IoPlan
from strandline.broker.write_path.pending import AckSink
from strandline.broker.write_path.replica_writes import ReplicaWrites
from strandline.broker.write_path.segment_writeback import SegmentWriteback
from strandline.broker.write_path.send_queue import SendQueue
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock
from strandline.errors import LogPoisonedError, StrandlineError
from strandline.storage.journal import Journal
from strandline.telemetry import Telemetry

Done = Callable[[Exception | None], None]


class JournalSync:
    """Makes room in the journal, and syncs the entry that was written last.

    Args:
        loop: the broker's event loop.
        clock: measures syncs on the loop.
        telemetry: counters.
        segments: segments that can be written while the journal syncs.
        send_queue: knows whether there are other brokers.
    """

    journal: Journal
    _syncer: SyncPolicy

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        telemetry: Telemetry,
        segments: SegmentWriteback,
        send_queue: SendQueue,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._telemetry = telemetry
        self._segments = segments
        self._send_queue = send_queue
        self.busy_poll = BusyPoll(loop)
        self.is_making_file = False
        self.read_here: WeakSet[AckSink] = WeakSet()
        """Connections that the loop itself reads, publish by publish."""
        self._last_source: AckSink | None = None
        """The connection that all records of the last entry came over, if it was a single one."""

    def attach(self, journal: Journal, syncer: SyncPolicy) -> None:
        """Use this journal and sync policy from now on."""
        self.journal = journal
        self._syncer = syncer

    # Room

    def has_room(
        self,
        copies: ReplicaWrites,
        queue: AppendQueue,
        *,
        resume: Callable[[BaseException | None], None],
    ) -> bool:
        """Return whether the journal has room for the next entry; if not, start to make a file.

        Args:
            copies: the writes of replicas that will be in the entry.
            queue: the records that will be in the entry.
            resume: called when the file was made, or with the error that prevented that.
        """
        if self.is_making_file:
            return False
        # The pending records are measured only near the end of the last file.
        if self.journal.has_room(copies.waiting_bytes + queue.bytes_max):
            return True
        length = copies.waiting_bytes + queue.bytes_ahead()
        if not length or self.journal.has_room(length):
            return True
        self.is_making_file = True

        def made(making: asyncio.Future[None]) -> None:
            self.is_making_file = False
            resume(making.exception())

        # On a thread: filling the file with zeros takes a quarter of a second.
        making = self._loop.run_in_executor(None, self.journal.allocate_spare, length)
        making.add_done_callback(made)
        return False

    # Sync

    def sync(self, plan: IoPlan, *, is_sending: bool, done: Done) -> bool:
        """Make a plan's entry durable, if its streams require that.

        Args:
            plan: the plan that was written.
            is_sending: frames are sent in the loop's next round: sync after that, so that the disks
                of all replicas work at the same time.
            done: called later with the outcome of the sync, unless this returns True.

        Returns:
            Whether the entry is already as durable as required.

        Raises:
            LogPoisonedError: the sync failed.
        """
        for log in plan.logs:
            self._segments.note(log)
        if not plan.needs_sync:
            return True
        source = plan.only_source
        is_from_one = source is not None and source is self._last_source
        self._last_source = source
        is_read_here = is_from_one and source in self.read_here
        if not self._syncer.is_inline(
            plan.size, is_from_one=is_from_one, is_read_here=is_read_here
        ):
            self._sync_elsewhere(done)
            return False
        if is_sending or self._segments.logs:  # otherwise there is nothing to do during the sync
            self.journal.begin_sync()
        if is_sending:
            self._loop.call_soon(self._sync_next, done)
            return False
        # With replicas the ack waits for other brokers, which may need this CPU: no busy polling.
        self._sync_here(is_alone=plan.records == 1 and not self._send_queue.has_peers)
        return True

    def _sync_elsewhere(self, done: Done) -> None:
        fd, sequence = self.journal.sync_target()

        def synced(error: StrandlineError | None, took_ms: float) -> None:
            if error is not None:
                done(LogPoisonedError(error.message))
                return
            self.journal.mark_synced(sequence)
            self._observe(took_ms)
            done(None)

        self._syncer.submit(fd, synced)
        self._segments.write()

    def _sync_next(self, done: Done) -> None:
        """Sync in the loop's next round, after the frames were sent."""
        error: Exception | None = None
        try:
            self._sync_here()
        except Exception as failure:  # noqa: BLE001  handled by the committer
            error = failure
        done(error)

    def _sync_here(self, *, is_alone: bool = False) -> None:
        """Sync on the loop.

        Raises:
            LogPoisonedError: the sync failed.
        """
        if self._segments.logs:
            self._segments.write()
        began_ms = self._clock.monotonic_ms()
        self.journal.sync()
        ended_ms = self._clock.monotonic_ms()
        self._observe(ended_ms - began_ms)
        if is_alone:
            self.busy_poll.synced(began_ms, ended_ms)

    def _observe(self, took_ms: float) -> None:
        """Count a sync and note how long it took."""
        self._syncer.observe(took_ms)
        self._telemetry.sync_seconds.observe(took_ms / 1e3)
