"""Replication messages are checked before a core receives them."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.core.replication import messages as ms
from strandline.core.replication.messages import BatchRef, decode, encode, in_row
from strandline.errors import InvalidRecordError

ALL = [
    ms.Fetch(3, 7, 100, -1, "run"),
    ms.Fenced(3),
    ms.Diverged(3, 7, 2, 90),
    ms.StartAt(3, 7, 50),
    ms.Replicate(3, 7, 100, 90, wants_ack=True),
    ms.Acked(3, 7, 100, 90),
    ms.FetchRange(3, 10, 20),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_comes_out_as_it_went_in(message):
    """Every kind of message survives its encoding."""
    assert decode(encode(message), []) == message


def test_batches_travel_beside_the_message():
    """A message with batches is taken if the buffers are those it speaks of."""
    refs = (BatchRef(0, 2, 1, 3), BatchRef(2, 3, 2, 1))
    for message in (ms.Replicate(2, 7, 0, 0, refs), ms.Range(2, 0, refs)):
        assert decode(encode(message), [b"abc", memoryview(b"d")]) == message


@pytest.mark.parametrize("buffers", [[], [b"abc"], [b"abc", b"de"], [b"abc", b"d", b"e"]])
def test_buffers_that_do_not_fit_are_rejected(buffers):
    """Too few, too many, or of another size: the sender's error, not a crash."""
    refs = (BatchRef(0, 2, 1, 3), BatchRef(2, 3, 2, 1))
    with pytest.raises(InvalidRecordError, match="batches came"):
        decode(encode(ms.Replicate(2, 7, 0, 0, refs)), buffers)


@pytest.mark.parametrize(
    "refs",
    [
        (BatchRef(0, 0, 1, 1),),
        (BatchRef(5, 4, 1, 1),),
        (BatchRef(0, 1, 1, 1), BatchRef(2, 3, 1, 1)),
        (BatchRef(0, 2, 1, 1), BatchRef(1, 3, 1, 1)),
        (BatchRef(0, 1, 2, 1), BatchRef(1, 2, 1, 1)),
    ],
    ids=["empty", "backwards", "gap", "overlap", "older epoch"],
)
def test_batches_out_of_row_are_rejected(refs):
    """Batches of a message are not empty, follow each other, and epochs do not go back."""
    assert not in_row(refs)
    with pytest.raises(InvalidRecordError, match="not contiguous"):
        decode(encode(ms.Replicate(2, 7, 0, 0, refs)), [b"x"] * len(refs))


@pytest.mark.parametrize(
    "fields",
    [["Nothing", 1], ["Fetch", -1, 0, 0, 0], ["Fetch", 1, 0, -5, 0], ["Fetch", 1], ["Acked"], 7],
)
def test_what_is_not_a_message_is_rejected(fields):
    """Unknown kinds, missing fields and negative numbers are the sender's error."""
    with pytest.raises(InvalidRecordError, match="not a replication message"):
        decode(msgspec.msgpack.encode(fields), [])


@given(st.binary(max_size=200))
@example(b"\x91\xa3\x00\x00\x80")  # a name that is not UTF-8
def test_any_bytes_are_a_message_or_an_error(data):
    """No bytes from a peer raise anything but the typed error."""
    try:
        decode(data, [])
    except InvalidRecordError:
        return
    assert decode(data, []) == decode(encode(decode(data, [])), [])


def test_a_field_added_later_is_not_missed():
    """A broker without the newest field is understood: it has its default."""
    old = msgspec.msgpack.encode(["Fetch", 3, 7, 100, 2])
    assert decode(old, []) == ms.Fetch(3, 7, 100, 2, "")
