"""gRPC's framing: prefixes, limits, deadlines, texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.grpc.grpc_messages import Deframer, framed, timeout_s
from strandline.servers.grpc.status import GrpcStatus, RpcError, percent_encoded


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_messages_are_found_however_they_are_cut(messages, data):
    """Whatever pieces the bytes come in, the same messages come out."""
    stream = b"".join(map(framed, messages))
    deframer, found = Deframer(100), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        found += deframer.feed(stream[:count])
        stream = stream[count:]
    assert found == messages
    assert deframer.is_between


def test_a_length_over_the_limit_is_rejected_before_its_bytes_come():
    """Nothing is gathered for a message that will not be taken."""
    with pytest.raises(RpcError) as caught:
        Deframer(10).feed(b"\0\0\0\0\x0b")
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED


def test_compressed_messages_are_rejected():
    """The flag says so."""
    with pytest.raises(RpcError) as caught:
        Deframer(10).feed(b"\1\0\0\0\1x")
    assert caught.value.status is GrpcStatus.UNIMPLEMENTED


@given(st.binary(max_size=40))
def test_any_bytes_are_messages_or_an_error(data):
    """No other exception, whatever comes."""
    deframer = Deframer(16)
    try:
        found = deframer.feed(data)
    except RpcError:
        return
    assert all(len(message) <= 16 for message in found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1S", 1), (b"250m", 0.25), (b"2M", 120), (b"1H", 3600), (b"5u", 5e-6), (b"7n", 7e-9)],
)
def test_deadlines(text, seconds):
    """A number and a unit."""
    assert timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"1s", b"-1S", b"123456789S", b"1 S"])
def test_what_is_no_deadline(text):
    """An invalid deadline counts as none, and is no error."""
    assert timeout_s(text) is None


def test_texts_are_encoded():
    """Percent signs, control characters and what is not ASCII."""
    assert percent_encoded("a 100%\n\u00e9") == b"a 100%25%0A%C3%A9"
