"""The quick way for a single plain record makes the bytes that the general way makes."""

import pytest
from crc32c import crc32c

from strandline import speedups
from strandline.record.batch import check_batch, header_of
from strandline.record.codec import Stamp, encode_records
from strandline.speedups import pure

NUMBERS = {"base_offset": 1 << 40, "leader_epoch": 7, "timestamp_ns": 1_700_000_000_123_456_789}


@pytest.mark.parametrize("encode_record", [speedups.encode_record, pure.encode_record])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 2048])
@pytest.mark.parametrize("subject", ["a", "orders.paris", "ümlaut.é", "12345678"])
def test_the_bytes_are_the_same(encode_record, size, subject):
    """Whatever the paddings are."""
    value = (bytes(range(256)) * 8)[:size]
    quick = encode_record(value, subject.encode(), crc32c, **NUMBERS)
    assert check_batch(quick).record_count == 1
    assert quick == encode_records([value], [subject], Stamp(**NUMBERS))


def test_its_header_can_be_decoded_without_checks():
    """A batch just encoded is not checked again before it is stored."""
    batch = speedups.encode_record(b"x", b"s", crc32c, **NUMBERS)
    assert header_of(batch) == check_batch(batch)
