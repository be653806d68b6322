"""Seeded bugs of journal, checkpoints, logs and recovery, which the simulator must find.

Each is a change of a line or two in the storage itself: something that is not synced, not checked
or done too early. Not shown here, as 30 s of histories seldom meet what they prevent, but in unit
tests: that what a crash left in the journal is wiped out, that the journal is synced before a log's
birth is noted, that what recovery finds is synced on a full disk, and that a checkpoint from
before a cut makes nothing stable. One history in a thousand sees when the names of segments that a
recovery removed come back.
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
        "a turn is acked before the journal is synced",
        f"{JOURNAL}.sync",
        "self.disk.fdatasync(self._current.file.fd)",
        "pass",
    ),
    SourceRewrite(
        "a failed sync of the journal is tried again",
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
        "the journal is recycled up to now, not to the checkpoint",
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
        "a checkpoint tells of batches that are in memory only",
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
        f"{LOG}.note_start",
        "self._disk.write_atomically(",
        "self._disk.write_whole(",
    ),
    SourceRewrite(
        "recovery does not know of cuts",
        f"{LOG}._cut_at",
        "if journal is not None:",
        "if False:",
    ),
    SourceRewrite(
        "a cut counts though a checkpoint is newer",
        "strandline.storage.truncation_marker:TruncationMarker.is_newer",
        "self.state.truncations > at.truncations",
        "True",
    ),
    SourceRewrite(
        "what a cut leaves is in memory when the journal is given up",
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
        "recovery trusts what a failed sync left in memory",
        f"{OPENING}._begin",
        "self._disk.drop_cache(file.fd)",
        "pass",
    ),
    SourceRewrite(
        "recovery drops what only the segments have",
        f"{REDO}.finish",
        "self._extend(OFFSET_MAX)",
        "pass",
    ),
    SourceRewrite(
        "a deleted log's entries are replayed into its namesake",
        f"{RECOVERY}:_replay",
        "and entry.sequence > generations[log_id]",
        "",
    ),
)
