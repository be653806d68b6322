"""Column layout shared by both encoders: in order, each padded to 8 bytes, joined, checksummed.

The layout is in docs/format.md. ``parts`` is a batch while it is encoded: room for its header, then
the buffers of each column. ``seal`` joins them and adds the checksum.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np

from strandline.checksum import crc32c
from strandline.record.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    VERSION,
    Attributes,
    Buffer,
)
from strandline.record.compression import CODEC_NUMBERS, compress
from strandline.types import ProducerStamp

Headers = list[tuple[str, bytes]]
"""Headers of a record, in order; a name may occur several times."""

BATCH_RECORDS_MAX = 65_535
FILLER_OFFSETS_MAX = 1 << 32
MESSAGE_ID_HEADER = "Nats-Msg-Id"
HEADER_NAME_BYTES_MAX = 1024
MESSAGE_ID_BYTES_MAX = 1024
"""The longest message id. The same at every listener, since brokers forward records to each
other."""
NOBODY = ProducerStamp(NO_PRODUCER, NO_PRODUCER, NO_PRODUCER)
"""The stamp of records without an idempotent producer."""

CRC = struct.Struct("<I")
PADDING = [bytes(-length % 8) for length in range(8)]


class Shape(NamedTuple):
    """Header fields that describe the columns."""

    attributes: int
    record_count: int
    last_offset_delta: int
    subject_count: int
    subject_bytes: int
    first_timestamp: int
    last_timestamp: int


class Stamp(msgspec.Struct, gc=False):
    """Fields that the leader adds when it encodes a batch."""

    base_offset: int
    leader_epoch: int
    timestamp_ns: int
    compression: str = "none"
    producer: ProducerStamp = NOBODY
    attributes: int = 0
    """Attributes besides those that the columns set."""


def put(parts: list[Buffer], data: Buffer) -> None:
    """Add a column buffer and its padding."""
    parts.append(data)
    if len(data) % 8:
        parts.append(PADDING[len(data) % 8])


def put_subjects(parts: list[Buffer], subjects: Sequence[str], count: int) -> tuple[int, int]:
    """Add the subject dictionary and, if it has several, the indices; return count and bytes."""
    first = subjects[0]
    if len(subjects) == 1 or subjects.count(first) == count:
        name = first.encode()
        put(parts, name)
        return 1, len(name)
    dictionary: dict[str, int] = {}
    indices = [dictionary.setdefault(subject, len(dictionary)) for subject in subjects]
    names = [name.encode() for name in dictionary]
    put_binary(parts, names)
    put(parts, np.array(indices, dtype="<i4").tobytes())
    return len(names), sum(map(len, names))


def put_binary(parts: list[Buffer], values: Sequence[bytes]) -> None:
    """Add the offsets and the bytes of a variable-length column."""
    if len(values) == 1:
        data = values[0]
        parts.append(struct.pack("<ii", 0, len(data)))
        put(parts, data)
        return
    offsets = list(accumulate(map(len, values), initial=0))
    put(parts, struct.pack(f"<{len(offsets)}i", *offsets))
    parts.extend(values)
    if offsets[-1] % 8:
        parts.append(PADDING[offsets[-1] % 8])


def put_validity(parts: list[Buffer], values: Sequence[object]) -> None:
    """Add a validity bitmap: a bit is set where there is a value, least significant bit first."""
    present = np.fromiter((value is not None for value in values), dtype=bool, count=len(values))
    put(parts, np.packbits(present, bitorder="little").tobytes())


def put_headers(parts: list[Buffer], headers: Sequence[Headers | None]) -> int:
    """Add the header columns; return the flag MESSAGE_IDS if any record has one, else 0."""
    pairs = [pair for record in headers if record for pair in record]
    offsets = list(accumulate((len(record or ()) for record in headers), initial=0))
    put(parts, struct.pack(f"<{len(offsets)}i", *offsets))
    put_binary(parts, [name.encode() for name, _ in pairs])
    put_binary(parts, [value for _, value in pairs])
    found = any(name == MESSAGE_ID_HEADER for name, _ in pairs)
    return Attributes.MESSAGE_IDS if found else 0


def seal(parts: list[Buffer], stamp: Stamp, shape: Shape) -> bytearray:
    """Join header and columns and add the checksum; ``parts[0]`` is room for the header."""
    codec = CODEC_NUMBERS[stamp.compression]
    if codec:
        packed = compress(b"".join(parts), codec)
        parts = [b"", packed, PADDING[len(packed) % 8]]
    length = HEADER_BYTES + sum(map(len, parts))
    parts[0] = HEADER.pack(
        MAGIC,
        0,
        length,
        VERSION,
        codec,
        shape.attributes | stamp.attributes,
        stamp.base_offset,
        shape.record_count,
        shape.last_offset_delta,
        stamp.leader_epoch,
        shape.subject_bytes,
        shape.first_timestamp,
        shape.last_timestamp,
        stamp.producer.producer_id,
        stamp.producer.epoch,
        shape.subject_count,
        stamp.producer.sequence,
    )
    batch = bytearray().join(parts)
    CRC.pack_into(batch, 4, crc32c(memoryview(batch)[CRC_FROM:]))
    assert len(batch) % 8 == 0, "batches keep each other aligned"
    return batch


def as_id(header: bytes) -> str:
    """Return a message id as text; different bytes stay different even if they are not UTF-8."""
    return header.decode(errors="surrogateescape")
