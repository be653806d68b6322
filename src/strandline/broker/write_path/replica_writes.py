"""Finished batches on their way into logs that nobody publishes to here.

The log of the metadata's consensus group, and the copies of partitions that other brokers lead:
they take part in the turn, its journal entry and its one sync, and hear of the outcome as a whole.

Rules: whoever submits is told exactly once; batches of one log are written in the order in which
they were submitted; when one fails, what was submitted after it for the same log fails too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.record.batch import read_header
from strandline.storage.disk import Bytes
from strandline.storage.log import Log
from strandline.types import LogId

PART_OVERHEAD_BYTES = 16
"""Of a batch in a journal entry: its log and its length."""
Done = Callable[[StrandlineError | None], None]
"""Told None once everything is on disk, or why it is not."""


class ReplicaWrite(NamedTuple):
    """Batches for the end of one log, byte for byte.

    Attributes:
        log_id: of the log.
        log: which they continue.
        batches: each exactly one batch, in order; they must not change any more.
        done: told the outcome, on the loop.
    """

    log_id: LogId
    log: Log
    batches: Sequence[Bytes]
    done: Done


class ReplicaWrites:
    """The writes that wait for a group commit, and those in one."""

    def __init__(self) -> None:
        self._waiting: list[ReplicaWrite] = []
        self.waiting_bytes = 0
        """How long what waits will be in the journal."""
        self._under_way: list[ReplicaWrite] = []

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits for the next turn."""
        return bool(self._waiting)

    def has(self, log_id: LogId) -> bool:
        """Whether anything for a log waits, or is between write and answer."""
        return any(write.log_id == log_id for write in (*self._waiting, *self._under_way))

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is between write and answer."""
        return not self._waiting and not self._under_way

    @property
    def logs(self) -> list[Log]:
        """Return the logs that the current group commit writes to."""
        return [write.log for write in self._under_way]

    def submit(self, write: ReplicaWrite) -> None:
        """Take part in the next turn."""
        self.waiting_bytes += sum(len(batch) + PART_OVERHEAD_BYTES for batch in write.batches)
        self._waiting.append(write)

    def write(self) -> list[tuple[LogId, Bytes]]:
        """Append what waits to its logs, unsynced; the parts for the turn's journal entry.

        A write that fails for want of space is told so at once, the others go on.

        Raises:
            LogPoisonedError: a write failed.
        """
        assert not self._under_way, "one turn at a time"
        taken, self._waiting, self.waiting_bytes = self._waiting, [], 0
        parts: list[tuple[LogId, Bytes]] = []
        failed: dict[LogId, StrandlineError] = {}
        self._under_way = taken
        for write in taken:
            error = failed.get(write.log_id) or append_whole(write.log, write.batches)
            if error is None:
                parts += [(write.log_id, batch) for batch in write.batches]
            else:
                failed[write.log_id] = error
        if failed:
            self._under_way = [write for write in taken if write.log_id not in failed]
            parts = [part for part in parts if part[0] not in failed]
            self._notify([write for write in taken if write.log_id in failed], failed)
        return parts

    def undo(self, error: StrandlineError) -> None:
        """The turn's journal entry could not be written: take everything back out.

        Raises:
            LogPoisonedError: a log could not be cut.
        """
        under_way, self._under_way = self._under_way, []
        for write in reversed(under_way):
            _cut(write.log, read_header(write.batches[0]).base_offset)
        for write in under_way:
            write.done(error)

    def complete(self) -> None:
        """The turn is on disk."""
        under_way, self._under_way = self._under_way, []
        for write in under_way:
            write.done(None)

    def fail(self, error: StrandlineError) -> None:
        """The turn has failed: give it up; its logs are left for the reopening to judge."""
        under_way, self._under_way = self._under_way, []
        for write in under_way:
            write.done(error)

    def refuse(self, error: StrandlineError) -> None:
        """Storage has failed: give up what waits."""
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        for write in waiting:
            write.done(error)

    def _notify(self, writes: list[ReplicaWrite], errors: dict[LogId, StrandlineError]) -> None:
        """Cut what part of them is in their logs, and tell them."""
        first: dict[LogId, ReplicaWrite] = {}
        for write in writes:
            first.setdefault(write.log_id, write)
        for write in first.values():
            _cut(write.log, read_header(write.batches[0]).base_offset)
        for write in writes:
            write.done(errors[write.log_id])


def append_whole(
    log: Log, batches: Iterable[Bytes], *, is_written: bool = False
) -> StrandlineError | None:
    """Append all of them, unsynced, or none: then say why.

    Args:
        log: which they continue.
        batches: each exactly one batch, in order.
        is_written: they have to be in the log's files, not only in memory.

    Raises:
        LogPoisonedError: a write failed, or could not be undone.
    """
    before = log.log_end_offset
    try:
        for batch in batches:
            log.append(batch, read_header(batch))
        if is_written:
            log.write_pending()
    except LogPoisonedError:
        raise
    except StrandlineError as error:
        _cut(log, before)
        return error
    return None


def _cut(log: Log, offset: int) -> None:
    """Remove what a write that failed has left.

    Raises:
        LogPoisonedError: that failed too.
    """
    try:
        # On the event loop: no more goes than one turn has written to the active segment.
        log.undo_to(offset)
    except UnavailableError as failure:
        raise LogPoisonedError(
            f"a turn could not be undone, the log is reopened: {failure.message}"
        ) from failure
