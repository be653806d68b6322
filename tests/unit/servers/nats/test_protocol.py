"""The sans-io protocol: bytes to events and back."""

import pytest

from strandline.servers.nats.protocol import (
    LINE_BYTES_MAX,
    LINE_TOO_LONG,
    PARSER_ERROR,
    PAYLOAD_TOO_LARGE,
    SERVER_LINE_BYTES_MAX,
    UNKNOWN_OPERATION,
    Connect,
    Failure,
    Info,
    Okay,
    Parser,
    Ping,
    Pong,
    Subscribe,
    Unsubscribe,
    Violation,
    encode_failure,
    encode_message,
    encode_message_with_headers,
    encode_publish,
    encode_publish_with_headers,
    encode_subscribe,
    encode_unsubscribe,
)


def from_client(data, payload_max=1000):
    return Parser(payload_max, from_client=True).feed(data)


def from_server(data, payload_max=1000):
    return Parser(payload_max, from_client=False).feed(data)


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"PUB a 2\r\nhi\r\n", (b"a", b"", None, None, b"hi")),
        (b"PUB a r.1 2\r\nhi\r\n", (b"a", b"", b"r.1", None, b"hi")),
        (b"PUB a 0\r\n\r\n", (b"a", b"", None, None, b"")),
        (b"PUB  a\t r   2\r\nhi\r\n", (b"a", b"", b"r", None, b"hi")),
        (b"pub a 2\r\nhi\r\n", (b"a", b"", None, None, b"hi")),
        (b"PUB\ta\t2\r\nhi\r\n", (b"a", b"", None, None, b"hi")),
        (b"PUB a 4\r\n\r\n\r\n\r\n", (b"a", b"", None, None, b"\r\n\r\n")),
        (b"HPUB a 3 5\r\nHHHhi\r\n", (b"a", b"", None, b"HHH", b"hi")),
        (b"HPUB a r 3 3\r\nHHH\r\n", (b"a", b"", b"r", b"HHH", b"")),
        (b"hpub a r 0 2\r\nhi\r\n", (b"a", b"", b"r", None, b"hi")),
        (b"PING\r\n", Ping()),
        (b"ping\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b"SUB a 1\r\n", Subscribe(b"a", b"1")),
        (b"SUB a q 1\r\n", Subscribe(b"a", b"1", b"q")),
        (b"UNSUB 1\r\n", Unsubscribe(b"1")),
        (b"UNSUB 1 5\r\n", Unsubscribe(b"1", 5)),
        (b'CONNECT {"a": 1}\r\n', Connect(b'{"a": 1}')),
        (b"CONNECT\r\n", Connect(b"")),
    ],
)
def test_client_operations(data, event):
    """Each operation of a client becomes its event."""
    assert from_client(data) == [event]


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"MSG a 1 2\r\nhi\r\n", (b"a", b"1", None, None, b"hi")),
        (b"MSG a 1 r 2\r\nhi\r\n", (b"a", b"1", b"r", None, b"hi")),
        (b"HMSG a 1 3 5\r\nHHHhi\r\n", (b"a", b"1", None, b"HHH", b"hi")),
        (b"HMSG a 1 r 3 5\r\nHHHhi\r\n", (b"a", b"1", b"r", b"HHH", b"hi")),
        (b'INFO {"b": 2} \r\n', Info(b'{"b": 2}')),
        (b"PING\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b"+OK\r\n", Okay()),
        (b"-ERR 'Stale Connection'\r\n", Failure("Stale Connection")),
        (b"-ERR\r\n", Failure("")),
    ],
)
def test_server_operations(data, event):
    """Each operation of a server becomes its event."""
    assert from_server(data) == [event]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HELLO\r\n", UNKNOWN_OPERATION),
        (b"\r\n", UNKNOWN_OPERATION),
        (b"\x00\xff\r\n", UNKNOWN_OPERATION),
        (b"MSG a 1 2\r\nhi\r\n", UNKNOWN_OPERATION),
        (b"INFO {}\r\n", UNKNOWN_OPERATION),
        (b"+OK\r\n", UNKNOWN_OPERATION),
        (b"PUB\r\n", PARSER_ERROR),
        (b"PUB \r\n", PARSER_ERROR),
        (b"PUB 2\r\nhi\r\n", PARSER_ERROR),
        (b"PUB a r x 2\r\nhi\r\n", PARSER_ERROR),
        (b"PUB a -1\r\n", PARSER_ERROR),
        (b"PUB a +2\r\nhi\r\n", PARSER_ERROR),
        (b"PUB a 1_0\r\n", PARSER_ERROR),
        (b"PUB a two\r\n", PARSER_ERROR),
        (b"PUB a 1\r\nhi\r\n", PARSER_ERROR),
        (b"PUB a 1001\r\n", PAYLOAD_TOO_LARGE),
        (b"PUB a " + b"9" * 4000 + b"\r\n", PAYLOAD_TOO_LARGE),
        (b"HPUB a 1 1001\r\n", PAYLOAD_TOO_LARGE),
        (b"HPUB a " + b"9" * 4000 + b" 5\r\n", PARSER_ERROR),
        (b"HPUB a 6 5\r\nHHHhi\r\n", PARSER_ERROR),
        (b"HPUB a x 5\r\nHHHhi\r\n", PARSER_ERROR),
        (b"HPUB a 5\r\nHHHhi\r\n", PARSER_ERROR),
        (b"SUB a\r\n", PARSER_ERROR),
        (b"SUB a b c d\r\n", PARSER_ERROR),
        (b"UNSUB\r\n", PARSER_ERROR),
        (b"UNSUB 1 x\r\n", PARSER_ERROR),
        (b"PING" + b" " * LINE_BYTES_MAX + b"\r\n", LINE_TOO_LONG),
        (b"x" * (LINE_BYTES_MAX + 2), LINE_TOO_LONG),
    ],
)
def test_broken_protocol_is_a_violation(data, reason):
    """A protocol error ends in a violation with the reason."""
    assert from_client(data) == [Violation(reason)]


