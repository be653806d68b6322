"""Tickets: decoding of any bytes to a read, and every limit."""

import pytest

from strandline.api.tickets import KEYS_MAX, AtTimestamp, ReadRequest, decode_ticket
from strandline.api.wire import MESSAGE_BYTES_MAX, encode
from strandline.errors import InvalidRequestError, InvalidSubjectError, OffsetOutOfRangeError


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(stream="s"),
        ReadRequest(stream="s", partition=3, start=17, stop=99, columns=["value", "offset"]),
        ReadRequest(stream="s", start=AtTimestamp(timestamp_ns=5), follow=True, subject="a.*.>"),
        ReadRequest(stream="s", keys=[b"", b"\x00\xff"], records_max=0, skip_corrupt=True),
        ReadRequest(stream="s", starts={0: 5, 7: 0}, bytes_min=10, wait_ms_max=1000),
        ReadRequest(stream="s", stop="latest", timestamp_from_ns=-1, timestamp_to_ns=1 << 62),
    ],
)
def test_a_request_survives_its_ticket(request_):
    """The broker decodes the read that a client requested."""
    assert decode_ticket(encode(request_)) == request_


def test_a_plain_ticket_is_a_short_one():
    """Defaults are left out, so that tickets can be written by hand."""
    assert encode(ReadRequest(stream="s")) == b'{"stream":"s"}'


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "keys and values"),
        (b"{}", "stream"),
        (b'{"stream":""}', "stream"),
        (b'{"stream":"s","stat":1}', "stat"),
        (b'{"stream":"s","start":"soon"}', "start"),
        (b'{"stream":"s","start":1e400}', "start"),
        (b'{"stream":"s","start":99999999999999999999}', "start"),
        (b'{"stream":"s","partition":-1}', "partition"),
        (b'{"stream":"s","partition":10000}', "partition"),
        (b'{"stream":"s","bytes_min":100000000000}', "bytes_min"),
        (b'{"stream":"s","wait_ms_max":100000000000}', "wait_ms_max"),
        (b'{"stream":"s","batch_bytes":1}', "batch_bytes"),
        (b'{"stream":"s","starts":{}}', "starts"),
        (b'{"stream":"s","starts":{"0":1},"partition":0}', "not both"),
        (b'{"stream":"s","follow":true,"stop":{"timestamp_ns":1}}', "time"),
        (b'{"stream":"' + b"s" * 201 + b'"}', "stream"),
        (b'{"stream":"s","columns":' + b"[" * 100_000, "columns"),
    ],
)
def test_bytes_that_are_no_ticket_are_rejected_with_the_reason(data, part):
    """Any bytes give a typed error that names the field or the fault."""
    with pytest.raises(InvalidRequestError, match=part):
        decode_ticket(data)


def test_a_ticket_is_capped_before_it_is_parsed():
    """A huge ticket costs a comparison, not a parse."""
    with pytest.raises(InvalidRequestError, match=str(MESSAGE_BYTES_MAX)):
        decode_ticket(b" " * (MESSAGE_BYTES_MAX + 1))


def test_lists_are_capped():
    """A request cannot name more keys or columns than a limit."""
    with pytest.raises(InvalidRequestError, match="keys"):
        decode_ticket(encode(ReadRequest(stream="s", keys=[b"k"] * (KEYS_MAX + 1))))
    with pytest.raises(InvalidRequestError, match="columns"):
        decode_ticket(encode(ReadRequest(stream="s", columns=["value"] * 8)))


@pytest.mark.parametrize("bounds", [{"stop": -5}, {"starts": {0: -1}}])
def test_negative_offsets_do_not_exist(bounds):
    """Offsets begin at 0, and the error says so."""
    with pytest.raises(OffsetOutOfRangeError, match="begin at 0"):
        decode_ticket(encode(ReadRequest(stream="s", **bounds)))


def test_a_subject_filter_must_be_a_subject():
    """A filter may have wildcards, but in their places."""
    with pytest.raises(InvalidSubjectError, match="last token"):
        decode_ticket(encode(ReadRequest(stream="s", subject="a.>.b")))
