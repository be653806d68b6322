"""The state that all partitions share with the group committer and with readers."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import pyarrow as pa

from strandline.broker.log_throttle import LogThrottle
from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.broker.write_path.pending import AckSink
from strandline.broker.write_path.send_queue import SendQueue
from strandline.clock import Clock, SteadyTime
from strandline.config import LimitsConfig
from strandline.errors import (
    InvalidRecordError,
    NotLeaderError,
    RecordTooLargeError,
    StrandlineError,
    UnavailableError,
)
from strandline.record.codec import BATCH_RECORDS_MAX

logger = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES: Final = 32
"""Counted per record in addition to its bytes, so that empty records are limited, too."""

PartitionT = TypeVar("PartitionT")


class Admission(Generic[PartitionT]):
    """The limits, error state and counters that all partitions share with the group committer.

    Args:
        limits: the limits of records and of pending bytes.
        clock: the source of time.
        wake: requests a group commit.
        corruption: receives reports of corrupt batches; None: only their readers get the error.
        send_queue: where acknowledgements wait to be sent.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        *,
        clock: Clock,
        wake: Callable[[], None],
        corruption: CorruptionReports | None = None,
        send_queue: SendQueue | None = None,
    ) -> None:
        self.limits = limits
        self.record_size_max = limits.record_bytes + RECORD_OVERHEAD_BYTES
        self.corruption = corruption
        self.send_queue = send_queue or SendQueue()
        self.clock = clock
        self.steady = SteadyTime(clock)
        """The clock for windows of time: it does not jump when the wall clock is set."""
        self.wake = wake
        self.write_error: StrandlineError | None = None
        self.pending_bytes = 0
        self.held = 0
        """The number of appends that wait until message ids are loaded."""
        self.duplicates = 0
        self.rejects: Counter[str] = Counter()
        """The number of rejected records by error code."""
        self.dirty: list[PartitionT] = []
        """The partitions with accepted records, in the order of their first one."""
        self._throttle = LogThrottle()

    def record_error(self, size: int) -> StrandlineError | None:
        """Return why a record of ``size`` bytes, overhead included, is rejected now, or None."""
        limits = self.limits
        if self.pending_bytes > limits.pending_bytes:
            return UnavailableError(
                f"more than limits.pending_bytes, {limits.pending_bytes}, waits to be stored; "
                "retry later"
            )
        if size > self.record_size_max:
            return RecordTooLargeError(
                f"record of {size - RECORD_OVERHEAD_BYTES} bytes; limits.record_bytes is "
                f"{limits.record_bytes}: make it smaller, or raise that"
            )
        return None

    def size_error(self, size: int) -> StrandlineError | None:
        """Return why a batch of ``size`` bytes is always rejected, or None."""
        limit = self.limits.batch_bytes
        if size <= limit:
            return None
        return RecordTooLargeError(
            f"batch of {size} bytes; limits.batch_bytes is {limit}: send smaller batches"
        )

    def batch_error(self, batch: pa.RecordBatch, *, is_numbered: bool) -> StrandlineError | None:
        """Return why a batch is always rejected, or None."""
        error = self.size_error(int(batch.nbytes))
        if error is not None:
            return error
        if is_numbered and batch.num_rows > BATCH_RECORDS_MAX:
            return InvalidRecordError(
                f"numbered batch of {batch.num_rows} records; at most {BATCH_RECORDS_MAX} are "
                "stored as one: send smaller batches"
            )
        return None

    def reject(
        self,
        error: StrandlineError,
        ack_sink: AckSink | None,
        token: object,
        *,
        stream: str,
        records: int = 1,
    ) -> None:
        """Reject records: count them, and notify the ack sink, or else log (throttled)."""
        self.rejects[error.code] += records
        if ack_sink is not None:
            ack_sink.rejected(token, error)
        elif isinstance(error, NotLeaderError):
            pass  # every broker of a cluster receives the message, and only the leader stores it
        elif self._throttle.is_due(f"{stream} {error.code}", self.clock.monotonic_ms() / 1e3):
            logger.warning(
                "a message for stream %s was not stored, and its publisher asked for no ack: "
                "%s (repetitions are only counted, in strandline_rejects_total)",
                stream,
                error.message,
            )
