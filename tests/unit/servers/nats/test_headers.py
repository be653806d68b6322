"""The header block: order and repeats are kept, malformed ones rejected."""

import pytest

from strandline.errors import InvalidRecordError
from strandline.servers.nats.headers import (
    HEADERS_MAX,
    NAME_BYTES_MAX,
    NO_RESPONDERS,
    encode_headers,
    parse_headers,
)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"NATS/1.0\r\n\r\n", []),
        (b"NATS/1.0\r\na: b\r\n\r\n", [("a", b"b")]),
        (b"NATS/1.0\r\na:b\r\n\r\n", [("a", b"b")]),
        (b"NATS/1.0\r\na:  b c \t\r\n\r\n", [("a", b"b c")]),
        (b"NATS/1.0\r\na:\r\n\r\n", [("a", b"")]),
        (b"NATS/1.0\r\na: b:c\r\n\r\n", [("a", b"b:c")]),
        (b"NATS/1.0\r\nb: 1\r\na: 2\r\nb: 3\r\n\r\n", [("b", b"1"), ("a", b"2"), ("b", b"3")]),
        (b"NATS/1.0\r\n\xc3\xa4: \xff\x00\r\n\r\n", [("ä", b"\xff\x00")]),
        (NO_RESPONDERS, []),
        (b"NATS/1.0 100 Idle\r\na: b\r\n\r\n", [("a", b"b")]),
    ],
)
def test_parsing(block, expected):
    """Pairs come in order, with repeats, values without surrounding blanks."""
    assert parse_headers(block) == expected


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r\n\r\n",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.1\r\n\r\n",
        b"NATS/1.00\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"NATS/1.0\r\na b: c\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: value\r\n\r\n",
        b"NATS/1.0\r\na: b\r\n",
        b"NATS/1.0\r\n\xff: b\r\n\r\n",
        b"NATS/1.0\r\n" + b"a" * (NAME_BYTES_MAX + 1) + b": b\r\n\r\n",
        b"NATS/1.0\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n",
    ],
)
def test_malformed_blocks_are_rejected(block):
    """A block that breaks the rules is the sender's typed error."""
    with pytest.raises(InvalidRecordError):
        parse_headers(block)


def test_the_most_headers_allowed():
    """Exactly as many headers as the limit says are taken."""
    block = b"NATS/1.0\r\n" + b"a: b\r\n" * HEADERS_MAX + b"\r\n"
    assert len(parse_headers(block)) == HEADERS_MAX


def test_encoding_round_trips():
    """Parsing returns the encoded headers."""
    headers = [("b", b"1"), ("a", b""), ("b", b"x: y")]
    assert parse_headers(encode_headers(headers)) == headers


@pytest.mark.parametrize(
    "header",
    [("", b""), ("a b", b""), ("a:", b""), ("a\r\nb", b""), ("a", b"x\r\ny"), ("a", b" x")],
)
def test_what_a_block_cannot_carry_is_rejected(header):
    """Encoding never writes a block that would read back differently."""
    with pytest.raises(InvalidRecordError):
        encode_headers([header])
