"""Inspection of a data directory without changing it: its files and their corruption.

Every file gets one ``FileReport``; each piece of corruption in it is a ``Finding`` with its
position.
Rules: it opens nothing for writing and never repairs. It trusts batches, not indexes. Bytes after
the last checkpoint that are not intact are called torn, because recovery restores them from the
journal or discards them. Data that the checkpoint promises and that is absent is corruption
(``missing``).
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from strandline.errors import CorruptBatchError
from strandline.storage.checkpoint import FILE_NAME as CHECKPOINT_NAME
from strandline.storage.checkpoint import Checkpoint, load_checkpoint
from strandline.storage.disk import Disk
from strandline.storage.journal_scan import (
    JournalScan,
    ScannedFile,
    batches_intact,
    scan_directory,
)
from strandline.storage.log_generation import GENERATION_NAME, read_generation
from strandline.storage.log_start import START_NAME, parse_start
from strandline.storage.lost_ranges import (
    QUORUM_LOG,
    Durable,
    Missing,
    durable_part,
    find_missing,
    is_truncated_since,
)
from strandline.storage.offset_index import KIND_OFFSETS, KIND_TIMES, SparseIndex, decode_index
from strandline.storage.recovery import JOURNAL_NAME
from strandline.storage.scan import intact_at
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUBJECTS_SUFFIX,
    TIMES_SUFFIX,
    CorruptRange,
)
from strandline.storage.subject_index import check_subjects
from strandline.storage.truncation_marker import MARKER_NAME, read_marker
from strandline.storage.walk import open_unindexed, walk

Severity = Literal["note", "torn", "corruption"]
Kind = Literal[
    "checkpoint",
    "journal",
    "segment",
    "index",
    "timeindex",
    "subjects",
    "log-start",
    "log-generation",
    "truncation-marker",
    "other",
]


class Finding(msgspec.Struct, frozen=True):
    """A fact about a position of a file, with its severity."""

    file: Path
    position: int
    severity: Severity
    """``corruption``: bytes have changed; ``torn``: bytes were being written when the broker
    stopped, and recovery restores or discards them; ``note``: harmless."""
    message: str


class FileReport(msgspec.Struct):
    """One file of the data directory."""

    file: Path
    kind: Kind
    size_bytes: int
    facts: dict[str, int | str] = msgspec.field(default_factory=dict)
    """Fields of the file's header, and counts."""
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def is_corrupt(self) -> bool:
        """Whether any finding is corruption."""
        return any(finding.severity == "corruption" for finding in self.findings)

    def add(self, severity: Severity, position: int, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(self.file, position, severity, message))


Progress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


def inspect_directory(
    path: Path,
    *,
    verify: bool,
    known: Collection[int] | None = None,
    on_progress: Progress | None = None,
) -> Iterator[FileReport]:
    """Report on every file of a broker's data directory, the journal first.

    Args:
        path: the data directory, or the directory of one log.
        verify: read every batch and check its checksum; else only headers of files.
        known: ids of the logs in the metadata; None: the metadata is absent, or not in a file.
        on_progress: called after each file.

    Raises:
        LogPoisonedError: the directory cannot be read.
    """
    disk = Disk()
    inspection = _Inspection(path, disk=disk, verify=verify, known=known)
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    done = 0
    for report in inspection.run():
        done += report.size_bytes
        if on_progress is not None:
            on_progress(done, total)
        yield report


