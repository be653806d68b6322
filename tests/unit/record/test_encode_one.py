"""The quick way for a single plain record makes the bytes that the general way makes."""

import pytest

from strandline.record import encode
from strandline.record.batch import check_batch, header_of
from strandline.record.codec import Stamp, encode_records

STAMP = Stamp(base_offset=1 << 40, leader_epoch=7, timestamp_ns=1_700_000_000_123_456_789)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 2048])
@pytest.mark.parametrize("subject", ["a", "orders.paris", "ümlaut.é", "12345678"])
def test_the_bytes_are_the_same(monkeypatch, size, subject):
    """Whatever the paddings are."""
    value = bytes(range(256)) * 8
    quick = encode_records([value[:size]], [subject], STAMP)
    monkeypatch.setattr(encode, "_encode_one", None)
    general = encode_records([value[:size], b""], [subject, subject], STAMP)
    assert check_batch(quick).record_count == 1
    assert check_batch(general).record_count == 2
    parts = [b"", STAMP.timestamp_ns.to_bytes(8, "little")]
    encode._put_subjects(parts, [subject], 1)
    encode._put_binary(parts, [value[:size]])
    named = len(subject.encode())
    now = STAMP.timestamp_ns
    assert quick == encode._seal(parts, STAMP, encode._Shape(0, 1, 0, 1, named, now, now))


def test_its_header_can_be_decoded_without_checks():
    """What was made here is not checked again before it is stored."""
    batch = encode_records([b"x"], ["s"], STAMP)
    assert header_of(batch) == check_batch(batch)
