"""Removes records and their files on a thread: file systems take long to free gigabytes.

Rules: the loop decides what is removed and changes the logs in memory; one thread removes the
files, in order. What is left when the broker stops is removed at the next start.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from strandline.errors import DiskFullError, OffsetOutOfRangeError, StrandlineError
from strandline.storage.log import Log

logger = logging.getLogger(__name__)


class SpaceReclaimer:
    """The thread that removes files; all methods but ``run`` are for the loop's thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="strandline-reclaim")

    def run(self, removal: Callable[[], None]) -> None:
        """Schedule a removal; if it fails, that is logged, and the next start tries again."""
        self._thread.submit(_logged, removal)

    async def drained(self) -> None:
        """Wait until everything that was scheduled so far is removed."""
        await asyncio.wrap_future(self._thread.submit(_nothing))

    async def delete_before(self, log: Log, offset: int) -> None:
        """Delete the records of a log below ``offset``.

        Raises:
            OffsetOutOfRangeError: the offset is beyond the log end offset.
            DiskFullError: there is no space to store the new start, even after segments were
                removed.
            LogPoisonedError: a write failed.
        """
        if offset > log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"cannot delete records below offset {offset}: the log ends at {log.log_end_offset}"
            )
        if offset <= log.log_start_offset:
            return
        try:
            await asyncio.to_thread(log.store_start, offset)
        except DiskFullError:
            log.make_room(offset)
            await self.drained()
            await asyncio.to_thread(log.store_start, offset)
        log.move_start(offset)

    def delete(self, logs: Iterable[Log]) -> None:
        """Delete logs that are no longer written; the thread removes their files (``drained``).

        The event loop only renames their directories, without a sync.
        """
        for log in logs:
            _logged(log.delete)

    def close(self) -> None:
        """Wait for the removal in progress, and stop the thread."""
        self._thread.shutdown(cancel_futures=True)


def _logged(removal: Callable[[], None]) -> None:
    try:
        removal()
    except StrandlineError as error:
        logger.warning("files could not be removed; the next start removes them: %s", error)
    except Exception:
        logger.exception("files could not be removed, please report")


def _nothing() -> None:
    """Do nothing; marks a place in the queue of removals."""
