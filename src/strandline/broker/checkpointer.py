"""Checkpoints: make the logs durable by themselves, so that journal files can be recycled.

Order: note the journal's sequence and each log's end on the loop, sync the segments beside the
loop, store the checkpoint, recycle. Records that arrive meanwhile stay in the journal.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from strandline.errors import StrandlineError
from strandline.storage.checkpoint import Checkpoint
from strandline.types import LogId

if TYPE_CHECKING:
    from strandline.broker.broker import Broker

logger = logging.getLogger(__name__)

POLL_S = 0.05


class Checkpointer:
    """Takes checkpoints when enough was written or enough time has passed."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._busy = asyncio.Lock()
        self._last_ms = broker.clock.monotonic_ms()
        self._last_sequence = -1

    async def run(self) -> None:
        """Check for ever; a failed checkpoint is logged and tried again."""
        config = self._broker.config.journal
        while True:
            await asyncio.sleep(POLL_S)
            journal = self._broker.journal_storage.journal
            age_ms = self._broker.clock.monotonic_ms() - self._last_ms
            is_old = age_ms >= config.checkpoint_interval_ms
            is_changed = journal.last_sequence != self._last_sequence
            is_big = journal.bytes_since_recycle >= config.checkpoint_bytes
            if journal.poisoned or not (is_big or (is_old and is_changed)):
                continue
            try:
                await self.checkpoint()
            except StrandlineError as error:
                logger.error("checkpoint failed, will try again: %s", error)
                self._last_ms = self._broker.clock.monotonic_ms()

    async def checkpoint(self) -> None:
        """Take one now.

        Raises:
            StrandlineError: a segment or the checkpoint file could not be made durable; the journal
                keeps everything.
        """
        async with self._busy:
            started_ms = self._broker.clock.monotonic_ms()
            storage = self._broker.journal_storage
            sequence = storage.journal.last_sequence
            places = {log_id: log.checkpoint() for log_id, log in storage.logs.items()}
            dirty = [storage.logs[log_id] for log_id in places]
            await asyncio.to_thread(_flush, dirty)
            live = {i: place for i, place in places.items() if i in storage.logs}
            storage.save_checkpoint(Checkpoint(journal_sequence=sequence, logs=live))
            storage.journal.recycle(sequence)
            self._last_sequence = sequence
            self._last_ms = self._broker.clock.monotonic_ms()
            seconds = (self._last_ms - started_ms) / 1e3
            self._broker.telemetry.checkpoint_seconds.observe(seconds)


def _flush(logs: list) -> None:
    """Sync the segments of the logs that have changed."""
    for log in logs:
        log.flush()
