"""Compression of a batch's columns, with a limit on the decompressed size.

The stored form is the uncompressed size (u32), the compressed size (u32) and the compressed
bytes, which padding may follow. The size is checked against ``BODY_BYTES_MAX`` before anything is
allocated, so a decompression bomb does no harm. Codecs are Arrow's own, which every reader has.
"""

import struct

import pyarrow as pa

from strandline.errors import CorruptBatchError

CODEC_NUMBERS = {"none": 0, "zstd": 1, "lz4": 2}
BODY_BYTES_MAX = 256 << 20
_SIZES = struct.Struct("<II")
_CODECS = {1: "zstd", 2: "lz4_raw"}


def compress(body: bytes, codec: int) -> bytes:
    """Compress ``body`` with codec number ``codec`` (1 zstd, 2 lz4)."""
    assert len(body) <= BODY_BYTES_MAX, "batches are split long before this size"
    packed: bytes = pa.compress(body, codec=_CODECS[codec], asbytes=True)
    return _SIZES.pack(len(body), len(packed)) + packed


def decompress(stored: memoryview, codec: int) -> pa.Buffer:
    """Undo ``compress``.

    Raises:
        CorruptBatchError: unknown codec, a size above the limit, or bytes that do not decompress.
    """
    if codec not in _CODECS or len(stored) < _SIZES.size:
        raise CorruptBatchError(f"unknown codec {codec}, or incomplete body")
    size, packed_size = _SIZES.unpack_from(stored)
    packed = stored[_SIZES.size : _SIZES.size + packed_size]
    if size > BODY_BYTES_MAX:
        raise CorruptBatchError(f"body claims {size} bytes; at most {BODY_BYTES_MAX} are allowed")
    try:
        return pa.decompress(packed, decompressed_size=size, codec=_CODECS[codec])
    except (pa.ArrowException, OSError) as error:
        raise CorruptBatchError(f"body does not decompress: {error}") from error
