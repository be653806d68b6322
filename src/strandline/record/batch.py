"""The batch: the unit that is written, replicated and read, and its fixed header.

    0  magic u32            8  length u32 (whole batch, multiple of 8)
    4  crc32c u32          12  version u8 · codec u8 · attributes u16
   16  base offset i64     24  record count u32 · last offset delta u32
   32  leader epoch u32    36  subject bytes u32 (dictionary only, unpadded)
   40  first timestamp i64 48  last timestamp i64 (ns; smallest and largest of the batch)
   56  producer id i64     64  producer epoch i16 · subject count u16 · base sequence i32
   72  columns

Rules: little endian; the CRC covers everything from byte 8 on, so a flip anywhere in the batch is
found; ``length`` is checked against a cap before anything is read. Byte by byte: docs/format.md.
This module knows headers only; columns are ``codec``'s business.
"""

import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import NamedTuple

import msgspec

from strandline.checksum import crc32c
from strandline.errors import CorruptBatchError
from strandline.types import LeaderEpoch, Offset, ProducerStamp, TimestampNs

MAGIC = 0x314E_5453  # b"STN1"
VERSION = 1
HEADER = struct.Struct("<IIIBBHqIIIIqqqhHi")
HEADER_BYTES = 72
CRC_FROM = 8
LENGTH_MAX = 1 << 30
NO_PRODUCER = -1
TIMESTAMP_MIN = TimestampNs(-(1 << 63))
"""The smallest timestamp, before any real time."""

assert HEADER.size == HEADER_BYTES, "the header is as long as its specification says"
assert HEADER_BYTES % 8 == 0, "columns start aligned"

Buffer = bytes | bytearray | memoryview


class Attributes(IntFlag):
    """Flags of a batch: the bits of the header's attributes field."""

    KEYS = 1
    HEADERS = 2
    NULL_VALUES = 4
    OFFSET_DELTAS = 8
    """Compaction left gaps: each record's offset is base offset + delta. There may be gaps before
    the first record and after the last, since the batch still covers its original offsets."""
    MESSAGE_IDS = 16
    """At least one record carries a ``Nats-Msg-Id`` header."""
    TRANSACTIONAL = 32
    """The records count only if the transaction of their producer and epoch is committed."""
    MARKER = 64
    """Not for readers: a transaction of this producer and epoch begins here or, with one of the
    next two flags, ends. The batch has one record without meaning."""
    COMMITTED = 128
    ABORTED = 256
    SEALED = 512
    """The columns are encrypted: see ``sealed``."""
    REMOVED = 1024
    """Not for readers: a placeholder for offsets whose records compaction has removed. It has one
    record without meaning."""
    PURGE = 2048
    """Not for readers: a purge, in streams with per-subject retention. Its one record has a
    subject, which may be a pattern, and an offset as value: matching records below that are
    removed."""


class BatchHeader(NamedTuple):
    """A decoded header; field order is the order on disk."""

    magic: int
    crc: int
    length: int
    version: int
    codec: int
    attributes: int
    base_offset: Offset
    record_count: int
    last_offset_delta: int
    leader_epoch: LeaderEpoch
    subject_bytes: int
    first_timestamp: TimestampNs
    last_timestamp: TimestampNs
    producer_id: int
    producer_epoch: int
    subject_count: int
    base_sequence: int

    @property
    def producer(self) -> ProducerStamp:
        """Producer id, epoch and first sequence of a batch; the id ``NO_PRODUCER`` means none."""
        return ProducerStamp(self.producer_id, self.producer_epoch, self.base_sequence)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last one that the batch covers."""
        return Offset(self.base_offset + self.last_offset_delta + 1)


class Extent(msgspec.Struct, gc=False):
    """The offsets and times that a batch covers, and its length: all that a log needs of it.

    The encoder of a batch knows them, so the header need not be decoded again.
    """

    base_offset: Offset
    next_offset: Offset
    length: int
    first_timestamp: TimestampNs
    last_timestamp: TimestampNs


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode and sanity-check the header at ``position``; does not check the CRC.

    Raises:
        CorruptBatchError: too few bytes, wrong magic or version, or impossible lengths.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatchError("batch header is incomplete", position=position)
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptBatchError("no batch starts here (wrong magic)", position=position)
    if header.version != VERSION:
        raise CorruptBatchError(f"unknown batch version {header.version}", position=position)
    if not HEADER_BYTES < header.length <= LENGTH_MAX or header.length % 8:
        raise CorruptBatchError(f"impossible batch length {header.length}", position=position)
    if header.record_count == 0 or header.last_offset_delta < header.record_count - 1:
        raise CorruptBatchError("impossible record count", position=position)
    return header


def header_of(batch: Buffer) -> BatchHeader:
    """Decode the header of a batch that was encoded here, without checks."""
    return BatchHeader._make(HEADER.unpack_from(batch))


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header and verify the CRC of the whole batch at ``position``.

    Raises:
        CorruptBatchError: the batch is incomplete, or any of its bytes has changed.
    """
    header = read_header(buffer, position)
    end = position + header.length
    if end > len(buffer):
        raise CorruptBatchError("batch is incomplete", position=position)
    view = memoryview(buffer)[position + CRC_FROM : end]
    if crc32c(view) != header.crc:
        raise CorruptBatchError("checksum mismatch", position=position)
    return header


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Walk the whole batches in ``buffer`` from ``position``; an incomplete last one ends the walk.

    Yields:
        (position, header) per batch, CRC not checked.

    Raises:
        CorruptBatchError: a header in the middle is corrupt.
    """
    size = len(buffer)
    while size - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if position + header.length > size:
            return
        yield position, header
        position += header.length
