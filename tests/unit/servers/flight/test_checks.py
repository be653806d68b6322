"""Incoming batches: malformed ones are rejected before their contents are used."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import LimitsConfig
from strandline.errors import (
    InvalidRecordError,
    InvalidSubjectError,
    RecordTooLargeError,
    StrandlineError,
)
from strandline.record.schema import HEADERS_TYPE
from strandline.servers.flight import checks
from strandline.servers.flight.checks import BatchChecker, header_bytes, referred_bytes

LIMITS = LimitsConfig(record_bytes=100, batch_bytes=10_000)


def check(bound_to: str = "s", **columns) -> pa.RecordBatch:
    """Return the checked batch of these columns."""
    return BatchChecker(LIMITS, bound_to).check(pa.RecordBatch.from_pydict(columns))


def test_a_good_batch_passes():
    """In the types of a put, its values untouched."""
    done = check(value=["a", None], key=[b"k", b"l"])
    assert done.to_pylist() == [{"value": b"a", "key": b"k"}, {"value": None, "key": b"l"}]


@pytest.mark.parametrize(
    "columns",
    [
        {"value": [b"x" * 101]},
        {"value": [b"x" * 60, b""], "key": [b"y" * 41, b""]},
        {"value": [b"x" * 90], "headers": pa.array([[("abcdef", b"12345")]], HEADERS_TYPE)},
    ],
)
def test_a_record_over_the_limit_is_named_with_it(columns):
    """Value, key and headers count together, and the error says which limit."""
    with pytest.raises(RecordTooLargeError, match=r"10\d bytes; limits.record_bytes is 100"):
        check(**columns)


def test_a_batch_over_the_limit_is_rejected():
    """Before it is validated, let alone stored."""
    with pytest.raises(RecordTooLargeError, match="batch_bytes"):
        check(value=[b"x" * 100] * 200)


def refers(values, rows, kind=None):
    """A dictionary column whose rows all have the first value."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(values, kind))


def views(value, rows):
    """A column of views into one buffer."""
    one = pa.array([value], pa.binary_view())
    view = one.buffers()[1].to_pybytes()[:16]
    buffers = [None, pa.py_buffer(view * rows), *one.buffers()[2:]]
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers)


HEADERS_LIST_BOMB = pa.ListArray.from_arrays(
    pa.array(range(201), pa.int32()),
    pa.StructArray.from_arrays([pa.array(["h"] * 200), views(b"x" * 90, 200)], ["name", "value"]),
)
HEADERS_BOMB = pa.MapArray.from_arrays(
    pa.array(range(201), pa.int32()), pa.array(["h"] * 200), refers([b"x" * 90], 200)
)


@pytest.mark.parametrize(
    "columns",
    [
        {"value": refers([b"x" * 90], 200)},
        {"value": refers(["x" * 90], 200, pa.large_string())},
        {"value": views(b"x" * 90, 200)},
        {"value": [b""] * 200, "key": refers([b"x" * 90], 200)},
        {"value": [b""] * 200, "message_id": refers(["x" * 90], 200)},
        {"value": [b""] * 200, "headers": HEADERS_BOMB},
        {"value": [b""] * 200, "headers": HEADERS_LIST_BOMB},
        {"value": refers(["x" * 90], 200, pa.string_view())},
    ],
)
def test_a_batch_that_becomes_large_is_rejected_while_it_is_small(columns, monkeypatch):
    """A value that many rows refer to is not copied for each of them first."""
    monkeypatch.setattr(checks, "normalise", None)
    with pytest.raises(RecordTooLargeError, match="batch of 18000 bytes"):
        check(**columns)


def test_subjects_that_many_rows_refer_to_may_be_longer_together(monkeypatch):
    """They become a dictionary; input that would need too much memory is rejected."""
    subjects = pa.DictionaryArray.from_arrays([0] * 199 + [None], ["x" * 90])
    columns = {"value": [b""] * 200, "subject": subjects}
    assert check(**columns).num_rows == 200
    monkeypatch.setattr(checks, "PLAIN_SUBJECTS_MAX", 5_000)
    with pytest.raises(RecordTooLargeError, match="batch of 12910 bytes"):
        check(**columns)


