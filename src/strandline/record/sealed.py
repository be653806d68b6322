"""Sealed batches: the columns encrypted as one block, the header in clear.

    72  data key u32 (its number within the stream)
    76  nonce, 12 bytes · salt, 16 bytes
   104  the columns, encrypted; then a tag of 16 bytes

Rules: the header stays readable, because brokers order, index, replicate and recover by it. The tag
authenticates the header, too, except magic and checksum. The checksum covers the stored bytes as in
any batch, so corruption is found without a key. Codec, counts and subject bytes describe the
columns before they were sealed. This module knows the layout; ``encryption`` encrypts and decrypts.
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
"""How many bytes sealing adds to a batch."""
_CRC = struct.Struct("<I")
_CRC_AT = 4
_LENGTH = struct.Struct("<I")
_LENGTH_AT = 8
_ATTRIBUTES = struct.Struct("<H")
_ATTRIBUTES_AT = 14
_SEALED = int(Attributes.SEALED)
"""A plain int, because combining flags takes longer than encrypting a small batch."""

assert SEAL_BYTES % 8 == 0, "sealed batches stay aligned"


class Seal(NamedTuple):
    """Parameters that decrypting a batch needs besides the data key."""

    key_number: int
    nonce: bytes
    salt: bytes


class Sealer(Protocol):
    """Seals (encrypts) and decrypts the batches of one partition; any thread."""

    def why_not(self) -> StrandlineError | None:
        """Return why nothing can be sealed now; None if it can."""
        ...

    def seal(self, batch: Buffer) -> bytearray:
        """Return a batch, which was just encoded, sealed."""
        ...

    def decrypt(self, buffer: Buffer) -> pa.Buffer:
        """Return the batches in a buffer as they were before they were sealed.

        If one that is not the first cannot be decrypted, only those before it are returned.

        Raises:
            UnavailableError: the key is not available, most often an ``EncryptionKeyError``.
            DecryptionError: the first batch is not encrypted, or was changed.
        """
        ...


def is_sealed(header: BatchHeader) -> bool:
    """Whether the columns are encrypted."""
    return bool(header.attributes & _SEALED)


def sealed_frame(batch: Buffer, seal: Seal) -> bytearray:
    """Return a sealed batch with header and seal, and room for its columns."""
    frame = bytearray(len(batch) + SEAL_BYTES)
    frame[:HEADER_BYTES] = batch[:HEADER_BYTES]
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _LENGTH.pack_into(frame, _LENGTH_AT, len(frame))
    _ATTRIBUTES.pack_into(frame, _ATTRIBUTES_AT, attributes | _SEALED)
    _SEAL.pack_into(frame, HEADER_BYTES, *seal)
    return frame


def read_seal(sealed: memoryview) -> Seal:
    """Return the seal of a sealed batch.

    Raises:
        CorruptBatchError: the batch is too short to have a seal.
    """
    if len(sealed) < HEADER_BYTES + SEAL_BYTES:
        raise CorruptBatchError("a sealed batch is incomplete")
    return Seal._make(_SEAL.unpack_from(sealed, HEADER_BYTES))


def associated_data(sealed: Buffer) -> bytes:
    """Return the clear bytes that the tag authenticates: the header without magic and checksum."""
    return bytes(sealed[CRC_FROM:HEADER_BYTES])


def put_checksum(batch: bytearray | memoryview) -> None:
    """Write the checksum into a complete batch."""
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def put_plain_header(target: memoryview, sealed: memoryview) -> None:
    """Write the header of a decrypted batch, whose columns are in ``target`` already."""
    target[:HEADER_BYTES] = sealed[:HEADER_BYTES]
    (attributes,) = _ATTRIBUTES.unpack_from(sealed, _ATTRIBUTES_AT)
    _LENGTH.pack_into(target, _LENGTH_AT, len(target))
    _ATTRIBUTES.pack_into(target, _ATTRIBUTES_AT, attributes & ~_SEALED)
    put_checksum(target)
