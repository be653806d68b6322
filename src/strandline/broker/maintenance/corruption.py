"""Reports of corruption that readers found: logged and counted once, and passed to the replica.

Rules: a reader of a log reports corruption here, from any thread, and continues; everything else
happens on the loop. The replica gets every report, and requests the records once.
"""

import logging
from collections.abc import Callable

from strandline.errors import CorruptBatchError
from strandline.telemetry import Telemetry
from strandline.types import LogId, Offset, PartitionName

logger = logging.getLogger(__name__)


class CorruptionReports:
    """The corrupt ranges known so far.

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
            error: the error, with file and position.
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
        """Forget the known corruption, so that a new scan logs and counts it again."""
        self._logged.clear()
