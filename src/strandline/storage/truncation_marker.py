"""From where a log goes on since its end was cut, though the journal has what was removed.

Journal and checkpoint know nothing of cuts: both may still speak of what was removed, and a
recovery that believed them would look for it, or put it back in the place of what came after. So
whoever cuts a log notes first, in its directory, the journal's sequence and the state in which the
log goes on: what a checkpoint or the journal says of the log up to there is over.
"""

from pathlib import Path

import msgspec

from strandline.storage.checkpoint import LogCheckpoint, decode_note, encode_note
from strandline.storage.disk import Disk
from strandline.storage.journal import Journal

CUT_NAME = "log-cut"


class TruncationMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The durable end of a truncated log, valid after the journal's ``sequence``."""

    sequence: int
    state: LogCheckpoint

    def is_newer(self, at: LogCheckpoint | None, journal: Journal) -> bool:
        """Whether a checkpoint does not know of it; None: there is none, only the journal."""
        if at is None:
            return self.sequence >= journal.first_sequence - 1
        return self.state.cuts > at.cuts


def note_cut(directory: Path, cut: TruncationMarker, *, disk: Disk) -> None:
    """Note a cut durably; the log up to it, and the journal up to its sequence, are already.

    Raises:
        DiskFullError: no space; what was noted before stands.
        LogPoisonedError: a write failed.
    """
    disk.write_atomically(directory / CUT_NAME, encode_note(cut))


def cut_of(directory: Path, *, disk: Disk) -> TruncationMarker | None:
    """The last cut that was noted; None if there was none.

    Raises:
        CorruptBatchError: the file is corrupt.
    """
    path = directory / CUT_NAME
    data = disk.read_bytes(path)
    return None if data is None else decode_note(data, TruncationMarker, path)
