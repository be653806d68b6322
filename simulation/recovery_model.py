"""A model of a log's contents, as plain lists, and its comparison with the log.

Rules: a batch is *safe* once a sync has covered it. After any stop all safe batches are there,
once, in order, byte for byte, and a prefix of the others. A truncation of a copy is not durable by
itself (its leader repeats it), so truncated batches may return, unless safe ones have replaced
them. Must not know files.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from strandline.errors import CorruptBatchError
from strandline.record.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    iter_headers,
)
from strandline.storage.log import Log
from strandline.testing.history import ViolationError
from strandline.types import LogId

READ_BYTES: Final = 1500


class ModelBatch(NamedTuple):
    """A batch and its offsets."""

    base: int
    end: int
    epoch: int
    data: bytes


def make_batch(base: int, count: int, epoch: int, *, payload: bytes) -> bytes:
    """Return a batch of this many records, whose contents storage does not read."""
    length = HEADER_BYTES + len(payload) + -len(payload) % 8
    fields = (base, count, count - 1, epoch, 0, base + 1, base + count, -1, 0, 1, 0)
    batch = bytearray(HEADER.pack(MAGIC, 0, length, VERSION, 0, 0, *fields))
    batch += payload.ljust(length - HEADER_BYTES, b".")
    batch[4:8] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "little")
    return bytes(batch)


def read_all(log: Log) -> list[ModelBatch]:
    """Return every batch of a log.

    Raises:
        CorruptBatchError: a batch cannot be read.
    """
    found: list[ModelBatch] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, READ_BYTES)
        found += batches_in(part.buffer)
        if part.next_offset <= offset:
            raise ViolationError(f"reading from offset {offset} gets nowhere")
        offset = part.next_offset
    return found


def batches_in(buffer: memoryview) -> list[ModelBatch]:
    """Split a buffer into its batches."""
    return [
        ModelBatch(h.base_offset, h.next_offset, h.leader_epoch, bytes(buffer[at : at + h.length]))
        for at, h in iter_headers(buffer)
    ]


@dataclass(slots=True)
class LogModel:
    """The model of one log, which may be emptied, deleted, and created again with its id."""

    log_id: LogId
    is_made: bool = False
    batches: list[ModelBatch] = field(default_factory=list)
    safe: int = 0
    """How many of the batches must survive."""
    first: int = 0
    """The offset at which the batches begin, or would begin."""
    start: int = 0
    start_max: int = 0
    """The largest possible log start: above ``start`` if a deletion was interrupted."""
    restart: int = -1
    """The offset at which the log was to continue, if emptying it was interrupted; else -1."""
    epoch: int = 0
    cut_off: set[bytes] = field(default_factory=set)
    """Truncated batches, which may return."""
    history: set[bytes] = field(default_factory=set)
    """Every batch that was ever written."""
    was_cut: bool = False
    """Whether it was truncated since it was opened, so that recovery may report records of a
    checkpoint as lost."""

    @property
    def end(self) -> int:
        """The next offset."""
        return self.batches[-1].end if self.batches else self.first

    @property
    def safe_end(self) -> int:
        """The offset after the last safe batch."""
        return self.batches[self.safe - 1].end if self.safe else self.first

    def next_batch(self, count: int, payload: bytes) -> bytes:
        """Add a batch, which is not safe yet."""
        base = self.end
        data = make_batch(base, count, self.epoch, payload=payload)
        self.batches.append(ModelBatch(base, base + count, self.epoch, data))
        self.history.add(data)
        return data

    def cut(self, kept: int) -> int:
        """Drop the batches after this many; return the new end."""
        self.cut_off.update(batch.data for batch in self.batches[kept:])
        del self.batches[kept:]
        self.safe = min(self.safe, kept)
        return self.end

    def start_over(self, offset: int) -> None:
        """Drop everything; the log continues at ``offset``."""
        self.cut(0)
        self.first = self.start = self.start_max = offset
        self.restart = -1

    def check(self, log: Log) -> None:
        """Compare with the log of a running storage.

        Raises:
            ViolationError: they differ.
        """
        wanted = [batch for batch in self.batches if batch.end > log.log_start_offset]
        if self._read(log) != wanted or log.log_end_offset != max(self.end, log.log_start_offset):
            raise self._violation(log, "differs from what was written")

    def recovered(self, log: Log) -> None:
        """Compare with the log after a recovery, and take over its contents.

        Raises:
            ViolationError: a safe batch is missing, or the log has one that was not written.
        """
        if self.restart >= 0 and log.log_start_offset == self.restart:
            self.start_over(self.restart)
        if not self.start <= log.log_start_offset <= self.start_max:
            raise self._violation(log, f"should start at {self.start} to {self.start_max}")
        found = self._read(log)
        before = [batch for batch in self.batches if batch.end <= log.log_start_offset]
        self._check_kept(log, before, found)
        self._check_row(log, found)
        self.batches = before + found
        self.safe = len(self.batches)
        self.start = self.start_max = log.log_start_offset
        self.restart, self.was_cut = -1, False

    def _check_kept(self, log: Log, before: list[ModelBatch], found: list[ModelBatch]) -> None:
        """Check that all safe batches are there, then a prefix of others, then truncated ones."""
        wanted = self.batches[len(before) :]
        pairs = zip(found, wanted, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), len(wanted)))
        if len(before) + same < self.safe:
            lost = wanted[same]
            raise self._violation(log, f"has lost records {lost.base} to {lost.end - 1}")
        if any(batch.data not in self.cut_off for batch in found[same:]):
            raise self._violation(log, f"has records from {found[same].base} on that nobody wrote")

    def _check_row(self, log: Log, found: list[ModelBatch]) -> None:
        """Check that offsets are dense up to the end, and that epochs never decrease."""
        at = found[0].base if found else log.log_start_offset
        epoch = 0
        for batch in found:
            if batch.base != at or batch.epoch < epoch:
                raise self._violation(log, f"should continue at {at} in epoch {epoch}: {batch[:3]}")
            at, epoch = batch.end, batch.epoch
        if log.log_end_offset != at:
            raise self._violation(log, f"should end at {at}")

    def _read(self, log: Log) -> list[ModelBatch]:
        try:
            return read_all(log)
        except CorruptBatchError as error:
            raise self._violation(log, f"cannot be read: {error}") from error

    def _violation(self, log: Log, what: str) -> ViolationError:
        there = f"{log.log_start_offset} to {log.log_end_offset}"
        ours = f"{self.start} to {self.end}, safe to {self.safe_end}"
        return ViolationError(f"log {self.log_id} ({there}; of {ours}) {what}")


def check_after_lies(model: LogModel, log: Log, *, is_corruption_reported: bool) -> None:
    """Check a log of a disk that lied: served batches were written, gaps are reported.

    Raises:
        ViolationError: a served batch was not written, or a gap is not reported.
    """
    offset, is_reported = int(log.log_start_offset), is_corruption_reported
    while offset < log.log_end_offset:
        try:
            part = log.read(offset, READ_BYTES)
        except CorruptBatchError as error:
            offset, is_reported = max(error.next_offset, offset + 1), True
            continue
        at = offset
        for batch in batches_in(part.buffer):
            if batch.data not in model.history:
                raise ViolationError(f"log {model.log_id} has at {batch.base} what nobody wrote")
            if batch.base > at and not is_reported:
                raise ViolationError(f"log {model.log_id} hides a gap: {at} to {batch.base - 1}")
            at = batch.end
        if part.next_offset <= offset:
            raise ViolationError(f"reading from offset {offset} gets nowhere")
        offset = part.next_offset
