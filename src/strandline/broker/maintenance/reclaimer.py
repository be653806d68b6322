"""Removes records and their files beside the loop: a file system takes long to free gigabytes.

Rules: the loop decides what is removed and changes the logs in memory; one thread removes the
files, in the order given. What it has not removed at the stop, the next start does.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from strandline.errors import DiskFullError, OffsetOutOfRangeError, StrandlineError
from strandline.storage.log import Log

logger = logging.getLogger(__name__)


class SpaceReclaimer:
    """The thread that removes files; everything but ``run`` is for the loop's thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="strandline-reclaim")

    def run(self, removal: Callable[[], None]) -> None:
        """Remove something soon; a failure is logged, and left to the next start."""
        self._thread.submit(_logged, removal)

    async def drained(self) -> None:
        """Wait until everything is removed that was to be removed so far."""
        await asyncio.wrap_future(self._thread.submit(_nothing))

    async def truncate_before(self, log: Log, offset: int) -> None:
        """Remove the records of a log below ``offset``.

        Raises:
            OffsetOutOfRangeError: beyond the log end offset.
            DiskFullError: no space for the new start, even after removing segments.
            LogPoisonedError: a write failed.
        """
        if offset > log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"cannot delete records below offset {offset}: the log ends at {log.log_end_offset}"
            )
        if offset <= log.log_start_offset:
            return
        try:
            await asyncio.to_thread(log.note_start, offset)
        except DiskFullError:
            log.make_room(offset)
            await self.drained()
            await asyncio.to_thread(log.note_start, offset)
        log.drop_before(offset)

    def delete(self, logs: Iterable[Log]) -> None:
        """Delete logs that nobody writes any more; their files follow (``drained``).

        On the event loop their directories only get another name, unsynced.
        """
        for log in logs:
            _logged(log.delete)

    def close(self) -> None:
        """Finish the removal that is under way."""
        self._thread.shutdown(cancel_futures=True)


def _logged(removal: Callable[[], None]) -> None:
    try:
        removal()
    except StrandlineError as error:
        logger.warning("what is to be removed is left to the next start: %s", error)
    except Exception:
        logger.exception("files could not be removed, please report")


def _nothing() -> None:
    """Comes after what was submitted before."""
