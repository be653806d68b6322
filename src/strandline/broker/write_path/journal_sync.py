"""Syncs of the journal, on the loop or beside it.

In both cases earlier group commits are answered and segments written while the disk works.

Rules: one entry at a time. The group committer continues after the sync and handles its errors: a
sync that fails poisons the logs.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakSet

from strandline.broker.write_path.ack_sink import AckSink
from strandline.broker.write_path.busy_poll import BusyPoll
from strandline.broker.write_path.io_plan import IoPlan
from strandline.broker.write_path.outbox import Outbox
from strandline.broker.write_path.segment_writeback import SegmentWriteback
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock
from strandline.errors import LogPoisonedError, StrandlineError
from strandline.storage.journal import Journal
from strandline.telemetry import Telemetry

Step = Callable[[], None]
Resume = Callable[[Step], None]


class JournalSync:
    """Syncs what the journal was given last.

    Args:
        loop: the broker's.
        clock: measures syncs on the loop.
        telemetry: counters.
        segments: can be written meanwhile.
        outbox: has answers that can be sent meanwhile.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        telemetry: Telemetry,
        segments: SegmentWriteback,
        outbox: Outbox,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._telemetry = telemetry
        self._segments = segments
        self._outbox = outbox
        self.busy_poll = BusyPoll(loop)
        self._journal: Journal | None = None
        self._syncer: SyncPolicy | None = None
        self.read_here: WeakSet[AckSink] = WeakSet()
        """Connections that the loop itself reads, publish by publish."""
        self._last_source: AckSink | None = None
        """The connection that all of the last entry came over, if there was but one."""

    def attach(self, journal: Journal, syncer: SyncPolicy) -> None:
        """Use these from now on."""
        self._journal = journal
        self._syncer = syncer

    def begin(self, plan: IoPlan, *, is_sending: bool, done: Resume) -> bool:
        """Make a plan's entry durable.

        Args:
            plan: what was written.
            is_sending: frames leave when the loop comes round: sync after that, so that the disks
                of all replicas work at the same time.
            done: called later, unless True is returned, with the step that ends the sync: it
                raises LogPoisonedError if the sync failed.

        Returns:
            Whether it is durable now.

        Raises:
            LogPoisonedError: the sync failed.
        """
        assert self._journal is not None, "attached before the first record"
        assert self._syncer is not None, "attached together"
        source = plan.only_source
        is_from_one = source is not None and source is self._last_source
        self._last_source = source
        is_read_here = is_from_one and source in self.read_here
        if not self._syncer.is_inline(
            plan.size, is_from_one=is_from_one, is_read_here=is_read_here
        ):
            self._sync_beside(self._journal, self._syncer, done)
            return False
        # With replicas the ack waits for others, who need the CPU.
        is_alone = plan.is_single and not self._outbox.has_peers
        if is_sending or self._segments.has_any:  # else there is nothing to do meanwhile
            self._journal.begin_sync()
        if is_sending:
            self._loop.call_soon(self._sync_next, done)
            return False
        self._sync_here(is_alone=is_alone)
        return True

    def _sync_beside(self, journal: Journal, syncer: SyncPolicy, done: Resume) -> None:
        fd, sequence = journal.sync_target()

        def finish(error: StrandlineError | None, took_ms: float) -> None:
            if error is not None:
                raise LogPoisonedError(error.message) from error
            journal.mark_synced(sequence)
            self._synced(took_ms)

        syncer.submit(fd, lambda error, took_ms: done(lambda: finish(error, took_ms)))
        self._loop.call_soon(self._outbox.send_answers)
        self._segments.write()

    def _sync_next(self, done: Resume) -> None:
        """Frames have left and the disk is busy: send answers meanwhile, then sync."""
        try:
            self._outbox.send_answers()
        finally:
            done(self._sync_here)

    def _sync_here(self, *, is_alone: bool = False) -> None:
        """Sync on the loop.

        Raises:
            LogPoisonedError: the sync failed.
        """
        assert self._journal is not None, "a group commit ends with the journal it began with"
        self._segments.write()
        began_ms = self._clock.monotonic_ms()
        self._journal.sync()
        ended_ms = self._clock.monotonic_ms()
        self._synced(ended_ms - began_ms)
        if is_alone:
            self.busy_poll.synced(began_ms, ended_ms)

    def _synced(self, took_ms: float) -> None:
        """Count a sync and learn how long it took."""
        assert self._syncer is not None, "attached with the journal"
        self._syncer.observe(took_ms)
        self._telemetry.sync_seconds.observe(took_ms / 1e3)
