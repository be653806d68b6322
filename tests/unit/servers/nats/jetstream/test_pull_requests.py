"""The bodies of pulls: what a client asks for, and any bytes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.consumers.pulls import Pull
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.integers import INT64_MAX
from strandline.servers.nats.jetstream.pull_requests import parse_pull

CONFIG = ConsumerConfig(
    name="c",
    deliver_policy="all",
    ack_policy="explicit",
    max_deliver=-1,
    replay_policy="instant",
    num_replicas=0,
)
FIELDS = ("batch", "expires", "max_bytes", "idle_heartbeat")


def parsed(payload, **settings):
    config = msgspec.structs.replace(CONFIG, **settings)
    return parse_pull(config, b"inbox", payload, now_ms=0.5)


def test_a_body_says_how_many_and_for_how_long():
    """As JSON, as a number, or not at all."""
    pull = parsed(b'{"batch":5,"expires":2000000,"max_bytes":99,"idle_heartbeat":1000000}')
    assert (pull.left, pull.expires_ms, pull.bytes_left, pull.heartbeat_ms) == (5, 2.5, 99, 1)
    assert (parsed(b"7").left, parsed(b"").left) == (7, 1)
    assert parsed(b"").expires_ms is None


def test_the_settings_limit_it():
    """The status says which limit it is."""
    assert "MaxRequestBatch of 4" in parsed(b"5", max_batch=4)
    assert "MaxRequestExpires" in parsed(b'{"expires":2}', max_expires=1)
    assert "MaxRequestMaxBytes of 1" in parsed(b'{"max_bytes":2}', max_bytes=1)
    assert "push based" in parsed(b"", deliver_subject="x")


@pytest.mark.parametrize("field", FIELDS)
def test_a_number_beyond_int64_is_a_bad_request(field):
    """As at nats-server; no number reaches a place that it does not fit."""
    for number in (INT64_MAX + 1, 1 << 64, 10**400, -INT64_MAX - 2, -(10**400)):
        assert parsed(b'{"%b":%d}' % (field.encode(), number)).startswith("400 Bad Request"), number


numbers = st.integers() | st.integers(1, 500).map(lambda digits: 10**digits)


@given(st.binary(max_size=64), st.dictionaries(st.sampled_from(FIELDS), numbers))
def test_any_bytes_are_a_pull_or_a_status(data, body):
    """And never an error."""
    text = ",".join(f'"{name}":{value}' for name, value in body.items())
    for payload in (data, b"{" + data, b"{%b}" % text.encode()):
        found = parsed(payload)
        if isinstance(found, Pull):
            assert 0 <= found.bytes_left <= INT64_MAX
            assert found.expires_ms is None or found.expires_ms < 1 << 62
        else:
            assert found[:3] in ("400", "409")
