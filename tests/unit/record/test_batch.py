"""The batch header: valid and invalid ones."""

import pytest

from strandline.errors import CorruptBatchError
from strandline.record.batch import HEADER_BYTES, check_batch, iter_headers, read_header
from strandline.record.codec import Stamp, encode_records


def batch(base_offset: int = 0, count: int = 3) -> bytes:
    values = [b"value-%d" % i for i in range(count)]
    return bytes(encode_records(values, ["orders.new"], Stamp(base_offset, 1, 42)))


def test_a_whole_batch_passes():
    """An encoded batch passes its check, and its header describes it."""
    header = check_batch(batch(base_offset=7))
    assert (header.base_offset, header.record_count, header.next_offset) == (7, 3, 10)
    assert header.leader_epoch == 1


@pytest.mark.parametrize("position", range(len(batch())))
def test_a_flip_of_any_byte_is_found(position):
    """A flip of any byte fails the check."""
    corrupt = bytearray(batch())
    corrupt[position] ^= 0x10
    with pytest.raises(CorruptBatchError):
        check_batch(corrupt)


@pytest.mark.parametrize("length", range(len(batch())))
def test_a_cut_at_any_byte_is_found(length):
    """A batch shortened anywhere fails the check."""
    with pytest.raises(CorruptBatchError):
        check_batch(batch()[:length])


def test_walk_stops_before_a_cut_batch():
    """Iteration yields whole batches and ignores an incomplete last one."""
    first, second = batch(), batch(base_offset=3)
    found = list(iter_headers(first + second[:-8]))
    assert [(position, header.base_offset) for position, header in found] == [(0, 0)]


def test_walk_finds_every_batch():
    """Walking a buffer yields the position and header of each batch."""
    first, second = batch(), batch(base_offset=3)
    found = list(iter_headers(first + second))
    assert [position for position, _ in found] == [0, len(first)]


def test_lengths_are_checked_before_use():
    """An impossible length is rejected without reading that far."""
    corrupt = bytearray(batch())
    corrupt[8:12] = (0xFFFFFFF8).to_bytes(4, "little")
    with pytest.raises(CorruptBatchError, match="impossible batch length"):
        read_header(corrupt)


def test_a_header_alone_is_no_batch():
    """A header without columns is rejected."""
    corrupt = bytearray(batch()[:HEADER_BYTES])
    corrupt[8:12] = HEADER_BYTES.to_bytes(4, "little")
    with pytest.raises(CorruptBatchError):
        read_header(corrupt)