class _Inspection:
    """One run over a directory."""

    def __init__(
        self, path: Path, *, disk: Disk, verify: bool, known: Collection[int] | None
    ) -> None:
        self._path = path
        self._disk = disk
        self._verify = verify
        self._known = known
        self._checkpoint = Checkpoint()
        self._journal = JournalScan()
        self._truncated: set[int] = set()
        """Logs that an early version truncated since the checkpoint, without a marker."""
        self._short: dict[Path, Missing] = {}
        """Files that end before the checkpoint's position."""

    def run(self) -> Iterator[FileReport]:
        """Yield all reports."""
        if (self._path / CHECKPOINT_NAME).exists():
            yield self._inspect_checkpoint()
        directories = {log_id: self._directory(log_id) for log_id in self._checkpoint.logs}
        # First, since the rest is slow and a running broker may remove files meanwhile.
        missing = list(
            find_missing(self._checkpoint, directories, disk=self._disk, known=self._known)
        )
        if (self._path / JOURNAL_NAME).is_dir():
            yield from self._inspect_journal(self._path / JOURNAL_NAME)
        for each in missing:
            if is_truncated_since(each, self._journal):
                self._truncated.add(each.log_id)
                continue
            if each.file.is_file():
                self._short[each.file] = each
                continue
            report = FileReport(each.file, "segment", 0)
            report.add("corruption" if each.is_certain else "note", 0, each.message)
            yield report
        # Segments are named by an offset; the nats-server's log file has the same suffix.
        segments = (f for f in self._path.rglob(f"*{LOG_SUFFIX}") if f.stem.isdigit())
        for directory in sorted({file.parent for file in segments}):
            yield from self._inspect_log(directory)

    def _directory(self, log_id: int) -> Path:
        """Return the directory of a log."""
        where = "quorum" if log_id == QUORUM_LOG else f"logs/{log_id:08d}"
        return self._path / where

    def _durable(self, directory: Path) -> Durable | None:
        """Return the durable part of a log, according to the checkpoint and the log's own notes."""
        number = str(QUORUM_LOG) if directory.name == "quorum" else directory.name
        if not number.isdigit() or not self._checkpoint.sequence or int(number) in self._truncated:
            return None
        try:
            return durable_part(directory, int(number), self._checkpoint, disk=self._disk)
        except CorruptBatchError:
            return None  # the corrupt file has its own report

    def _inspect_checkpoint(self) -> FileReport:
        report = self._report(self._path / CHECKPOINT_NAME, "checkpoint")
        try:
            self._checkpoint = load_checkpoint(self._path, disk=self._disk) or self._checkpoint
        except CorruptBatchError as error:
            report.add("corruption", error.position, error.message)
            return report
        report.facts = {
            "sequence": self._checkpoint.sequence,
            "logs": len(self._checkpoint.logs),
        }
        return report

    def _inspect_journal(self, directory: Path) -> Iterator[FileReport]:
        after = self._checkpoint.sequence
        scan = self._journal = scan_directory(directory, disk=self._disk, after_sequence=after)
        for stub in scan.stubs:
            report = self._report(stub, "journal")
            report.add("note", 0, "creation was interrupted; it will be removed")
            yield report
        for file in scan.files:
            yield self._inspect_journal_file(file, scan)

    def _inspect_journal_file(self, file: ScannedFile, scan: JournalScan) -> FileReport:
        report = self._report(file.path, "journal")
        report.facts = {
            "number": file.header.number,
            "first_sequence": file.header.first_sequence,
            "entries_after_checkpoint": len(file.positions),
            "bytes_after_checkpoint": file.used_bytes,
        }
        for corruption in scan.corruption:
            if corruption.file == file.path:
                report.add("corruption", corruption.position, corruption.why)
        if scan.torn_bytes and file is scan.files[-1]:
            end = max((file.entry(position).end for position in file.positions), default=0)
            report.add("torn", end, f"{scan.torn_bytes} bytes of an entry that was never synced")
        if self._verify:
            for position in file.positions:
                if not batches_intact(file.entry(position), file.view):
                    report.add("corruption", position, "a batch in this entry is corrupt")
        return report

    def _inspect_log(self, directory: Path) -> Iterator[FileReport]:
        names = self._disk.listing(directory)
        bases = sorted(
            int(name.removesuffix(LOG_SUFFIX))
            for name in names
            if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
        )
        durable = self._durable(directory)
        for base, limit in zip(bases, [*bases, -1][1:], strict=True):
            yield from self._inspect_segment(directory, base, limit=limit, durable=durable)
        for name in sorted(names):
            if not name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TIMES_SUFFIX, SUBJECTS_SUFFIX)):
                yield self._inspect_other(directory / name)

    def _inspect_segment(
        self, directory: Path, base: int, *, limit: int, durable: Durable | None
    ) -> Iterator[FileReport]:
        """Inspect a segment and its indexes; ``limit`` is the next one's base offset or -1."""
        segment = open_unindexed(directory, base, disk=self._disk, limit=limit)
        report = self._report(segment.path, "segment")
        report.facts = {"base_offset": base}
        extent = _extent(segment, limit, durable)
        short = self._short.get(segment.path)
        if short is not None:
            report.add("corruption", short.position, short.message)
            extent = extent._replace(until=extent.first)
        places = _verify_segment(segment, report, extent=extent) if self._verify else None
        yield report
        for suffix, kind in ((INDEX_SUFFIX, KIND_OFFSETS), (TIMES_SUFFIX, KIND_TIMES)):
            if segment.path.with_suffix(suffix).exists():
                yield self._inspect_index(segment, suffix, kind, places=places)
        if (path := segment.path.with_suffix(SUBJECTS_SUFFIX)).exists():
            yield self._inspect_subjects(path, segment.size)

    def _inspect_index(
        self, segment: Segment, suffix: str, kind: int, *, places: dict[int, int] | None
    ) -> FileReport:
        path = segment.path.with_suffix(suffix)
        report = self._report(path, "index" if kind == KIND_OFFSETS else "timeindex")
        decoded = decode_index(self._disk.read_bytes(path) or b"", kind)
        if decoded is None:
            report.add("corruption", 0, "checksum mismatch; it will be rebuilt from the segment")
            return report
        about, index = decoded
        report.facts = {"entries": len(index), "log_bytes": about.log_bytes}
        if about.log_bytes > segment.size:
            report.add("note", 0, "describes a longer segment; it will be rebuilt")
        elif places is not None:
            _verify_index(index, report, places=places, of_offsets=kind == KIND_OFFSETS)
        return report

    def _inspect_subjects(self, path: Path, log_bytes: int) -> FileReport:
        report = self._report(path, "subjects")
        data = self._disk.read_bytes(path) or b""
        if (sealed := intact_at(memoryview(data), 0)) is not None and sealed.length == len(data):
            report.facts = {"is_encrypted": 1}
            return report
        index = check_subjects(data)
        if index is None:
            report.add("corruption", 0, "checksum mismatch; it will be rebuilt from the segment")
            return report
        about = index.about
        report.facts = {"subjects": index.subjects, "records": index.records}
        if about.log_bytes > log_bytes:
            report.add("note", 0, "describes another segment; it will be rebuilt")
        return report

    def _inspect_other(self, path: Path) -> FileReport:
        if path.name == START_NAME:
            report = self._report(path, "log-start")
            start = parse_start(self._disk.read_bytes(path) or b"")
            if start is None:
                report.add("corruption", 0, "not an offset and its checksum")
            else:
                report.facts = {"log_start_offset": start}
        elif path.name == GENERATION_NAME:
            report = self._report(path, "log-generation")
            try:
                report.facts = {"journal_sequence": read_generation(path.parent, disk=self._disk)}
            except CorruptBatchError as error:
                report.add("corruption", 0, error.message)
        elif path.name == MARKER_NAME:
            report = self._report(path, "truncation-marker")
            try:
                marker = read_marker(path.parent, disk=self._disk)
            except CorruptBatchError as error:
                report.add("corruption", 0, error.message)
            else:
                assert marker is not None, "the file is there"
                report.facts = {
                    "journal_sequence": marker.sequence,
                    "log_end_offset": marker.state.log_end_offset,
                    "truncations": marker.state.truncations,
                }
        else:
            report = self._report(path, "other")
            report.add("note", 0, "not a file of a log")
        return report

    def _report(self, path: Path, kind: Kind) -> FileReport:
        return FileReport(path, kind, path.stat().st_size)


