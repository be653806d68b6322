"""Neighbouring small batches as one: the rows are those of each batch by itself."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptBatchError
from strandline.record.batch import HEADER_BYTES
from strandline.record.batch_merge import JOIN_BYTES_MAX, SmallBatches, is_plain
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.record.schema import project

COLUMNS = ["offset", "timestamp", "subject", "value", "key", "headers", "partition"]
SUBJECT = "ab"
HUGE = b"x" * (3 * JOIN_BYTES_MAX)
values = st.lists(st.binary(max_size=20) | st.just(HUGE), min_size=1, max_size=9)
shapes = st.lists(st.tuples(values, st.sampled_from(["", "a", "subject.b"])), min_size=2)


def encode(shapes):
    """Batches with gaps between their offsets, and where each begins."""
    buffer, positions, offset = bytearray(), [], 5
    for records, subject in shapes:
        positions.append(len(buffer))
        buffer += encode_records(records, [subject], Stamp(offset, 1, 1000 + offset))
        offset += len(records) + len(positions) % 3
    return bytes(buffer), positions


@given(shapes, st.permutations(COLUMNS), st.integers(1, len(COLUMNS)))
def test_merged_batches_have_the_rows_of_each(shapes, order, count):
    """Any columns, in any order; of values of any size."""
    columns = order[:count]
    buffer, positions = encode(shapes)
    small = SmallBatches(memoryview(pa.py_buffer(buffer)), positions)
    assert small.are_simple()
    merged = small.gather(project(columns), partition=7)
    merged.validate(full=True)
    ends = [*positions[1:], len(buffer)]
    wanted = [
        row
        for start, end in zip(positions, ends, strict=True)
        for batch in decode_batches(buffer[start:end], columns=columns, partition=7)
        for row in batch.to_pylist()
    ]
    assert merged.to_pylist() == wanted
    assert merged.schema == project(columns)


@pytest.mark.parametrize(
    ("records", "more", "is_simple"),
    [
        ([b"a"], {}, True),
        ([b"a", b"b"], {}, True),
        ([b"a", None], {}, False),
        ([b"a"], {"keys": [b"k"]}, False),
        ([b"a"], {"headers": [[("h", b"v")]]}, False),
        ([b"a"], {"compression": "zstd"}, False),
        ([b"a", b"b"], {"subjects": ["s", "t"]}, False),
    ],
)
def test_only_plain_batches_are_merged(records, more, is_simple):
    """One that has more than values and a subject is not, wherever it comes in a run."""
    stamp = Stamp(0, 0, 1, more.pop("compression", "none"))
    other = bytes(encode_records(records, more.pop("subjects", ["s"]), stamp, **more))
    plain = bytes(encode_records([b"p"], ["s"], Stamp(9, 0, 1)))
    for first, second in ((plain, other), (other, plain)):
        view = memoryview(first + second)
        assert SmallBatches(view, [0, len(first)]).are_simple() is is_simple
    assert is_plain(memoryview(plain + other), len(plain)) is is_simple


def corrupted(position, number):
    """Two batches of two records, the second with a number changed."""
    first, second = (
        bytes(encode_records([b"abc", b"defgh"], [SUBJECT], Stamp(2 * n, 0, 1))) for n in range(2)
    )
    buffer = bytearray(first + second)
    struct.pack_into("<i", buffer, len(first) + position, number)
    return SmallBatches(memoryview(bytes(buffer)), [0, len(first)])


ENDS_AT = HEADER_BYTES + 2 * 8 + 8
"""Timestamps and the subject come before the offsets of values."""


@pytest.mark.parametrize(
    ("position", "number"),
    [
        (36, -1),  # bytes of the subject
        (36, 64),
        (24, 0),  # records
        (24, 9),
        (ENDS_AT + 4, 9),  # the first value's end
        (ENDS_AT + 8, 17),  # the last one's
        (ENDS_AT, 1),  # the first one's begin
    ],
)
def test_lengths_that_do_not_fit_are_corruption(position, number):
    """Nothing outside a batch is read, whatever its numbers say."""
    small = corrupted(position, number)
    with pytest.raises(CorruptBatchError):
        small.gather(project(["value", "subject"]), partition=0)


def test_lengths_may_end_where_a_batch_ends():
    """The last value fills it."""
    buffer, positions = encode([([b"12345678"], "s"), ([b"1" * 16], "s")])
    found = SmallBatches(memoryview(buffer), positions).gather(project(["value"]), partition=0)
    assert found.column(0).to_pylist() == [b"12345678", b"1" * 16]
