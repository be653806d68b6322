"""Dumps of single files of a data directory, entry by entry, corrupt or not.

Rules: read-only; a corrupt range is an entry, too.
"""

from collections.abc import Iterator
from pathlib import Path

from strandline.errors import CorruptBatchError, InvalidRequestError
from strandline.storage.disk import Disk
from strandline.storage.journal_scan import SUFFIX, JournalScan, batches_intact
from strandline.storage.offset_index import KIND_OFFSETS, KIND_TIMES, decode_index
from strandline.storage.scan import header_at
from strandline.storage.segment_reads import INDEX_SUFFIX, LOG_SUFFIX, TIMES_SUFFIX, CorruptRange
from strandline.storage.walk import open_unindexed, walk

CORRUPT = frozenset({"corrupt_until", "has_corrupt_batch"})
"""The field that marks a corrupt entry of a dump."""


def dump_file(path: Path) -> Iterator[tuple[int, dict[str, int | str]]]:
    """Yield the contents of a journal, segment or index file as (position, fields).

    Raises:
        InvalidRequestError: files of this kind cannot be dumped.
        CorruptBatchError: an index is corrupt.
    """
    disk = Disk()
    if path.name.endswith(SUFFIX):
        yield from _dump_journal(path, disk=disk)
    elif path.name.endswith(LOG_SUFFIX):
        yield from _dump_segment(path, disk=disk)
    elif path.name.endswith((INDEX_SUFFIX, TIMES_SUFFIX)):
        kind = KIND_OFFSETS if path.name.endswith(INDEX_SUFFIX) else KIND_TIMES
        decoded = decode_index(disk.read_bytes(path) or b"", kind)
        if decoded is None:
            raise CorruptBatchError("checksum mismatch", file=str(path))
        key_name = "offset" if kind == KIND_OFFSETS else "max_timestamp_before"
        for number, (key, at) in enumerate(zip(decoded[1].keys, decoded[1].positions, strict=True)):
            yield 48 + 16 * number, {key_name: key, "log_position": at}
    else:
        raise _not_dumped(path)


def _not_dumped(path: Path) -> InvalidRequestError:
    """Return the error for a file of a kind that cannot be dumped."""
    return InvalidRequestError(
        f"{path} is neither a journal nor a segment nor an index: only those can be dumped; "
        "inspect the data directory to have all its files verified"
    )


def _dump_journal(path: Path, *, disk: Disk) -> Iterator[tuple[int, dict[str, int | str]]]:
    """Yield entries in the order of the file, with the batches of each."""
    scan = JournalScan()
    scan.load(path, disk=disk)
    for file in scan.files:
        for entry in file.entries():
            parts = entry.parts(file.view)
            fields: dict[str, int | str] = {
                "sequence": entry.sequence,
                "synced_sequence": entry.synced_sequence,
                "length": entry.length,
                "parts": " ".join(f"{log_id}:{len(part)}" for log_id, part in parts),
            }
            if not batches_intact(entry, file.view):
                fields["has_corrupt_batch"] = "true"
            yield entry.position, fields


def _dump_segment(path: Path, *, disk: Disk) -> Iterator[tuple[int, dict[str, int | str]]]:
    """Yield batch headers and corrupt ranges."""
    stem = path.name.removesuffix(LOG_SUFFIX)
    if not stem.isdigit():
        raise _not_dumped(path)
    segment = open_unindexed(path.parent, int(stem), disk=disk, limit=-1)
    holes: list[CorruptRange] = []
    for found in walk(segment, on_hole=holes.append):
        for hole in holes:
            yield hole.position, {"corrupt_until": hole.next_position}
        holes.clear()
        header = header_at(found.view, 0)
        assert header is not None, "the walk found it intact"
        yield found.position, {name: int(value) for name, value in header._asdict().items()}
    for hole in holes:
        yield hole.position, {"corrupt_until": segment.size}
