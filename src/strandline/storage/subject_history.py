"""The records that per-subject retention keeps: the newest of each subject, up to a limit.

A record with the header ``Nats-Rollup`` replaces all earlier records of its subject (``sub``) or of
the stream (``all``). A purge (``Attributes.PURGE``) removes the records of a pattern below an
offset. So the log alone determines the kept records, alike on every replica, and a record that is
no longer kept never returns.

Rules: batches are applied in the order of the log, and only when they are committed. ``last``,
``keeps`` and ``filtered`` may run on other threads while batches are applied, other methods must
not. A subject takes about 250 bytes of memory.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from strandline.errors import CorruptBatchError
from strandline.record.batch import Attributes, read_header
from strandline.record.codec import decode_batches, encode_again
from strandline.record.decode import walk
from strandline.record.subjects import has_wildcard, subject_matches
from strandline.storage.subject_index import Numbers, boolean

ROLLUP_HEADER: Final = "Nats-Rollup"
ROLLUPS: Final = (b"sub", b"all")
_HIDDEN: Final = int(Attributes.MARKER | Attributes.REMOVED)
_PURGE: Final = int(Attributes.PURGE)
_SPECIAL: Final = _HIDDEN | _PURGE | int(Attributes.HEADERS)
_ATTRIBUTES: Final = struct.Struct("<H")
_ATTRIBUTES_AT: Final = 14
_BELOW: Final = struct.Struct("<q")


class Kept(NamedTuple):
    """A record that is kept."""

    subject: str
    offset: int


class SubjectHistory:
    """The kept records of each subject, in the part of the log that was applied.

    Args:
        limit: how many records of one subject are kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.version = 0
        """Incremented by every change."""
        self.rolled_up: set[int] = set()
        """Offsets of records that replaced all records of the stream: they must be kept."""
        self._kept: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    # Applying the log

    def apply(self, batches: memoryview) -> None:
        """Apply whole, decrypted batches."""
        start = end = 0
        for position, length in walk(batches):
            (attributes,) = _ATTRIBUTES.unpack_from(batches, position + _ATTRIBUTES_AT)
            if attributes & _SPECIAL:
                self._apply_plain(batches[start:end])
                start = position + length
                if not attributes & _HIDDEN:
                    self._apply_special(attributes, batches[position:start])
            end = position + length
        self._apply_plain(batches[start:end])
        self.version += 1

    def _apply_plain(self, batches: memoryview) -> None:
        """Apply batches without headers, many in one pass, since each may have only one record."""
        for rows in decode_batches(batches, columns=["offset", "subject"]):
            offsets, subjects = (column.to_pylist() for column in rows.columns)
            for offset, subject in zip(offsets, subjects, strict=True):
                self.note(subject, offset)

    def _apply_special(self, attributes: int, batch: memoryview) -> None:
        columns = ["offset", "subject", "value", "headers"]
        for rows in decode_batches(batch, columns=columns):
            offsets, subjects, values, headers = (column.to_pylist() for column in rows.columns)
            if attributes & _PURGE:
                self.remove(subjects[0], parse_purge(values[0]))
                continue
            for offset, subject, pairs in zip(offsets, subjects, headers, strict=True):
                self.note(subject, offset, rollup=dict(pairs or ()).get(ROLLUP_HEADER))

    def note(self, subject: str, offset: int, *, rollup: bytes | None = None) -> None:
        """Apply a record."""
        if rollup == b"all":
            self._kept.clear()
            self.rolled_up.add(offset)
        kept = () if rollup == b"sub" else self._kept.get(subject, ())
        self._kept[subject] = (*kept, offset)[-self.limit :]

    def remove(self, pattern: str, below: int) -> None:
        """Remove the records of a pattern below an offset."""
        for subject in self._matching((pattern,)):
            kept = tuple(each for each in self._kept[subject] if each >= below)
            if kept:
                self._kept[subject] = kept
            else:
                del self._kept[subject]

    def forget_below(self, start: int) -> None:
        """Forget records below the log start."""
        self.remove(">", start)
        self.rolled_up = {each for each in self.rolled_up if each >= start}
        self.version += 1

    # Lookups

    def last(self, subject: str) -> int:
        """Return the offset of a subject's newest record; -1 if it has none."""
        kept = self._kept.get(subject)
        return kept[-1] if kept else -1

    def keeps(self, subject: str, offset: int) -> bool:
        """Return whether a record is kept."""
        return offset in self._kept.get(subject, ())

    def kept(self, patterns: Sequence[str]) -> list[Kept]:
        """Return the kept records with subjects that match a pattern; without patterns all."""
        return [
            Kept(subject, offset)
            for subject in self._matching(patterns)
            for offset in self._kept[subject]
        ]

    def _matching(self, patterns: Sequence[str]) -> list[str]:
        if not patterns or ">" in patterns:
            return list(self._kept)
        if not any(map(has_wildcard, patterns)):
            return [each for each in dict.fromkeys(patterns) if each in self._kept]
        return [
            subject
            for subject in self._kept
            if any(subject_matches(pattern, subject) for pattern in patterns)
        ]

    # Filtering

    def filtered(self, batches: memoryview, start: int) -> list[memoryview | bytearray]:
        """Return batches with only the kept records from ``start`` on."""
        keep = self.mask(batches, start)
        if keep.all():
            return [batches]
        found: list[memoryview | bytearray] = []
        first = begin = 0
        for position, length in walk(batches):
            header = read_header(batches, position)
            end = first + header.record_count
            kept = np.count_nonzero(keep[first:end])
            if kept < header.record_count:
                found.append(batches[begin:position])
                begin = position + length
                if kept:
                    (rows,) = decode_batches(batches[position:begin])
                    attributes = header.attributes & int(Attributes.TRANSACTIONAL)
                    rows = rows.filter(boolean(keep[first:end]))
                    found.append(encode_again(rows, header, attributes=attributes))
            first = end
        found.append(batches[begin:])
        return [each for each in found if len(each)]

    def stays(self, rows: pa.RecordBatch) -> list[bool]:
        """Return, for each record of a batch, whether compaction keeps it in the log."""
        offsets, subjects = (rows.column(name).to_pylist() for name in ("offset", "subject"))
        return [
            self.keeps(subject, offset) or offset in self.rolled_up
            for offset, subject in zip(offsets, subjects, strict=True)
        ]

    def mask(self, batches: memoryview, start: int) -> Numbers:
        """Return, for each record of the batches, whether it is from ``start`` on and kept."""
        found: list[bool] = []
        for rows in decode_batches(batches, columns=["offset", "subject"]):
            offsets, subjects = rows.columns
            # Convert each distinct subject once: conversions to Python objects are slow.
            kept = [self._kept.get(name, ()) for name in subjects.dictionary.to_pylist()]
            indices = subjects.indices.to_pylist()
            found += [
                offset >= start and offset in kept[index]
                for offset, index in zip(offsets.to_pylist(), indices, strict=True)
            ]
        return np.array(found, bool)


def format_purge(below: int) -> bytes:
    """Return the value of a purge's record."""
    return _BELOW.pack(below)


def parse_purge(value: bytes | None) -> int:
    """Return the offset below which a purge removes records.

    Raises:
        CorruptBatchError: the value is not an offset.
    """
    if value is None or len(value) != _BELOW.size:
        raise CorruptBatchError("a purge without an offset")
    return int(_BELOW.unpack(value)[0])
