"""Any bytes as ticket, action body, put command or ack: a value or a typed error, never a crash."""

import contextlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.api import admin
from strandline.api.put import BatchTag, PutAck, PutRequest
from strandline.api.status import (
    ErrorBody,
    all_error_classes,
    from_body,
    from_flight,
    to_body,
    to_flight,
)
from strandline.api.tickets import ReadRequest, decode_ticket
from strandline.api.wire import decode, encode
from strandline.config import StreamConfig
from strandline.errors import InvalidRequestError, StrandlineError

KINDS = [
    ReadRequest,
    PutRequest,
    BatchTag,
    PutAck,
    ErrorBody,
    StreamConfig,
    admin.StreamName,
    admin.DeleteRecords,
    admin.OffsetsRequest,
    admin.WaitRequest,
    admin.StreamInfo,
    admin.ServerInfo,
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["earliest", "latest", "value", "a.>", "s"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers().map(str), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from([*ReadRequest.__struct_fields__, "name", "beyond", "sequence", "code"])
ALMOST = st.dictionaries(FIELDS, JSON, max_size=8).map(lambda found: {"stream": "s", **found})


@given(data=st.binary(max_size=300))
@example(data=b'{"stream":"s","starts":{"9999999999999999999999":1}}')
@example(data=b'{"stream":"\\ud800"}')
@example(data=b"[" * 50_000)
@example(data=b'{"stream":"s","keys":["' + b"=" * 10_000 + b'"]}')
def test_any_bytes_are_a_request_or_rejected(data):
    """Whatever message they were taken for."""
    for kind in KINDS:
        with contextlib.suppress(InvalidRequestError):
            assert isinstance(decode(data, kind, what="message"), kind)


@given(values=ALMOST)
def test_almost_a_ticket_is_a_ticket_or_rejected(values):
    """Right fields with wrong values, and values at the edges of their types."""
    with contextlib.suppress(InvalidRequestError):
        request = decode_ticket(msgspec.json.encode(values))
        assert decode_ticket(encode(request)) == request


@given(data=st.binary(max_size=60), at=st.integers(0, 200))
def test_a_corrupt_ticket_is_a_ticket_or_rejected(data, at):
    """Bytes overwritten anywhere in a full ticket."""
    whole = encode(
        ReadRequest(stream="s", starts={0: 5, 1: 7}, stop="latest", keys=[b"k"], subject="a.*")
    )
    corrupt = whole[:at] + data + whole[at + len(data) :]
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(decode_ticket(corrupt), ReadRequest)


@given(code=st.text(max_size=20), message=st.text(max_size=3000), retriable=st.booleans())
def test_any_error_body_becomes_an_error(code, message, retriable):
    """A broker of any version can tell a client of any version that something failed."""
    error = from_body(ErrorBody(code=code, message=message, retriable=retriable))
    assert isinstance(error, StrandlineError)
    assert len(encode(to_body(error))) < 4096


@given(text=st.text(st.characters(), max_size=2000), which=st.integers(0))
def test_any_message_crosses_the_wire(text, which):
    """Whatever the class and the script, code and beginning of the message arrive."""
    classes = all_error_classes()
    sent = classes[which % len(classes)](text)
    arrived = from_flight(to_flight(sent), address="h:1")
    assert type(arrived) is type(sent)
    if len(text.encode("utf-8", "replace")) < 800:
        assert arrived.message == sent.message.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_message_is_taken_beyond_the_cap(kind):
    """Length is checked before anything is parsed."""
    with pytest.raises(InvalidRequestError, match="at most"):
        decode(b"1" * (5 << 20), kind, what="message")
