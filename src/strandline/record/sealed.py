"""Sealed batches: the columns encrypted as one block, the header in clear.

    72  data key u32 (its number within the stream)
    76  nonce, 12 bytes · salt, 16 bytes
   104  the columns, encrypted; then a tag of 16 bytes

Rules: the header stays readable, because brokers order, index, replicate and recover by it; it is
what the tag vouches for besides the columns, all of it but magic and checksum. The checksum covers
the stored bytes as in any batch, so corruption is found without a key. Codec, counts and subject
bytes describe the columns before they were sealed. This module knows where what lies, not how it is
encrypted: that is ``encryption``'s.
"""

import struct
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from strandline.checksum import crc32c
from strandline.errors import CorruptBatchError, StrandlineError
from strandline.record.batch import (
    CRC_FROM,
    HEADER_BYTES,
    Attributes,
    BatchHeader,
    Buffer,
)

NONCE_BYTES: Final = 12
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
_SEAL = struct.Struct(f"<I{NONCE_BYTES}s{SALT_BYTES}s")
COLUMNS_AT: Final = HEADER_BYTES + _SEAL.size
SEAL_BYTES: Final = _SEAL.size + TAG_BYTES
"""How much longer sealing makes a batch."""
_CRC = struct.Struct("<I")
_CRC_AT = 4
_LENGTH = struct.Struct("<I")
_LENGTH_AT = 8
_ATTRIBUTES = struct.Struct("<H")
_ATTRIBUTES_AT = 14
_SEALED = int(Attributes.SEALED)
"""A plain number: flags take longer to combine than a small batch to encrypt."""

assert SEAL_BYTES % 8 == 0, "sealed batches stay aligned"


class Seal(NamedTuple):
    """Parameters that decrypting a batch needs besides the data key."""

    key_number: int
    nonce: bytes
    salt: bytes


class Sealer(Protocol):
    """Seals and opens the batches of one partition; any thread."""

    def why_not(self) -> StrandlineError | None:
        """Why nothing can be sealed now, or None."""
        ...

    def seal(self, batch: Buffer) -> bytearray:
        """A batch that was just encoded, sealed."""
        ...

    def open(self, buffer: Buffer) -> pa.Buffer:
        """The batches in a buffer as they were before they were sealed.

        At least the first; those from one on that does not open are left to the next call.

        Raises:
            UnavailableError: the key is not here, most often an ``EncryptionKeyError``.
            DecryptionError: the first batch is not what was sealed with it.
        """
        ...


def is_sealed(header: BatchHeader) -> bool:
    """Whether the columns are encrypted."""
    return bool(header.attributes & _SEALED)


def sealed_frame(batch: Buffer, seal: Seal) -> bytearray:
    """Header and seal of a sealed batch, its columns still to be filled in."""
    frame = bytearray(len(batch) + SEAL_BYTES)
    frame[:HEADER_BYTES] = batch[:HEADER_BYTES]
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _LENGTH.pack_into(frame, _LENGTH_AT, len(frame))
    _ATTRIBUTES.pack_into(frame, _ATTRIBUTES_AT, attributes | _SEALED)
    _SEAL.pack_into(frame, HEADER_BYTES, *seal)
    return frame


def read_seal(sealed: memoryview) -> Seal:
    """The seal of a sealed batch.

    Raises:
        CorruptBatchError: it is too short to have one.
    """
    if len(sealed) < HEADER_BYTES + SEAL_BYTES:
        raise CorruptBatchError("a sealed batch is cut short")
    return Seal._make(_SEAL.unpack_from(sealed, HEADER_BYTES))


def vouched_for(sealed: Buffer) -> bytes:
    """The bytes in clear that the tag covers too: the header without magic and checksum."""
    return bytes(sealed[CRC_FROM:HEADER_BYTES])


def put_checksum(batch: bytearray | memoryview) -> None:
    """Note the checksum of a batch that is complete."""
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def put_open_header(target: memoryview, sealed: memoryview) -> None:
    """The header of a batch that was opened; its columns are in ``target`` already."""
    target[:HEADER_BYTES] = sealed[:HEADER_BYTES]
    (attributes,) = _ATTRIBUTES.unpack_from(sealed, _ATTRIBUTES_AT)
    _LENGTH.pack_into(target, _LENGTH_AT, len(target))
    _ATTRIBUTES.pack_into(target, _ATTRIBUTES_AT, attributes & ~_SEALED)
    put_checksum(target)
