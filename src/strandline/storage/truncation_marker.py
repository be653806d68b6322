"""The truncation marker of a log: a file with the end at which it was truncated.

The journal and the checkpoint may still have batches that a truncation removed. A recovery that
used them would report them as lost, or write them over newer batches. So before a log is truncated,
the journal's sequence and the log's new end are written to a file in its directory. Recovery
ignores the log's journal entries up to that sequence, and older checkpoints.
"""

from pathlib import Path

import msgspec

from strandline.storage.checkpoint import LogCheckpoint, decode_note, encode_note
from strandline.storage.disk import Disk
from strandline.storage.journal import Journal

MARKER_NAME = "truncation-marker"


class TruncationMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The durable end of a truncated log, valid after the journal's ``sequence``."""

    sequence: int
    state: LogCheckpoint

    def is_newer(self, at: LogCheckpoint | None, journal: Journal) -> bool:
        """Return whether the truncation is newer than a checkpoint, or without one the journal."""
        if at is None:
            return self.sequence >= journal.first_sequence - 1
        return self.state.truncations > at.truncations


def write_marker(directory: Path, cut: TruncationMarker, *, disk: Disk) -> None:
    """Write the marker durably.

    The log up to the marker's end, and the journal up to its sequence, must be durable before.

    Raises:
        DiskFullError: no space; the earlier marker is unchanged.
        LogPoisonedError: a write failed.
    """
    disk.write_atomically(directory / MARKER_NAME, encode_note(cut))


def read_marker(directory: Path, *, disk: Disk) -> TruncationMarker | None:
    """Return the marker of the last truncation; None if there was none.

    Raises:
        CorruptBatchError: the file is corrupt.
    """
    path = directory / MARKER_NAME
    data = disk.read_bytes(path)
    return None if data is None else decode_note(data, TruncationMarker, path)
