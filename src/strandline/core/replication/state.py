"""State of a replica's own log, which outlives its roles.

Invariants:
- ``log_start_offset <= high_watermark <= log_end_offset``;
- ``durable_offset <= log_end_offset``; the log survives a crash up to the durable offset. A value
  below the log start means that not even the start is durable yet;
- the high watermark never goes back until a restart, except after an unclean election, or when a
  replica outside the ISR is filled again.
"""

from strandline.core.replication.epochs import Entry, EpochList
from strandline.core.replication.messages import NO_EPOCH, BatchRef
from strandline.types import LeaderEpoch, Offset

_NONE = Offset(0)


class LogState:
    """Offsets and epochs of the local log, after all effects so far.

    Args:
        log_start_offset: the log start offset of the log as recovered.
        log_end_offset: the log end offset of the log as recovered; recovery has synced all of it.
        high_watermark: as last checkpointed; it may be too low, never too high.
        epochs: as recovered.
    """

    __slots__ = ("durable_offset", "epochs", "high_watermark", "log_end_offset", "log_start_offset")

    def __init__(
        self,
        log_start_offset: Offset = _NONE,
        log_end_offset: Offset = _NONE,
        *,
        high_watermark: Offset = _NONE,
        epochs: tuple[Entry, ...] = (),
    ) -> None:
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.durable_offset = log_end_offset
        self.high_watermark = min(max(high_watermark, log_start_offset), log_end_offset)
        self.epochs = EpochList(epochs)
        self.check()

    def check(self) -> None:
        """Assert the invariants; cheap, called after every change."""
        assert self.log_start_offset <= self.high_watermark <= self.log_end_offset, "half-open"
        assert self.durable_offset <= self.log_end_offset, (
            "the log is durable up to its end at most"
        )

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch; ``NO_EPOCH`` if the log is empty."""
        is_empty = self.log_start_offset == self.log_end_offset
        return NO_EPOCH if is_empty else self.epochs.last

    def append(self, batches: tuple[BatchRef, ...]) -> None:
        """Note batches that were, or will be, appended."""
        for batch in batches:
            assert batch.base_offset == self.log_end_offset, "offsets are dense"
            self.epochs.note(batch.leader_epoch, batch.base_offset)
            self.log_end_offset = batch.next_offset
        self.check()

    def synced(self, offset: Offset) -> None:
        """Note that records below ``offset`` survive a crash."""
        self.durable_offset = max(self.durable_offset, offset)
        self.check()

    def advance(self, offset: Offset) -> bool:
        """Raise the high watermark to ``offset``; False if it is there already."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.check()
        return True

    def truncate_to(self, offset: Offset) -> None:
        """Truncate. If a crash undoes this, the records below are still durable."""
        assert self.log_start_offset <= offset < self.log_end_offset, (
            "truncate to an offset of the log"
        )
        self.log_end_offset = offset
        self.durable_offset = min(self.durable_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.epochs.truncate_to(offset)
        self.check()

    def reset_to(self, offset: Offset) -> None:
        """Drop everything and start at ``offset``.

        Nothing is durable until the next sync: if a crash undid this, the old log would return,
        and it must not have been counted as one that reaches ``offset``.
        """
        self.log_start_offset = self.log_end_offset = offset
        self.high_watermark = offset
        self.durable_offset = Offset(0)
        self.epochs = EpochList()
        self.check()

    def delete_before(self, offset: Offset) -> None:
        """Note that retention moved the log start; it removes committed records only."""
        assert offset <= self.high_watermark, "retention removes committed records only"
        self.log_start_offset = max(self.log_start_offset, offset)
        self.epochs.delete_before(self.log_start_offset)
        self.check()
