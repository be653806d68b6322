"""Seeded bugs of journal, checkpoints, logs and recovery, which the simulator must find.

Each changes a line or two of the storage itself: something is not synced, not checked, or done too
early. Four rules are not covered here but in unit tests, because 30 s of histories seldom need
them: that torn journal entries are discarded, that the journal is synced before a log's generation
is written, that recovered records are synced on a full disk, and that a checkpoint from before a
truncation makes nothing stable. Only one history in a thousand finds that the names of segments
removed by a recovery return.
"""

from pathlib import Path
from typing import Final

from simulation.bugs import Replacement, SourceRewrite
from strandline.storage.disk import Bytes, Disk

JOURNAL: Final = "strandline.storage.journal:Journal"
SCAN: Final = "strandline.storage.journal_scan"
DURABILITY: Final = "strandline.storage.log_durability:LogDurability"
LOG: Final = "strandline.storage.log:Log"
OPENING: Final = "strandline.storage.log_opening:LogOpening"
REDO: Final = "strandline.storage.log_replay:LogReplayer"
RECOVERY: Final = "strandline.storage.recovery"


def _write_without_directory(self: Disk, path: Path, data: Bytes) -> None:
    fresh = path.with_name(path.name + ".new")
    self.write_durably(fresh, data)
    self.rename(fresh, path)


RECOVERY_BUGS: Final = (
    # The journal
    SourceRewrite(
        "a group commit is acked before the journal is synced",
        f"{JOURNAL}.sync",
        "self.disk.fdatasync(self._current.file.fd)",
        "pass",
    ),
    SourceRewrite(
        "a failed sync of the journal is retried",
        f"{JOURNAL}.sync",
        "self.poisoned = True",
        "pass",
    ),
    SourceRewrite(
        "a journal file is left before it is synced",
        f"{JOURNAL}._roll",
        "self.sync()",
        "self.synced_sequence = self.last_sequence",
    ),
    SourceRewrite(
        "the name of a new journal file is not synced",
        f"{JOURNAL}._allocate",
        "self.disk.sync_directory(self.directory)",
        "pass",
    ),
    SourceRewrite(
        "the journal is recycled beyond the checkpoint",
        f"{RECOVERY}:Checkpointer.finish",
        "pending.checkpoint.sequence",
        "self._journal.last_sequence",
    ),
    SourceRewrite(
        "replay skips the last entry of a file",
        f"{SCAN}:JournalScan.replay",
        "file.positions:",
        "file.positions[:-1]:",
    ),
    SourceRewrite(
        "a torn entry of the journal counts",
        f"{SCAN}:_Walk._walk_file",
        "not batches_intact(entry, file.view)",
        "False",
    ),
    # Checkpoints
    SourceRewrite(
        "a checkpoint is written before the segments are synced",
        f"{RECOVERY}:Checkpointer.write",
        "log.flush()",
        "pass",
    ),
    SourceRewrite(
        "a checkpoint covers batches that are in memory only",
        f"{DURABILITY}.checkpoint",
        "self.write_pending()",
        "pass",
    ),
    SourceRewrite(
        "a checkpoint syncs the active segment only",
        f"{DURABILITY}._sync_segments",
        "reversed(self._layout.segments)",
        "self._layout.segments[-1:]",
    ),
    SourceRewrite(
        "the names of new segments are not synced",
        f"{DURABILITY}._sync_segments",
        "if unnamed:",
        "if False:",
    ),
    Replacement(
        "the name of a replaced file is not synced",
        "write_atomically",
        _write_without_directory,
        (Disk,),
    ),
    # Logs
    SourceRewrite(
        "the start of a log is not made durable",
        f"{LOG}.store_start",
        "self._disk.write_atomically(",
        "self._disk.write_whole(",
    ),
    SourceRewrite(
        "recovery ignores truncation markers",
        f"{LOG}._mark_and_truncate",
        "if journal is not None:",
        "if False:",
    ),
    SourceRewrite(
        "a truncation marker counts although a checkpoint is newer",
        "strandline.storage.truncation_marker:TruncationMarker.is_newer",
        "self.state.truncations > at.truncations",
        "True",
    ),
    SourceRewrite(
        "a truncation marker is written while batches are in memory only",
        f"{LOG}._write_marker",
        "self.sync_written()",
        "pass",
    ),
    SourceRewrite(
        "copies are acked while they are in memory",
        f"{DURABILITY}.sync_written",
        "self._sync(with_indexes=False)",
        "pass",
    ),
    # Recovery
    SourceRewrite(
        "recovery trusts what a failed sync left in the page cache",
        f"{OPENING}._begin",
        "self._disk.drop_cache(file.fd)",
        "pass",
    ),
    SourceRewrite(
        "recovery drops batches that only the segments have",
        f"{REDO}.finish",
        "self._extend(OFFSET_MAX)",
        "pass",
    ),
    SourceRewrite(
        "a deleted log's entries are replayed into a new log with its id",
        f"{RECOVERY}:_replay",
        "and entry.sequence > generations[log_id]",
        "",
    ),
)