class _Extent(NamedTuple):
    """The durable part of a segment: up to a position, and a range of offsets."""

    position: int
    first: int
    until: int


def _extent(segment: Segment, limit: int, durable: Durable | None) -> _Extent:
    """Return the part of a segment that must be intact; ``limit`` as for ``_inspect_segment``."""
    if durable is None:
        return _Extent(segment.size if limit >= 0 else 0, 0, 0)
    base, at = segment.base_offset, durable.at
    if base > at.segment_base:
        return _Extent(0, 0, 0)
    if base == at.segment_base:
        return _Extent(at.position, durable.start, at.log_end_offset)
    until = min(limit, at.segment_base) if limit >= 0 else at.segment_base
    return _Extent(segment.size, durable.start, until)


def _verify_segment(segment: Segment, report: FileReport, *, extent: _Extent) -> dict[int, int]:
    """Check every batch; return their positions with their base offsets."""
    places: dict[int, int] = {}
    records = 0
    end = segment.base_offset
    reached = end

    def on_hole(hole: CorruptRange) -> None:
        nonlocal reached
        known = hole.next_position >= 0 or hole.next_offset < (1 << 63) - 1
        until = f" to {hole.next_offset - 1}" if known else " on"
        reached = hole.next_offset
        if hole.position < extent.position:
            message = f"corrupt: records {hole.first_offset}{until} cannot be read"
            report.add("corruption", hole.position, message)
        else:
            message = f"not intact from offset {hole.first_offset} on, and after the checkpoint"
            report.add("torn", hole.position, message)

    for found in walk(segment, on_hole=on_hole):
        places[found.position] = found.header.base_offset
        records += found.header.record_count
        base = found.header.base_offset
        if base < end:
            report.add("corruption", found.position, "offsets go back")
        elif max(reached, extent.first) < base and found.position < extent.position:
            lost = f"records {max(reached, extent.first)} to {base - 1} are missing"
            report.add("corruption", found.position, lost)
        end = reached = found.header.next_offset
    if max(reached, extent.first) < extent.until:
        lost = f"records {max(reached, extent.first)} to {extent.until - 1} are missing"
        report.add("corruption", segment.size, lost)
    report.facts |= {"next_offset": end, "batches": len(places), "records": records}
    return places


def _verify_index(
    index: SparseIndex, report: FileReport, *, places: dict[int, int], of_offsets: bool
) -> None:
    """Check that each entry of an index points at a batch with its key."""
    for number, (key, position) in enumerate(zip(index.keys, index.positions, strict=True)):
        base = places.get(position)
        if base is None or (of_offsets and base != key):
            report.add("note", 48 + 16 * number, f"no such batch at byte {position} of the segment")
