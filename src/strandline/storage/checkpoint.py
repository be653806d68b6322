"""Checkpoints: the durable part of each log's segments, for which no journal is needed.

Rules: the file is replaced atomically and has a checksum. Segments are synced before a checkpoint
names them, and the journal is recycled only after the checkpoint is durable. A checkpoint is taken
in three steps, so that the thread that owns the logs never waits for a sync: ``begin`` on that
thread, ``write`` on any, ``finish`` on that thread again. Must not know batches.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from strandline.checksum import crc32c
from strandline.errors import UNDECODABLE, CorruptBatchError
from strandline.record.batch import TIMESTAMP_MIN
from strandline.storage.disk import Disk
from strandline.types import Offset, Position, TimestampNs

FILE_NAME = "checkpoint.json"
VERSION = 1
NoteT = TypeVar("NoteT")


class LogCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The durable state of one log."""

    segment_base: Offset
    """Base offset of the active segment."""
    position: Position
    """How many bytes of the active segment are durable."""
    log_start_offset: Offset
    log_end_offset: Offset
    first_timestamp: TimestampNs
    """The first timestamp of the active segment, for rolling by age."""
    max_timestamp: TimestampNs
    truncations: int = 0
    """The number of truncations of the log so far (``truncation_marker``)."""


NEW_LOG = LogCheckpoint(
    segment_base=Offset(0),
    position=Position(0),
    log_start_offset=Offset(0),
    log_end_offset=Offset(0),
    first_timestamp=TIMESTAMP_MIN,
    max_timestamp=TIMESTAMP_MIN,
)
"""A log that is in no checkpoint yet: all of it is in the journal."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The durable state of all logs at one sequence of the journal."""

    version: int = VERSION
    sequence: int = 0
    logs: dict[int, LogCheckpoint] = {}


def save_checkpoint(directory: Path, checkpoint: Checkpoint, *, disk: Disk) -> None:
    """Replace the checkpoint durably.

    Raises:
        DiskFullError: no space; the old one stays.
        LogPoisonedError: the write or sync failed.
    """
    disk.write_atomically(directory / FILE_NAME, encode_note(checkpoint))


def load_checkpoint(directory: Path, *, disk: Disk) -> Checkpoint | None:
    """Return the checkpoint, or None if none was ever taken.

    Raises:
        CorruptBatchError: the file is corrupt; logs must be opened by scanning.
    """
    path = directory / FILE_NAME
    data = disk.read_bytes(path)
    if data is None:
        return None
    checkpoint = decode_note(data, Checkpoint, path)
    if checkpoint.version != VERSION:
        raise CorruptBatchError(
            f"checkpoint version {checkpoint.version} is not supported", file=str(path)
        )
    return checkpoint


def encode_note(what: Any) -> bytes:
    """Encode a small file: a checksum line, then the value as a line of JSON."""
    body = msgspec.json.encode(what)
    return b"%08x\n%b\n" % (crc32c(body), body)


def decode_note(data: bytes, kind: type[NoteT], path: Path) -> NoteT:
    """Decode a checkpoint or note file and verify its checksum.

    Raises:
        CorruptBatchError: the file is corrupt.
    """
    crc, _, body = data.rstrip(b"\n").partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise CorruptBatchError(f"{path.stem} is corrupt (checksum mismatch)", file=str(path))
    try:
        return msgspec.json.decode(body, type=kind)
    except UNDECODABLE as error:
        raise CorruptBatchError(f"{path.stem} is corrupt ({error})", file=str(path)) from error
