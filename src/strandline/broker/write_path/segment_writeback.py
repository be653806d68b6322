"""Segments are written while the disk is busy with the journal, or when a turn has been answered.

The journal has the batches, so nobody has to wait for a segment (docs/adr/0033).

Rules: on the loop's thread; a round writes a bounded number of bytes, so that a thousand logs whose
turn comes at the same time do not hold up their publishers. What finds no space stays in memory,
and who appends to it later is told.
"""

import asyncio
import logging
from collections.abc import Callable

from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.storage.log import Log

logger = logging.getLogger(__name__)

ROUND_BYTES = 256 << 10


class SegmentWriteback:
    """Logs with batches that are in memory only.

    Args:
        loop: the broker's.
        on_poisoned: told when a write failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_poisoned: Callable[[StrandlineError], None]
    ) -> None:
        self._loop = loop
        self._on_poisoned = on_poisoned
        self.logs: dict[Log, None] = {}
        """Worth writing now, the oldest first."""
        self._is_scheduled = False

    def note(self, log: Log) -> None:
        """Write what a log has gathered, if it is worth it, in one of the next rounds."""
        if log.can_write_pending:
            self.logs[log] = None

    def write(self) -> None:
        """One round: the oldest first."""
        room = ROUND_BYTES
        while self.logs and room > 0:
            log = next(iter(self.logs))
            del self.logs[log]
            if not log.can_write_pending:
                continue  # it was closed, or written meanwhile
            room -= log.pending_bytes
            try:
                log.write_pending()
            except LogPoisonedError as error:
                self._on_poisoned(error)
            except UnavailableError as error:
                logger.warning("a segment waits for space: %s", error)

    def go_on(self) -> None:
        """Write what is left in rounds of the loop."""
        if self.logs and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._write_soon)

    def _write_soon(self) -> None:
        self._is_scheduled = False
        self.write()
        self.go_on()


async def write_back(log: Log, *, pause_s: float, parts_max: int | None = None) -> None:
    """Let the disk begin with what was written, a part at a time, beside the loop.

    A sync of the journal, for which publishers wait, waits for one part then, not for all of it
    (docs/adr/0031, 0034).

    Args:
        log: of which at least a part is new, or nothing is done.
        pause_s: after each part.
        parts_max: leave the rest for later; None: all of it.
    """
    parts = 0
    while log.can_write_back and parts != parts_max:
        await asyncio.to_thread(log.write_back)
        await asyncio.sleep(pause_s)
        parts += 1
