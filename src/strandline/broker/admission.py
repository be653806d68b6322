"""What all partitions of a broker share with its turn, and with those who read them."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from strandline.clock import Clock
from strandline.config import LimitsConfig
from strandline.errors import CorruptBatchError, StrandlineError
from strandline.types import TimestampNs

if TYPE_CHECKING:
    from strandline.broker.partition import Partition


class Admission:
    """What all partitions of a broker share with its turn."""

    def __init__(self, limits: LimitsConfig, *, clock: Clock, wake: Callable[[], None]) -> None:
        self.limits = limits
        self.clock = clock
        self.wake = wake
        self.refusal: StrandlineError | None = None
        self.pending_bytes = 0
        self.duplicates = 0
        self.rejects: Counter[str] = Counter()
        """Records that were refused or given up, by error code."""
        self.now_ns = TimestampNs(0)
        self.dirty: list[Partition] = []
        self.on_damage: Callable[[Partition, CorruptBatchError], None] = _unheard
        """Told, on any thread, what readers met."""


class Waiter(Protocol):
    """Whom to tell that there may be more to read; a ``threading.Event`` or an asyncio one."""

    def set(self) -> None:
        """There may be, or there will be none any more."""
        ...


def _unheard(_: "Partition", error: CorruptBatchError) -> None:
    """Nobody listens: the reader alone is told."""
