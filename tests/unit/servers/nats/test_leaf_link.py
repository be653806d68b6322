"""The leaf connection: interest in inboxes, deliveries, and arbitrary bytes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.leaf_link import LeafClient, LeafLink


class Transport(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def write(self, data):
        self.written += data

    def abort(self):
        self.is_aborted = True

    def set_write_buffer_limits(self, high=None, low=None):
        pass


@pytest.fixture
async def leaf():
    """A client with an open connection: the client, the link, its transport."""
    client = LeafClient("strandline-1", lambda: ("127.0.0.1", 1))
    link = LeafLink(client, None)
    transport = Transport()
    link.connection_made(transport)
    return client, link, transport


async def test_the_greeting_is_answered_once(leaf):
    """With CONNECT, which must not look like a client's, and a ping; then it is ready."""
    _, link, transport = leaf
    link.data_received(b'INFO {"nonce":"x"}\r\n')
    assert transport.written.startswith(b"CONNECT {")
    assert transport.written.endswith(b"PING\r\n")
    assert b"lang" not in transport.written
    link.data_received(b'INFO {"nonce":"y"}\r\n')
    assert transport.written.count(b"CONNECT") == 1
    link.data_received(b"PONG\r\n")
    assert link.ready.done()


async def test_interest_comes_and_goes(leaf):
    """In inboxes, and in the patterns that clients subscribe to."""
    client, link, _ = leaf
    gone = []
    client.on_interest_gone = lambda: gone.append(1)
    link.data_received(b"LS+ _INBOX.a.*\r\nLS+ _INBOX.b\r\nLS+ _INBOX.c.>\r\nLS+ q.x group 1\r\n")
    for inbox in (b"_INBOX.a.7", b"_INBOX.b", b"_INBOX.c.d.e", b"q.x"):
        assert client.has_interest(inbox)
    for inbox in (b"_INBOX.a.7.8", b"_INBOX.bb", b"_INBOX.c", b"other"):
        assert not client.has_interest(inbox)
        assert not client.has_lost(inbox), "it may come"
    link.data_received(b"LS- _INBOX.b\r\nLS- _INBOX.a.*\r\n")
    assert client.has_lost(b"_INBOX.b")
    assert client.has_lost(b"_INBOX.a.7")
    assert len(gone) == 2
    link.data_received(b"LS+ _INBOX.b\r\n")
    assert not client.has_lost(b"_INBOX.b")


async def test_messages_have_the_records_own_subject(leaf):
    """Behind the reply subject, where nats-server looks for it; headers are counted."""
    client, link, transport = leaf
    client.deliver(b"_INBOX.x", b"lost", block=b"")
    client.flush()
    assert transport.written == b"", "without a connection it is lost"
    client._link = link
    client.deliver(b"_INBOX.x", b"hello", block=b"", ack=b"$JS.ACK.S.c", subject=b"a.b")
    client.deliver(b"_INBOX.x", b"hi", block=b"NATS/1.0\r\n\r\n", ack=b"$JS.ACK.S.c", subject=b"a")
    client.deliver(b"_INBOX.x", b"", block=b"NATS/1.0 404\r\n\r\n")
    assert transport.written == b""
    client.flush()
    assert transport.written == (
        b"LMSG _INBOX.x $JS.ACK.S.c@a.b 5\r\nhello\r\n"
        b"HMSG _INBOX.x $JS.ACK.S.c@a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        b"HMSG _INBOX.x 16 16\r\nNATS/1.0 404\r\n\r\n\r\n"
    )


async def test_messages_that_nobody_asked_for_are_skipped(leaf):
    """Whatever they contain, and however they arrive."""
    client, link, transport = leaf
    data = b"LMSG a 7\r\nLS+ x\r\n\r\nLS+ y\r\nPING\r\n"
    for byte in data:
        link.data_received(bytes((byte,)))
    assert not client.has_interest(b"x")
    assert client.has_interest(b"y")
    assert transport.written == b"PONG\r\n"


async def test_errors_close_the_connection(leaf):
    """The reason is kept, and waiters are notified."""
    _, link, transport = leaf
    link.data_received(b"-ERR 'Authorization Violation'\r\n")
    assert transport.is_aborted
    link.connection_lost(None)
    assert "Authorization" in link.failure
    assert link.ready.exception() is not None


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_cost_the_connection_at_most(chunks):
    """nats-server is trusted, and still no bytes raise."""

    async def feed():
        client = LeafClient("x", lambda: ("127.0.0.1", 1))
        link = LeafLink(client, None)
        link.connection_made(Transport())
        for chunk in chunks:
            for line in (chunk, b"\r\n"):
                link.data_received(line)
        link.connection_lost(None)

    asyncio.run(feed())