def test_numbers_too_long_for_python_are_violations():
    """A size of thousands of digits is rejected without conversion."""
    assert from_server(b"MSG a 1 " + b"9" * 60_000 + b"\r\n") == [Violation(PAYLOAD_TOO_LARGE)]
    assert from_client(b"UNSUB 1 " + b"9" * 4000 + b"\r\n")[0].deliveries_max > 1 << 60


def test_a_violation_keeps_what_came_before_and_nothing_after():
    """Earlier events are kept; later bytes are ignored."""
    parser = Parser(1000, from_client=True)
    data = b"PUB a 1\r\nx\r\nWHAT\r\nPING\r\n"
    assert parser.feed(data) == [(b"a", b"", None, None, b"x"), Violation(UNKNOWN_OPERATION)]
    assert parser.feed(b"PING\r\n") == []
    assert parser.buffered_bytes == 0


@pytest.mark.parametrize("side", [True, False])
def test_a_line_may_be_as_long_as_the_limit(side):
    """A line of exactly the limit is accepted; one byte more is rejected."""
    limit = LINE_BYTES_MAX if side else SERVER_LINE_BYTES_MAX
    parser = Parser(1000, from_client=side)
    assert parser.feed(b"PING".ljust(limit)) == []
    assert parser.buffered_bytes == limit
    assert parser.feed(b"\r\n") == [Ping()]
    assert parser.feed(b"x" * (limit + 2)) == [Violation(LINE_TOO_LONG)]


def test_a_payload_may_be_as_large_as_the_limit():
    """A payload of exactly the limit is taken."""
    assert from_client(b"PUB a 1000\r\n%b\r\n" % bytes(1000)) == [
        (b"a", b"", None, None, bytes(1000))
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_any_chunks_give_the_same_events(size):
    """Cutting the stream anywhere changes nothing."""
    data = (
        b"CONNECT {}\r\nSUB _INBOX.x.* 1\r\nPUB a 2\r\nhi\r\nHPUB a r 3 5\r\nHHHhi\r\n"
        b"PING\r\nPUB big %d\r\n%b\r\nPONG\r\nUNSUB 1\r\n" % (300, b"\r\n" * 150)
    )
    parser = Parser(1000, from_client=True)
    events = [e for at in range(0, len(data), size) for e in parser.feed(data[at : at + size])]
    assert events == from_client(data)
    assert len(events) == 8
    assert parser.buffered_bytes == 0


def test_a_payload_without_its_end_is_a_violation_whatever_the_chunks():
    """A wrong end is noticed when the payload came in pieces, too."""
    parser = Parser(1000, from_client=True)
    assert parser.feed(b"PUB a 3\r\nab") == []
    assert parser.buffered_bytes == 2
    assert parser.feed(b"cde\r\nPING\r\n") == [Violation(PARSER_ERROR)]


def test_what_is_written_is_read():
    """Encoders and parser agree."""
    assert from_client(encode_publish(b"a", b"x")) == [(b"a", b"", None, None, b"x")]
    assert from_client(encode_publish(b"a", b"x", reply=b"r")) == [(b"a", b"", b"r", None, b"x")]
    assert from_client(encode_publish_with_headers(b"a", b"x", block=b"H", reply=b"r")) == [
        (b"a", b"", b"r", b"H", b"x")
    ]
    assert from_client(encode_publish_with_headers(b"a", b"x", block=b"H")) == [
        (b"a", b"", None, b"H", b"x")
    ]
    assert from_server(encode_message(b"a", b"1", b"x")) == [(b"a", b"1", None, None, b"x")]
    assert from_server(encode_message(b"a", b"1", b"x", reply=b"r")) == [
        (b"a", b"1", b"r", None, b"x")
    ]
    assert from_server(encode_message_with_headers(b"a", b"1", b"x", block=b"H")) == [
        (b"a", b"1", None, b"H", b"x")
    ]
    assert from_server(encode_message_with_headers(b"a", b"1", b"x", block=b"H", reply=b"r")) == [
        (b"a", b"1", b"r", b"H", b"x")
    ]
    assert from_client(encode_subscribe(b"a", b"1")) == [Subscribe(b"a", b"1")]
    assert from_client(encode_subscribe(b"a", b"1", queue=b"q")) == [Subscribe(b"a", b"1", b"q")]
    assert from_client(encode_unsubscribe(b"1")) == [Unsubscribe(b"1")]
    assert from_server(encode_failure("why")) == [Failure("why")]
