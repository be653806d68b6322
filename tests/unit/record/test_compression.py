"""Decompression never exceeds its limit, or the size in the header."""

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from strandline.errors import CorruptBatchError
from strandline.record.batch import HEADER_BYTES
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.record.compression import BODY_BYTES_MAX, compress, decompress

VALUE_BYTES = 32 << 20


@pytest.fixture
def pool():
    """Counts Arrow's allocations in the test."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(before)


def claiming(codec, claimed_bytes):
    """A small batch of a large value, its checksum right, that claims this size of its body."""
    values = [bytes(VALUE_BYTES)]
    batch = bytearray(encode_records(values, ["s"], Stamp(0, 0, 1, codec)))
    assert len(batch) < 1 << 20
    struct.pack_into("<I", batch, HEADER_BYTES, claimed_bytes)
    struct.pack_into("<I", batch, 4, crc32c(bytes(batch[8:])))
    return bytes(batch)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("claimed_bytes", [BODY_BYTES_MAX + 1, (1 << 32) - 1])
def test_more_than_the_cap_is_rejected_before_anything_is_allocated(codec, claimed_bytes, pool):
    """A batch that says it becomes gigabytes costs nothing."""
    batch = claiming(codec, claimed_bytes)
    with pytest.raises(CorruptBatchError, match=f"claims {claimed_bytes} bytes; at most"):
        list(decode_batches(batch, columns=["value"]))
    assert pool.max_memory() < 64 << 10


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_more_than_is_claimed_is_rejected(codec, pool):
    """A batch that is larger than its header says gets no more memory than that."""
    batch = claiming(codec, 1000)
    with pytest.raises(CorruptBatchError, match="does not decompress"):
        list(decode_batches(batch, columns=["value"]))
    assert 1000 <= pool.max_memory() < 64 << 10, "what it said, and the pool counts it"


@pytest.mark.parametrize(("stored", "codec"), [(compress(b"value", 1), 3), (b"1234567", 1)])
def test_an_unknown_codec_and_a_body_without_its_sizes_are_corrupt(stored, codec):
    """As any other damage, and not an error of the interpreter."""
    with pytest.raises(CorruptBatchError, match=f"unknown codec {codec}, or incomplete body"):
        decompress(memoryview(stored), codec)
