"""Corruption that was met: logged once, counted, and reported to the replica that can repair it.

Rules: whoever reads a log reports what it met here, from any thread, and goes on; what follows
happens on the loop. The same corruption is told to the replica each time, which asks for a copy
once.
"""

import logging
from collections.abc import Callable

from strandline.broker.write_path.partition import Partition
from strandline.errors import CorruptBatchError
from strandline.telemetry import Telemetry
from strandline.types import LogId, Offset

logger = logging.getLogger(__name__)


class CorruptionReports:
    """The known corrupt ranges.

    Args:
        call_soon: runs something on the loop, from any thread.
        telemetry: counters.
    """

    def __init__(self, call_soon: Callable[..., None], *, telemetry: Telemetry) -> None:
        self._call_soon = call_soon
        self._telemetry = telemetry
        self._said: set[tuple[LogId, int]] = set()

    def met(self, partition: Partition, error: CorruptBatchError) -> None:
        """Somebody met corruption; any thread."""
        self._call_soon(self._note, partition, error)

    def _note(self, partition: Partition, error: CorruptBatchError) -> None:
        place = partition.log_id, error.first_offset
        if place not in self._said:
            self._said.add(place)
            self._telemetry.corrupt_batches += 1
            logger.error("corruption in %s: %s", partition.name, error)
        has_place = 0 <= error.first_offset < error.next_offset
        if partition.replica_hooks is not None and not partition.closed and has_place:
            partition.replica_hooks.corruption_found(
                Offset(error.first_offset), Offset(error.next_offset)
            )

    def forget(self) -> None:
        """A new look at everything begins: say again what is still corrupt."""
        self._said.clear()
