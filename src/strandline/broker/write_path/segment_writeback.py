"""Writes segments while the disk syncs the journal, or after a group commit.

The batches are in the journal already, so nobody has to wait for this (docs/adr/0033).

Rules: on the loop's thread. A round writes a limited number of bytes, so that a thousand logs that
are due at the same time do not delay their publishers. If there is no space, the batches stay in
memory, and the next append to their log fails.
"""

import asyncio
import logging
from collections.abc import Callable

from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.storage.log import Log

logger = logging.getLogger(__name__)

ROUND_BYTES = 256 << 10


class SegmentWriteback:
    """The logs with batches that are only in memory and the journal.

    Args:
        loop: the broker's event loop.
        on_poisoned: called when a write failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_poisoned: Callable[[StrandlineError], None]
    ) -> None:
        self._loop = loop
        self._on_poisoned = on_poisoned
        self.logs: dict[Log, None] = {}
        """The logs with enough to write, the longest waiting first."""
        self._is_scheduled = False

    def note(self, log: Log) -> None:
        """Schedule the writing of a log's batches, if there are enough of them."""
        if log.can_write_pending:
            self.logs[log] = None

    def write(self) -> None:
        """Write the batches of one round, the longest waiting logs first."""
        room = ROUND_BYTES
        while self.logs and room > 0:
            log = next(iter(self.logs))
            del self.logs[log]
            if not log.can_write_pending:
                continue  # the log was closed, or written meanwhile
            room -= log.pending_bytes
            try:
                log.write_pending()
            except LogPoisonedError as error:
                self._on_poisoned(error)
            except UnavailableError as error:
                logger.warning("a segment cannot be written until there is space: %s", error)

    def write_soon(self) -> None:
        """Write the rest in the loop's next rounds."""
        if self.logs and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._write_soon)

    def _write_soon(self) -> None:
        self._is_scheduled = False
        self.write()
        self.write_soon()


async def write_back(log: Log, *, pause_s: float, parts_max: int | None = None) -> None:
    """Let the disk start to write dirty pages, one part at a time, on a thread.

    A sync of the journal, for which publishers wait, then waits for one part only
    (docs/adr/0031, 0034).

    Args:
        log: the log to write; nothing is done if less than a part is unwritten.
        pause_s: the pause after each part.
        parts_max: the number of parts to write now; None: all.
    """
    parts = 0
    while log.can_write_back and parts != parts_max:
        await asyncio.to_thread(log.write_back)
        await asyncio.sleep(pause_s)
        parts += 1
