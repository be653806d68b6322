"""Opens a data directory after a clean stop or a crash, and takes checkpoints of a running one.

Recovery loads the checkpoint, opens each log as it was then, replays the journal after it, and
takes a new checkpoint. Rules: a repeat changes nothing. Log ids without a plan are skipped: their
streams were deleted, and ids are never reused. Corruption is reported by file and position, and
never prevents reading the rest. A full disk stops neither recovery nor the broker as long as
nothing has to be written. Must not know streams; the caller passes the directory of each log.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.errors import CorruptBatchError, DiskFullError
from strandline.storage.checkpoint import (
    FILE_NAME,
    NEW_LOG,
    Checkpoint,
    LogCheckpoint,
    load_checkpoint,
    save_checkpoint,
)
from strandline.storage.disk import Disk
from strandline.storage.journal import Journal
from strandline.storage.journal_scan import JournalCorruption
from strandline.storage.log import Log
from strandline.storage.log_generation import GENERATION_NAME, UNUSED, read_generation
from strandline.storage.log_replay import LogReplayer
from strandline.storage.truncation_marker import MARKER_NAME, TruncationMarker, read_marker
from strandline.types import LogId, Position

JOURNAL_NAME = "journal"


class LogPlan(NamedTuple):
    """The directory of a log, and the limits at which it rolls to a new segment."""

    directory: Path
    segment_bytes: int
    segment_age_ms: int


class RecoveryReport(msgspec.Struct):
    """The result of a recovery."""

    records_replayed: int = 0
    bytes_replayed: int = 0
    torn_bytes: int = 0
    """Bytes of journal entries that were being written at a crash; they were discarded."""
    corruption: list[JournalCorruption] = msgspec.field(default_factory=list)
    checkpointed: bool = False
    """False if the disk was too full for a new checkpoint; the journal keeps its entries."""


class Recovered(NamedTuple):
    """An open data directory."""

    journal: Journal
    logs: dict[LogId, Log]
    report: RecoveryReport
    checkpointer: "Checkpointer"

    def keep(self, log_id: LogId, log: Log) -> None:
        """Add a log that was created later, whose batches go to the journal, too."""
        log.journal = self.journal
        self.logs[log_id] = log


class PendingCheckpoint(NamedTuple):
    """A checkpoint that is being written."""

    checkpoint: Checkpoint
    logs: dict[LogId, Log]


class Checkpointer:
    """Takes checkpoints of a running broker in three steps; only ``write`` waits for the disk."""

    def __init__(self, directory: Path, *, disk: Disk, journal: Journal) -> None:
        self._directory = directory
        self._disk = disk
        self._journal = journal

    def begin(self, logs: Mapping[LogId, Log]) -> PendingCheckpoint:
        """Record the state of all logs, between two group commits, on their owner's thread.

        Args:
            logs: all logs; one left out would be recovered from the journal alone.

        Raises:
            DiskFullError: no space; nothing changed, retry later.
            LogPoisonedError: a write failed, now or earlier.
        """
        states: dict[int, LogCheckpoint] = {
            log_id: log.checkpoint() for log_id, log in logs.items()
        }
        checkpoint = Checkpoint(sequence=self._journal.last_sequence, logs=states)
        return PendingCheckpoint(checkpoint, dict(logs))

    def write(self, pending: PendingCheckpoint) -> None:
        """Make the checkpoint durable, on any thread; one at a time.

        Raises:
            DiskFullError: no space; the previous checkpoint stays.
            LogPoisonedError: a sync failed.
        """
        for log in pending.logs.values():
            log.flush()
        save_checkpoint(self._directory, pending.checkpoint, disk=self._disk)

    def finish(self, pending: PendingCheckpoint) -> None:
        """Recycle the journal before the checkpoint, on the logs' owner's thread."""
        for log_id, log in pending.logs.items():
            log.mark_checkpointed(pending.checkpoint.logs[log_id])
        self._journal.recycle(pending.checkpoint.sequence)


def recover(
    directory: Path,
    plans: Mapping[LogId, LogPlan],
    *,
    disk: Disk,
    file_bytes: int,
    are_only_copies: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Recovered:
    """Open the journal and all logs of a data directory, or create them.

    Args:
        directory: the directory of the broker's data.
        plans: the logs of all streams that exist, and no others.
        disk: the file system.
        file_bytes: size of a journal file.
        are_only_copies: whether no other broker has records that are lost here, so that their
            offsets must not be used again.
        on_progress: called with the bytes replayed so far, from time to time.

    Raises:
        DiskFullError: no space for records that only the journal has; free some and start again.
        LogPoisonedError: the disk cannot be read or written.
    """
    disk.make_directory(directory)
    report = RecoveryReport()
    checkpoint = _load(directory, disk=disk, report=report)
    journal = Journal.open(
        directory / JOURNAL_NAME,
        disk=disk,
        file_bytes=file_bytes,
        after_sequence=checkpoint.sequence if checkpoint else 0,
    )
    report.torn_bytes = journal.torn_bytes
    report.corruption += journal.corruption
    generations = _generations(plans, disk=disk, report=report)
    states = _states(checkpoint, generations, is_whole=journal.first_sequence == 1)
    markers = _markers(plans, disk=disk, report=report)
    for log_id, marker in markers.items():
        if marker.is_newer(states[log_id], journal):
            states[log_id], generations[log_id] = marker.state, marker.sequence
    redos = {
        log_id: LogReplayer(
            plan.directory,
            disk=disk,
            segment_bytes=plan.segment_bytes,
            at=states[log_id],
            is_only_copy=are_only_copies,
        )
        for log_id, plan in plans.items()
    }
    for parent in sorted({directory, *(plan.directory.parent for plan in plans.values())}):
        disk.sync_directory(parent)  # a killed broker may have left a removal unsynced
    _replay(journal, redos, generations, on_progress=on_progress)
    logs: dict[LogId, Log] = {}
    for log_id, redo in redos.items():
        logs[log_id] = Log.from_replay(
            redo,
            disk=disk,
            segment_age_ms=plans[log_id].segment_age_ms,
            keep_lost=bool(journal.corruption),
        )
        logs[log_id].journal = journal
        logs[log_id].truncations = markers[log_id].state.truncations if log_id in markers else 0
        report.records_replayed += redo.records
        report.bytes_replayed += redo.bytes
        report.corruption += redo.corruption
    checkpointer = Checkpointer(directory, disk=disk, journal=journal)
    _checkpoint(checkpointer, logs, report)
    return Recovered(journal, logs, report, checkpointer)


def _load(directory: Path, *, disk: Disk, report: RecoveryReport) -> Checkpoint | None:
    """Return the checkpoint; a corrupt one is reported and ignored."""
    try:
        return load_checkpoint(directory, disk=disk)
    except CorruptBatchError as error:
        report.corruption.append(JournalCorruption(directory / FILE_NAME, Position(0), str(error)))
        return None


def _generations(
    plans: Mapping[LogId, LogPlan], *, disk: Disk, report: RecoveryReport
) -> dict[LogId, int]:
    """Return the generation of each log: entries and checkpoints up to it are an older log's."""
    generations: dict[LogId, int] = {}
    for log_id, plan in plans.items():
        try:
            generations[log_id] = read_generation(plan.directory, disk=disk)
        except CorruptBatchError as error:
            generations[log_id] = UNUSED
            report.corruption.append(
                JournalCorruption(plan.directory / GENERATION_NAME, Position(0), str(error))
            )
    return generations


