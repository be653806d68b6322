"""The quick way for a single plain record makes the bytes that the general way makes."""

import pytest

from strandline.record.batch import check_batch, header_of
from strandline.record.codec import Stamp, encode_one, encode_records

STAMP = Stamp(base_offset=1 << 40, leader_epoch=7, timestamp_ns=1_700_000_000_123_456_789)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 2048])
@pytest.mark.parametrize("subject", ["a", "orders.paris", "ümlaut.é", "12345678"])
def test_the_bytes_are_the_same(size, subject):
    """Whatever the paddings are."""
    value = (bytes(range(256)) * 8)[:size]
    quick = encode_one(value, subject, STAMP)
    assert check_batch(quick).record_count == 1
    assert quick == encode_records([value], [subject], STAMP)


def test_its_header_can_be_decoded_without_checks():
    """A batch just encoded is not checked again before it is stored."""
    batch = encode_one(b"x", "s", STAMP)
    assert header_of(batch) == check_batch(batch)