def test_columns_that_refer_to_their_values_pass():
    """Dictionaries and views within limits are valid, with nulls and as slices."""
    words = pa.array(["a", None, "b", "a"]).dictionary_encode()
    bytes_ = pa.array([b"v", None, b"long enough to lie in a buffer", b""], pa.binary_view())
    done = check(value=bytes_.slice(1), key=words.slice(1))
    assert done.to_pylist() == [
        {"value": None, "key": None},
        {"value": b"long enough to lie in a buffer", "key": b"b"},
        {"value": b"", "key": b"a"},
    ]
    assert referred_bytes(bytes_.slice(1)) == 30
    assert referred_bytes(words.slice(1)) == 2


def test_offsets_that_point_outside_are_found():
    """Arrow would read outside its memory; validation rejects them."""
    for offsets in ([0, 1 << 30, 1], [0, -8, 1], [1, 0, 1]):
        buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"x")]
        hostile = pa.Array.from_buffers(pa.binary(), 2, buffers)
        batch = pa.RecordBatch.from_arrays([hostile], names=["value"])
        with pytest.raises(InvalidRecordError):
            BatchChecker(LIMITS, "s").check(batch)


def test_dictionary_indices_outside_are_found():
    """A subject index beyond the dictionary is malformed."""
    indices = pa.array([0, 9], pa.int32())
    subject = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False)
    batch = pa.RecordBatch.from_arrays([pa.array([b"", b""]), subject], names=["value", "subject"])
    with pytest.raises(InvalidRecordError):
        BatchChecker(LIMITS, "s").check(batch)


@pytest.mark.parametrize("subject", ["", "a..b", "a.*", ">", "a b", "x" * 2000])
def test_subjects_must_be_plain_ones(subject):
    """Subjects that NATS could not publish are not stored either."""
    with pytest.raises(InvalidSubjectError):
        check(value=[b"v"], subject=[subject])


def test_rows_without_a_subject_get_the_streams():
    """Wildcards are replaced, so that the stream's pattern matches."""
    assert check("a.*.>", value=[b"v"]).column("subject").to_pylist() == ["a._._"]
    given_some = check("a.>", value=[b"v", b"w"], subject=["a.x", None])
    assert given_some.column("subject").to_pylist() == ["a.x", "a._"]
    given_none = check("a", value=[b"v"], subject=pa.nulls(1))
    assert given_none.column("subject").to_pylist() == ["a"]
    assert "subject" not in check("a", value=[b"v"]).schema.names


def test_headers_need_names():
    """A header without a name, or with an endless one, is malformed."""
    good = check(value=[b"v"] * 2, headers=pa.array([[("a", b"")], None], HEADERS_TYPE))
    assert good.num_rows == 2
    with pytest.raises(InvalidRecordError, match="longer"):
        BatchChecker(LimitsConfig(), "s").check(
            pa.RecordBatch.from_pydict(
                {"value": [b"v"], "headers": pa.array([[("a" * 2000, b"")]], HEADERS_TYPE)}
            )
        )


def test_header_sizes_are_counted_in_bytes():
    """Names as UTF-8; empty values and null headers are nothing."""
    headers = pa.array([[("é", b"123"), ("b", b"")], None, []], HEADERS_TYPE)
    assert header_bytes(headers).to_pylist() == [6, 0, 0]
    assert header_bytes(pa.nulls(2, HEADERS_TYPE)).to_pylist() == [0, 0]


KINDS = st.sampled_from(
    [pa.binary(), pa.string(), pa.large_binary(), pa.int64(), pa.null(), pa.bool_(), pa.float32()]
)


@given(
    names=st.lists(
        st.sampled_from(["value", "key", "subject", "headers", "message_id", "offset", "x"]),
        max_size=4,
    ),
    kinds=st.lists(KINDS, min_size=4, max_size=4),
    rows=st.integers(0, 3),
)
def test_any_schema_is_taken_or_rejected(names, kinds, rows):
    """Any columns and types give a batch or one of our errors."""
    arrays = [pa.nulls(rows, kind) for _, kind in zip(names, kinds, strict=False)]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    try:
        done = BatchChecker(LIMITS, "s.>").check(batch)
    except StrandlineError:
        return
    assert done.num_rows == rows
