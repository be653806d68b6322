"""A check for data that the checkpoint promises and that a log's files lack; opens no log.

Rules: it trusts the same sources as recovery. A log's own files (generation, truncation marker,
start) take precedence over the checkpoint: records that they show as removed are not missing, nor
are records that only the journal has to contain. Read-only. Segments are listed before those files
are read, so that segments that a running broker removes meanwhile do not count as missing.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from strandline.errors import CorruptBatchError
from strandline.storage.checkpoint import Checkpoint, LogCheckpoint
from strandline.storage.disk import Disk
from strandline.storage.journal_scan import JournalScan
from strandline.storage.log_generation import read_generation
from strandline.storage.log_start import START_NAME, parse_start
from strandline.storage.scan import header_at
from strandline.storage.segment_reads import LOG_SUFFIX
from strandline.storage.truncation_marker import read_marker

QUORUM_LOG = 0
"""The id of the metadata log of a broker in a cluster; it has a directory of its own."""


class Durable(NamedTuple):
    """The part of a log that must be in its files."""

    at: LogCheckpoint
    sequence: int
    """The journal's sequence at the checkpoint; later entries may have more."""
    start: int
    """The log start offset."""

    @property
    def has_records(self) -> bool:
        """Whether the files must have records."""
        return self.at.log_end_offset > self.start


class Missing(NamedTuple):
    """A file that is absent or too short."""

    log_id: int
    durable: Durable
    file: Path
    position: int
    """The position at which the file ends."""
    message: str
    is_certain: bool
    """Whether this is corruption; False: the log may have been deleted on purpose."""


def durable_part(
    directory: Path, log_id: int, checkpoint: Checkpoint, *, disk: Disk
) -> Durable | None:
    """Return the part of a log that must be in its files; None if nothing must.

    Raises:
        CorruptBatchError: one of the log's own files is corrupt.
    """
    at, sequence = checkpoint.logs.get(log_id), checkpoint.sequence
    if read_generation(directory, disk=disk) >= sequence:
        at = None  # the checkpoint is about an older log with this id
    cut = read_marker(directory, disk=disk)
    if cut is not None and cut.state.truncations > (at.truncations if at is not None else 0):
        at, sequence = cut.state, cut.sequence
    if at is None:
        return None
    stored = parse_start(disk.read_bytes(directory / START_NAME) or b"") or 0
    return Durable(at, sequence, max(stored, at.log_start_offset))


def find_missing(
    checkpoint: Checkpoint,
    directories: Mapping[int, Path],
    *,
    disk: Disk,
    known: Collection[int] | None,
) -> Iterator[Missing]:
    """Yield the last segments in a checkpoint that are absent, or shorter than it says.

    Args:
        checkpoint: the checkpoint of the data directory.
        directories: the directories of each of its logs.
        disk: the file system.
        known: the logs that were not deleted; None: unknown.
    """
    for log_id, directory in directories.items():
        if known is not None and log_id not in known:
            continue
        is_there = disk.exists(directory)
        sizes = {
            int(name.removesuffix(LOG_SUFFIX)): size
            for name, size in disk.listing(directory).items()
            if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
        }
        try:
            durable = durable_part(directory, log_id, checkpoint, disk=disk)
        except CorruptBatchError:
            continue  # the corrupt file is reported elsewhere; it hides what is missing
        if durable is None or not durable.has_records:
            continue
        at = durable.at
        file, first = directory / f"{at.segment_base:020d}{LOG_SUFFIX}", durable.start
        size = sizes.get(at.segment_base, 0)
        has_earlier = any(base < at.segment_base for base in sizes)
        if size >= at.position and (at.position or has_earlier):
            continue
        if not at.position:
            file = directory  # a checkpoint does not name earlier segments
        elif has_earlier or size:
            first = max(first, at.segment_base)
        message = f"records {first} to {at.log_end_offset - 1} are missing, or some of them"
        if size:
            message = f"ends {at.position - size} bytes early: {message}"
        is_certain = is_there or known is not None or log_id == QUORUM_LOG
        if not is_certain:
            message += ", unless this copy was deleted since the last checkpoint"
        yield Missing(log_id, durable, file, size, message, is_certain)


def is_truncated_since(missing: Missing, journal: JournalScan) -> bool:
    """Whether the journal continues below the missing part, because the log was truncated."""
    end = missing.durable.at.log_end_offset
    for entry in journal.replay(missing.durable.sequence):
        for log_id, part in entry.parts:
            header = header_at(part, 0) if log_id == missing.log_id and part else None
            if header is not None and header.base_offset < end:
                return True
    return False
