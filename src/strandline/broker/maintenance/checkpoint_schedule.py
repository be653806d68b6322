"""The schedule of checkpoints: often enough for a short recovery, and rarely enough to be cheap.

``storage.recovery.Checkpointer`` writes them; its middle step is the only one that waits for the
disk, and runs on a thread. A checkpoint is due when a journal file is full, because it frees that
file, which is then the spare file for the journal. If no spare file is ready in time, one is
created here, so that no group commit waits for it. A checkpoint is also due when segments received
many bytes without the journal.

Segments are written back a little at a time: syncing everything at a checkpoint would block the
journal, and so group commits, for a tenth of a second and more (docs/adr/0031).

A broker that has rejected records for lack of space is not ready, so it may receive no publish that
would show that there is space again. So this module checks for space.

Rule: work on a thread holds ``lock``. So whoever holds the lock knows that no thread writes, and
may cancel ``run``, reopen the journal or release the data directory.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from strandline.broker.log_throttle import LogThrottle
from strandline.broker.write_path.segment_writeback import write_back
from strandline.clock import Clock
from strandline.config import JournalConfig
from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.storage.descriptors import STORAGE_DESCRIPTORS, current_shares
from strandline.storage.journal import Journal
from strandline.storage.log import Log
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.storage.recovery import Recovered
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

POLL_S = 0.05
PENDING_STEP_BYTES = 512 << 10
WRITE_BACK_BYTES = 4 << 20
"""The bytes written between two checks of what can be written back."""
WRITE_BACK_PAUSE_S = 0.004
WRITE_BACK_PARTS_MAX = 16
BULK_BYTES_MAX = 256 << 20
"""The most bytes outside the journal that recovery may have to find in segments."""
LOGS_PER_FILE = 256
"""A checkpoint syncs every log. So for each so many logs one more journal file may be full."""
SPACE_INTERVAL_MS = 5_000
SPACE_BYTES = 1 << 20
"""The most bytes that a log holds in memory; with less space, records would soon be rejected."""
SPACE_NAME = "space"


class CheckpointSchedule:
    """Takes checkpoints when enough was written or enough time has passed.

    Args:
        config: limits of size and time.
        clock: measures the time between checkpoints.
        telemetry: counters.
        on_poisoned: called when a sync of a segment failed.
    """

    def __init__(
        self,
        config: JournalConfig,
        *,
        clock: Clock,
        telemetry: Telemetry,
        on_poisoned: Callable[[StrandlineError], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._telemetry = telemetry
        self._on_poisoned = on_poisoned
        self._storage: Recovered | None = None
        self.lock = asyncio.Lock()
        """Held while a thread writes, and while logs are deleted, reopened or closed."""
        self._last_ms = clock.monotonic_ms()
        self._last_sequence = -1
        self._last_bulk_bytes = 0
        self._written_back_bytes = 0
        self._retry_ms: dict[str, float] = {}
        self._failures = LogThrottle()
        self._full_since_ms = self._last_ms

    def attach(self, storage: Recovered) -> None:
        """Use this storage from now on."""
        self._storage = storage
        self._last_sequence = -1
        self._written_back_bytes = storage.journal.written_bytes

    async def run(self) -> None:
        """Check until cancelled; a step that fails is retried at the next interval."""
        while True:
            await asyncio.sleep(POLL_S)
            storage = self._storage
            if storage is None or storage.journal.poisoned:
                continue
            if storage.journal.needs_spare:
                await self._attempt("the creation of a journal file", self._allocate_spare)
            if self._is_due(storage):
                await self._attempt("the checkpoint", self.checkpoint)
            if storage.journal.written_bytes - self._written_back_bytes >= WRITE_BACK_BYTES:
                await self._attempt("the write-back of segments", self._write_back)
            if self._is_space_wanted():
                await self._attempt("the check for free space", self._look_for_space)

    async def _attempt(self, what: str, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one of the four steps; log its failure, which does not stop the others."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._retry_ms.get(what, now_ms):
            return
        try:
            await step()
        except LogPoisonedError as error:
            self._on_poisoned(error)
        except UnavailableError as error:
            if self._failures.is_due(what, now_ms / 1e3):
                logger.warning("%s failed and will be tried again: %s", what, error)
            self._retry_ms[what] = now_ms + self._config.checkpoint_interval_ms
        else:
            self._failures.forget(what)

    async def _allocate_spare(self) -> None:
        """Create a journal file, unless logs need the space."""
        async with self.lock:
            storage = self._storage
            assert storage is not None, "attached at start"
            if not storage.journal.poisoned:
                await _write_pending(storage.logs.values())
                await asyncio.to_thread(storage.journal.allocate_spare)

    async def _write_back(self) -> None:
        """Write segments back to the disk, with pauses in which the journal can be synced."""
        async with self.lock:
            storage = self._storage
            assert storage is not None, "attached at start"
            self._written_back_bytes = storage.journal.written_bytes
            for log in [each for each in storage.logs.values() if each.can_write_back]:
                await write_back(log, pause_s=WRITE_BACK_PAUSE_S, parts_max=WRITE_BACK_PARTS_MAX)

    def _is_space_wanted(self) -> bool:
        """Whether records were rejected for lack of space, and none was stored since."""
        now_ms = self._clock.monotonic_ms()
        if not self._telemetry.disk_full:
            self._full_since_ms = now_ms
        return now_ms - self._full_since_ms >= SPACE_INTERVAL_MS

    async def _look_for_space(self) -> None:
        """Try to use as much space as the next record needs; report it if that succeeds."""
        async with self.lock:
            storage = self._storage
            assert storage is not None, "attached at start"
            self._full_since_ms = self._clock.monotonic_ms()
            await _write_pending(storage.logs.values())
            await asyncio.to_thread(_try_space, storage.journal)
            self._telemetry.disk_full = 0
            logger.info("there is space for records again")

    def _is_due(self, storage: Recovered) -> bool:
        """Whether a journal file is full, or something was written and enough time has passed."""
        journal = storage.journal
        if journal.full_files and journal.full_files * LOGS_PER_FILE >= len(storage.logs):
            return True
        bulk_bytes = self._telemetry.bulk_bytes - self._last_bulk_bytes
        if bulk_bytes >= BULK_BYTES_MAX:
            return True
        age_ms = self._clock.monotonic_ms() - self._last_ms
        is_changed = bulk_bytes > 0 or journal.last_sequence != self._last_sequence
        is_old = age_ms >= self._config.checkpoint_interval_ms
        return is_changed and (is_old or _has_many_unsynced(storage))

    async def checkpoint(self) -> None:
        """Take a checkpoint now.

        Raises:
            DiskFullError: no space; the last checkpoint and the whole journal are kept.
            LogPoisonedError: a segment could not be synced.
        """
        async with self.lock:
            storage = self._storage
            assert storage is not None, "attached at start"
            started_ms = self._clock.monotonic_ms()
            await _write_pending(storage.logs.values())
            pending = storage.checkpointer.begin(storage.logs)
            bulk_bytes = self._telemetry.bulk_bytes
            await asyncio.to_thread(storage.checkpointer.write, pending)
            storage.checkpointer.finish(pending)
            self._last_sequence = pending.checkpoint.sequence
            self._last_ms, self._last_bulk_bytes = self._clock.monotonic_ms(), bulk_bytes
            self._telemetry.checkpoint_seconds.observe((self._last_ms - started_ms) / 1e3)


def _has_many_unsynced(storage: Recovered) -> bool:
    """Whether sealed segments that wait for a sync use more file descriptors than their share."""
    unsynced = STORAGE_DESCRIPTORS.held - len(MAPPED_SEGMENTS) - len(storage.logs)
    return unsynced > current_shares().unsynced


def _try_space(journal: Journal) -> None:
    """Create, and remove, a file of the size that records need; or create a spare journal file.

    Raises:
        DiskFullError: there is no space; no file is left behind.
        LogPoisonedError: the disk fails.
    """
    if journal.needs_spare:
        journal.allocate_spare()
    path = journal.directory / SPACE_NAME
    journal.disk.write_durably(path, bytes(SPACE_BYTES))
    journal.disk.unlink(path)


async def _write_pending(logs: Iterable[Log]) -> None:
    """Write batches that logs hold only in memory, in small parts between group commits.

    Raises:
        DiskFullError: there is no space.
        LogPoisonedError: this write failed, or an earlier one.
    """
    room = PENDING_STEP_BYTES
    for log in list(logs):
        room -= log.pending_bytes
        log.write_pending()
        if room <= 0:
            await asyncio.sleep(0)
            room = PENDING_STEP_BYTES