def _markers(
    plans: Mapping[LogId, LogPlan], *, disk: Disk, report: RecoveryReport
) -> dict[LogId, TruncationMarker]:
    """Read the truncation markers of all logs; corrupt ones are reported."""
    markers: dict[LogId, TruncationMarker] = {}
    for log_id, plan in plans.items():
        try:
            marker = read_marker(plan.directory, disk=disk)
        except CorruptBatchError as error:
            report.corruption.append(
                JournalCorruption(plan.directory / MARKER_NAME, Position(0), str(error))
            )
        else:
            if marker is not None:
                markers[log_id] = marker
    return markers


def _states(
    checkpoint: Checkpoint | None, generations: Mapping[LogId, int], *, is_whole: bool
) -> dict[LogId, LogCheckpoint | None]:
    """Return the checkpoint's state of each log.

    A log that is in no checkpoint is complete in the journal if that is complete; else the
    log's last segment is scanned.
    """
    unknown = NEW_LOG if checkpoint is not None or is_whole else None
    states: dict[LogId, LogCheckpoint | None] = dict.fromkeys(generations, unknown)
    if checkpoint is not None:
        for log_id, generation in generations.items():
            # A marker as old as the log itself belongs to its predecessor.
            if generation < checkpoint.sequence and log_id in checkpoint.logs:
                states[log_id] = checkpoint.logs[log_id]
    return states


def _replay(
    journal: Journal,
    redos: Mapping[LogId, LogReplayer],
    generations: Mapping[LogId, int],
    *,
    on_progress: Callable[[int], None] | None,
) -> None:
    done = 0
    for entry in journal.replay():
        for log_id, part in entry.parts:
            redo = redos.get(log_id)
            if redo is not None and entry.sequence > generations[log_id]:
                redo.apply(part, file=entry.file, position=entry.position)
            done += len(part)
        if on_progress is not None and entry.sequence % 256 == 0:
            on_progress(done)


def _checkpoint(
    checkpointer: Checkpointer, logs: Mapping[LogId, Log], report: RecoveryReport
) -> None:
    """Take a checkpoint, so that the old journal is not needed."""
    try:
        pending = checkpointer.begin(logs)
        checkpointer.write(pending)
    except DiskFullError:
        # ``report.checkpointed`` stays False; the broker's next checkpoint tries again. The
        # recovered records count as durable, so sync them: some are in files only, in no journal.
        for log in logs.values():
            log.sync_written()
        return
    checkpointer.finish(pending)
    report.checkpointed = True
