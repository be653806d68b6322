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
from strandline.broker.write_path.segment_writeback import SegmentWriteback
from strandline.broker.write_path.sync_policy import SyncPolicy
from strandline.clock import Clock
from strandline.errors import LogPoisonedError, StrandlineError
from strandline.storage.journal import Journal
from strandline.telemetry import Telemetry

Step = Callable[[], None]


class JournalSync:
    """Syncs what the journal was given last.

    Args:
        loop: the broker's.
        clock: measures syncs on the loop.
        telemetry: counters.
        late: segments that can be written meanwhile.
        send_answers: lets the front ends send what was answered.
        end_with: takes the last step of a turn whose sync took more than one round of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        telemetry: Telemetry,
        late: SegmentWriteback,
        send_answers: Step,
        end_with: Callable[[Step], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._telemetry = telemetry
        self._late = late
        self._send_answers = send_answers
        self._end_with = end_with
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

    def begin(
        self, size: int, *, source: AckSink | None, is_alone: bool, is_sending: bool, then: Step
    ) -> None:
        """Make the entry durable, then go on; before this returns or later.

        Args:
            size: bytes of its batches.
            source: the connection that all of it came over, if there was but one.
            is_alone: it is a single record, whose publisher waits for nobody else.
            is_sending: frames leave when the loop comes round: sync after that, so that the disks
                of all replicas work at the same time.
            then: what comes next.

        Raises:
            LogPoisonedError: the sync failed.
        """
        assert self._journal is not None, "attached before the first record"
        assert self._syncer is not None, "attached together"
        is_from_one = source is not None and source is self._last_source
        self._last_source = source
        is_read_here = is_from_one and source in self.read_here
        if not self._syncer.is_inline(size, is_from_one=is_from_one, is_read_here=is_read_here):
            self._sync_beside(self._journal, self._syncer, then)
            return
        if is_sending or self._late.has_any:  # else there is nothing to do meanwhile
            self._journal.begin_sync()
        if is_sending:
            self._loop.call_soon(lambda: self._sync_next(then, is_alone=is_alone))
        else:
            self._sync_here(then, is_alone=is_alone)

    def _sync_beside(self, journal: Journal, syncer: SyncPolicy, then: Step) -> None:
        fd, sequence = journal.sync_target()

        def finish(error: StrandlineError | None, took_ms: float) -> None:
            if error is not None:
                raise LogPoisonedError(error.message) from error
            journal.mark_synced(sequence)
            self._synced(took_ms)
            then()

        def done(error: StrandlineError | None, took_ms: float) -> None:
            self._end_with(lambda: finish(error, took_ms))

        syncer.submit(fd, done)
        self._loop.call_soon(self._send_answers)
        self._late.write()

    def _sync_next(self, then: Step, *, is_alone: bool) -> None:
        """Frames have left and the disk is busy: send answers meanwhile, then sync and go on."""
        try:
            self._send_answers()
        finally:
            self._end_with(lambda: self._sync_here(then, is_alone=is_alone))

    def _sync_here(self, then: Step, *, is_alone: bool) -> None:
        """Sync on the loop, then go on.

        Raises:
            LogPoisonedError: the sync failed.
        """
        assert self._journal is not None, "a turn ends with the journal it began with"
        self._late.write()
        began_ms = self._clock.monotonic_ms()
        self._journal.sync()
        ended_ms = self._clock.monotonic_ms()
        self._synced(ended_ms - began_ms)
        if is_alone:
            self.busy_poll.synced(began_ms, ended_ms)
        then()

    def _synced(self, took_ms: float) -> None:
        """Count a sync and learn how long it took."""
        assert self._syncer is not None, "attached with the journal"
        self._syncer.observe(took_ms)
        self._telemetry.sync_seconds.observe(took_ms / 1e3)
