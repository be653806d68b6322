"""Batches in bytes: what counts as one, and where they go on after a hole."""

import pytest

from strandline.record.batch import HEADER_BYTES
from strandline.record.codec import Stamp, encode_records
from strandline.storage.scan import OFFSET_MAX, find_intact, header_at, intact_at, scan


def batch(base, count=1):
    return bytes(encode_records([b"v" * 20] * count, ["s"], Stamp(base, 0, 1, "none")))


def hole(size):
    return b"\xff" * size


def test_a_run_ends_where_something_else_begins():
    """At a batch that is cut off, corrupt, beyond the limit, or not below the offset."""
    first, second = batch(0, 3), batch(3)
    view = memoryview(first + second)
    whole = (len(view), 4, len(first))
    assert scan(view, 0, len(view), below=OFFSET_MAX) == whole
    assert scan(view, 0, len(view), below=4) == whole
    one = (len(first), 3, 0)
    assert scan(view, 0, len(view) - 1, below=OFFSET_MAX) == one
    assert scan(view, 0, len(view), below=3) == one
    assert scan(view, 0, len(first) + HEADER_BYTES - 1, below=OFFSET_MAX) == one
    assert scan(view, len(first), len(first), below=OFFSET_MAX) == (len(first), -1, -1)
    damaged = bytearray(view)
    damaged[-1] ^= 1
    assert scan(memoryview(damaged), 0, len(view), below=OFFSET_MAX) == one
    assert scan(memoryview(damaged), 0, len(view), below=OFFSET_MAX, verify=False) == whole


@pytest.mark.parametrize("size", [8, 16, 1 << 10, (1 << 20) + 8, (1 << 20) + 16])
def test_the_batch_after_a_hole_is_found(size):
    """Also the next one in steps of eight bytes, and one beyond the window of the search."""
    view = memoryview(hole(size) + batch(7))
    assert find_intact(view, 0, after=6, below=8) == size
    assert find_intact(view, 0, after=7, below=8) == -1
    assert find_intact(view, 0, after=6, below=7) == -1


def test_a_batch_that_is_not_aligned_is_none():
    """It is within a record."""
    assert find_intact(memoryview(hole(12) + batch(7)), 0, after=0, below=99) == -1
    assert find_intact(memoryview(hole(4) + hole(12) + batch(7)), 4, after=0, below=99) == -1
    assert find_intact(memoryview(hole(4) + hole(16) + batch(7)), 4, after=0, below=99) == 20


def test_a_corrupt_header_with_a_length_leads_to_the_next_batch():
    """Past what its records contain; the search finds more than one candidate."""
    inner = batch(5)
    outer = bytearray(encode_records([inner], ["s"], Stamp(4, 0, 1, "none")))
    outer[-1] ^= 1
    view = memoryview(bytes(outer) + batch(9))
    assert find_intact(view, 0, after=4, below=99) == len(outer)
    forged = hole(8) + batch(50) + batch(9)
    assert find_intact(memoryview(forged), 0, after=4, below=10) == 8 + len(batch(50))


def test_what_is_no_header_is_none():
    """Nor is a batch whose bytes are not what its checksum says."""
    good = batch(0)
    assert header_at(memoryview(good), 0).base_offset == 0
    assert intact_at(memoryview(good), 0).base_offset == 0
    for data in (hole(200), good[: HEADER_BYTES - 1], b""):
        assert header_at(memoryview(data), 0) is None
        assert intact_at(memoryview(data), 0) is None
    assert header_at(memoryview(good[:-1]), 0) is not None
    assert intact_at(memoryview(good[:-1]), 0) is None
