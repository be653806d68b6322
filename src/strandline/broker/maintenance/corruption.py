"""Reports of corruption that a reader found: logged and counted once, and passed to the replica.

Rules: a reader of a log reports corruption here, from any thread, and continues; the rest happens
on the loop. The replica gets each report, and requests a copy once.
"""

import logging
from collections.abc import Callable

from strandline.errors import CorruptBatchError
from strandline.telemetry import Telemetry
from strandline.types import LogId, Offset, PartitionName

logger = logging.getLogger(__name__)


class CorruptionReports:
    """The known corrupt ranges.

    Args:
        call_soon: runs a function on the loop, from any thread.
        telemetry: counters.
    """

    def __init__(self, call_soon: Callable[..., None], *, telemetry: Telemetry) -> None:
        self._call_soon = call_soon
        self._telemetry = telemetry
        self._logged: set[tuple[LogId, int]] = set()

    def report(
        self,
        name: PartitionName,
        log_id: LogId,
        error: CorruptBatchError,
        *,
        repair: Callable[[Offset, Offset], None],
    ) -> None:
        """Report a corrupt range; any thread.

        Args:
            name: the name of the partition.
            log_id: the id of its log.
            error: has the file and position.
            repair: called on the loop with the range of offsets, if it is known.
        """
        self._call_soon(lambda: self._note(name, log_id, error, repair=repair))

    def _note(
        self,
        name: PartitionName,
        log_id: LogId,
        error: CorruptBatchError,
        *,
        repair: Callable[[Offset, Offset], None],
    ) -> None:
        place = log_id, error.first_offset
        if place not in self._logged:
            self._logged.add(place)
            self._telemetry.corrupt_batches += 1
            logger.error("corruption in %s: %s", name, error)
        if 0 <= error.first_offset < error.next_offset:
            repair(Offset(error.first_offset), Offset(error.next_offset))

    def forget(self) -> None:
        """Log and count known corruption again: a new scan begins."""
        self._logged.clear()
