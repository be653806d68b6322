"""Writes of finished batches: of the metadata log, and of partitions that other brokers lead.

They are written by the group commit, with its journal entry and its sync; each has one outcome.

Rules: ``done`` is called exactly once for each write. Writes to one log are made in the order in
which they were submitted; if one fails, the later ones to this log fail, too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strandline.errors import LogPoisonedError, StrandlineError, UnavailableError
from strandline.record.batch import read_header
from strandline.storage.disk import Bytes
from strandline.storage.log import Log
from strandline.types import LogId

PART_OVERHEAD_BYTES = 16
"""The overhead of a batch in a journal entry: its log id and its length."""
Done = Callable[[StrandlineError | None], None]
"""Called with None once all batches are on disk, or with the error."""


class ReplicaWrite(NamedTuple):
    """Finished batches to append to one log unchanged.

    Attributes:
        log_id: the log's id in the journal.
        log: the log to append to.
        batches: the batches in order, one in each element; they must not change any more.
        done: called with the outcome, on the loop.
    """

    log_id: LogId
    log: Log
    batches: Sequence[Bytes]
    done: Done


class ReplicaWrites:
    """The writes that wait for a group commit, and those of the current one."""

    def __init__(self) -> None:
        self._waiting: list[ReplicaWrite] = []
        self.waiting_bytes = 0
        """The bytes that the waiting writes will take in the journal."""
        self._under_way: list[ReplicaWrite] = []

    @property
    def has_waiting(self) -> bool:
        """Whether any write waits for the next group commit."""
        return bool(self._waiting)

    def has(self, log_id: LogId) -> bool:
        """Whether a write to a log is waiting or in progress."""
        return any(write.log_id == log_id for write in (*self._waiting, *self._under_way))

    @property
    def is_idle(self) -> bool:
        """Whether no write waits or is in progress."""
        return not self._waiting and not self._under_way

    @property
    def logs(self) -> list[Log]:
        """Return the logs that the current group commit writes to."""
        return [write.log for write in self._under_way]

    def submit(self, write: ReplicaWrite) -> None:
        """Queue a write for the next group commit."""
        self.waiting_bytes += sum(len(batch) + PART_OVERHEAD_BYTES for batch in write.batches)
        self._waiting.append(write)

    def write(self) -> list[tuple[LogId, Bytes]]:
        """Append waiting writes to their logs, unsynced; return the parts for the journal entry.

        A write that fails for lack of space is reported at once; the others continue.

        Raises:
            LogPoisonedError: a write failed.
        """
        assert not self._under_way, "one group commit at a time"
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
        """Remove the batches from the logs, because the journal entry could not be written.

        Raises:
            LogPoisonedError: a log could not be truncated.
        """
        under_way, self._under_way = self._under_way, []
        for write in reversed(under_way):
            _truncate(write.log, read_header(write.batches[0]).base_offset)
        for write in under_way:
            write.done(error)

    def complete(self) -> None:
        """Report that the writes of the group commit are on disk."""
        under_way, self._under_way = self._under_way, []
        for write in under_way:
            write.done(None)

    def fail(self, error: StrandlineError) -> None:
        """Report a failed group commit; the logs are truncated when the storage is reopened."""
        under_way, self._under_way = self._under_way, []
        for write in under_way:
            write.done(error)

    def reject_waiting(self, error: StrandlineError) -> None:
        """Fail all waiting writes, because the storage failed."""
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        for write in waiting:
            write.done(error)

    def _notify(self, writes: list[ReplicaWrite], errors: dict[LogId, StrandlineError]) -> None:
        """Remove the batches of failed writes from their logs, and report the outcomes."""
        first: dict[LogId, ReplicaWrite] = {}
        for write in writes:
            first.setdefault(write.log_id, write)
        for write in first.values():
            _truncate(write.log, read_header(write.batches[0]).base_offset)
        for write in writes:
            write.done(errors[write.log_id])


def append_whole(
    log: Log, batches: Iterable[Bytes], *, is_written: bool = False
) -> StrandlineError | None:
    """Append all batches, unsynced, or none; return the error.

    Args:
        log: the log to append to.
        batches: the batches in order, one in each element.
        is_written: write the batches to the log's files, too, not only to memory.

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
        _truncate(log, before)
        return error
    return None


def _truncate(log: Log, offset: int) -> None:
    """Remove the batches of a failed write.

    Raises:
        LogPoisonedError: the truncation failed, too.
    """
    try:
        # On the event loop: removes at most what one group commit has written.
        log.undo_to(offset)
    except UnavailableError as failure:
        raise LogPoisonedError(
            f"a group commit could not be undone, the log is reopened: {failure.message}"
        ) from failure
