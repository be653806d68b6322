"""The payloads of acknowledgements: every form, and any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.jetstream.ack_bodies import AckBody, parse_ack_body


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"", AckBody("ack")),
        (b"+ACK", AckBody("ack")),
        (b"+OK", AckBody("ack")),
        (b"-NAK", AckBody("nak")),
        (b'-NAK {"delay":1500000000}', AckBody("nak", 1500)),
        (b"-NAK 5s", AckBody("nak", 5000)),
        (b"-NAK 20ms", AckBody("nak", 20)),
        (b"-NAK soon", AckBody("nak")),
        (b'-NAK {"delay":-1}', AckBody("nak")),
        (b"-NAK {", AckBody("nak")),
        (b'-NAK {"delay":9223372036854775807}', AckBody("nak", 9_223_372_036_855)),
        (b'-NAK {"delay":9223372036854775808}', AckBody("nak")),
        (b'-NAK {"delay":' + b"9" * 400 + b"}", AckBody("nak")),
        (b"+WPI", AckBody("progress")),
        (b"+TERM", AckBody("term")),
        (b"+TERM for a reason", AckBody("term")),
        (b"+NXT", AckBody("ack", pull=b"")),
        (b"+NXT 10", AckBody("ack", pull=b"10")),
        (b"junk", AckBody(None)),
        (b"+ACKNOWLEDGED", AckBody(None)),
    ],
)
def test_each_form(payload, body):
    """What became of the message, when it comes again, and what else is asked for."""
    assert parse_ack_body(payload) == body


numbers = st.integers() | st.integers(1, 500).map(lambda digits: 10**digits)


@given(st.binary(max_size=64), numbers)
def test_any_bytes_are_a_body(data, number):
    """And never an error; any number makes a delay that a time can be moved by."""
    delay = b'-NAK {"delay":%d}' % number
    for payload in (data, b"-NAK " + data, b"-NAK {" + data, b"+NXT " + data, delay):
        body = parse_ack_body(payload)
        assert body.delay_ms >= 0
        assert 0.5 + body.delay_ms < 1 << 62
