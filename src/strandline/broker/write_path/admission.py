"""The state that all partitions share with the group committer and with readers."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from strandline.broker.log_throttle import LogThrottle
from strandline.broker.write_path.ack_sink import AckSink
from strandline.clock import Clock, SteadyTime
from strandline.config import LimitsConfig
from strandline.errors import CorruptBatchError, NotLeaderError, StrandlineError
from strandline.types import TimestampNs

if TYPE_CHECKING:
    from strandline.broker.write_path.partition import Partition

logger = logging.getLogger(__name__)


class Admission:
    """The state that all partitions share with the group committer."""

    def __init__(self, limits: LimitsConfig, *, clock: Clock, wake: Callable[[], None]) -> None:
        self.limits = limits
        self.clock = clock
        self.steady = SteadyTime(clock)
        """For windows, which must not follow a wall clock that is set."""
        self.wake = wake
        self.refusal: StrandlineError | None = None
        self.pending_bytes = 0
        self.duplicates = 0
        self.rejects: Counter[str] = Counter()
        """Records that were refused or given up, by error code."""
        self.now_ns = TimestampNs(0)
        self.dirty: list[Partition] = []
        self.on_corruption: Callable[[Partition, CorruptBatchError], None] = _unheard
        """Told, on any thread, what readers met."""
        self._throttle = LogThrottle()

    def reject(
        self,
        error: StrandlineError,
        ack_sink: AckSink | None,
        token: object,
        *,
        stream: str,
        records: int = 1,
    ) -> None:
        """Refuse records: count them, and tell the responder or else the log, throttled."""
        self.rejects[error.code] += records
        if ack_sink is not None:
            ack_sink.rejected(token, error)
        elif isinstance(error, NotLeaderError):
            pass  # every broker of a cluster receives the message, and the leader stores it
        elif self._throttle.is_due(f"{stream} {error.code}", self.clock.monotonic_ms() / 1e3):
            logger.warning(
                "a message for stream %s was not stored, and its publisher asked for no answer: "
                "%s (further ones are only counted, in strandline_rejects_total)",
                stream,
                error.message,
            )


class Waiter(Protocol):
    """An event to set when there may be more to read: a ``threading.Event`` or an asyncio one."""

    def set(self) -> None:
        """There may be, or there will be none any more."""
        ...


def _unheard(_: "Partition", error: CorruptBatchError) -> None:
    """Nobody listens: the reader alone is told."""
