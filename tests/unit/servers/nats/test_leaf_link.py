"""The leaf connection: interest in inboxes, deliveries, and arbitrary bytes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidConfigError
from strandline.servers.nats.leaf_link import LeafClient, LeafLink
from strandline.servers.nats.server_link import parse_leaf_url


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
    client._link = link
    changes = []
    client.notify(interest_changed=changes.append)
    link.data_received(b"LS+ _INBOX.a.*\r\nLS+ _INBOX.b\r\nLS+ _INBOX.c.>\r\nLS+ q.x group 1\r\n")
    for inbox in (b"_INBOX.a.7", b"_INBOX.b", b"_INBOX.c.d.e", b"q.x"):
        assert client.has_interest(inbox)
    for inbox in (b"_INBOX.a.7.8", b"_INBOX.bb", b"_INBOX.c", b"other"):
        assert not client.has_interest(inbox)
        assert not client.has_lost(inbox), "it may come"
    link.data_received(b"LS- _INBOX.b\r\nLS- _INBOX.a.*\r\n")
    assert client.has_lost(b"_INBOX.b")
    assert client.has_lost(b"_INBOX.a.7")
    first, second = changes
    assert first == {b"_INBOX.a.*", b"_INBOX.b", b"_INBOX.c.>", b"q.x"}, "once for all together"
    assert second == {b"_INBOX.a.*", b"_INBOX.b"}, "which they are"
    link.data_received(b"LS+ _INBOX.b\r\n")
    assert not client.has_lost(b"_INBOX.b")
    link.data_received(b"PING\r\n")
    assert len(changes) == 3
    link.data_received(b"LS- _INBOX.b\r\nLS+ >\r\n")
    assert client.has_lost(b"_INBOX.b"), "who subscribes to everything does not wait for it"


async def test_settling_waits_until_the_server_has_what_was_sent(leaf):
    """What is queued is sent before the ping; a lost connection ends the wait, too."""
    client, link, transport = leaf
    client._link = link
    link.data_received(b'INFO {"nonce":"x"}\r\nPONG\r\n')
    for end in (lambda: link.data_received(b"PONG\r\n"), lambda: link.connection_lost(None)):
        client.deliver(b"_INBOX.a", b"x", block=b"")
        settling = asyncio.create_task(client.settle())
        await asyncio.sleep(0)
        assert transport.written.endswith(b"LMSG _INBOX.a 1\r\nx\r\nPING\r\n")
        assert not settling.done()
        end()
        await settling


async def test_interest_is_kept_by_queue_group(leaf):
    """A subject has receivers until the last group and the last plain subscription are gone."""
    client, link, _ = leaf
    link.data_received(b"LS+ p.x\r\nLS+ p.x g 2\r\nLS+ p.* h 1\r\n")
    assert client.is_subscribed(b"p.x")
    assert client.is_subscribed(b"p.x", b"g")
    assert not client.is_subscribed(b"p.x", b"h"), "a pattern is not the subject itself"
    link.data_received(b"LS+ p.x g 1\r\nLS- p.x\r\n")
    assert not client.is_subscribed(b"p.x")
    assert client.is_subscribed(b"p.x", b"g")
    assert not client.has_lost(b"p.x")
    link.data_received(b"LS- p.x g\r\nLS- p.* h\r\nLS- nothing\r\n")
    assert not client.has_interest(b"p.x")
    assert client.has_lost(b"p.x")


async def test_changes_of_interest_in_a_handshake_are_not_reported(leaf):
    """They are incomplete: whoever acted on them would drop pulls whose inboxes follow."""
    client, link, _ = leaf
    changes = []
    client.notify(interest_changed=changes.append)
    link.data_received(b"LS+ a\r\n")
    assert not client.knows_interest
    assert changes == []


async def test_deliveries_go_on_when_the_server_has_read(leaf):
    """Consumers are told, because nothing else may happen to wake them."""
    client, link, _ = leaf
    client._link, told = link, []
    client.notify(writable=lambda: told.append(1))
    link.resume_writing()
    link.pause_writing()
    assert not client.is_open
    link.resume_writing()
    assert client.is_open
    assert told == [1, 1]


async def test_messages_have_the_records_own_subject(leaf):
    """Behind the reply subject, where nats-server looks for it; headers are counted."""
    client, link, transport = leaf
    client.deliver(b"_INBOX.x", b"lost", block=b"")
    client.flush()
    assert transport.written == b"", "without a connection it is lost"
    client._link = link
    client.deliver(b"_INBOX.x", b"hello", block=b"", reply=b"$JS.ACK.S.c@a.b")
    client.deliver(b"_INBOX.x", b"hi", block=b"NATS/1.0\r\n\r\n", reply=b"$JS.ACK.S.c@a")
    client.deliver(b"p", b"to one", block=b"", reply=b"$JS.ACK.S.c@a", queue=b"g")
    client.deliver(b"p", b"", block=b"NATS/1.0 100\r\n\r\n", queue=b"g")
    client.deliver(b"_INBOX.x", b"", block=b"NATS/1.0 404\r\n\r\n")
    assert transport.written == b""
    client.flush()
    assert transport.written == (
        b"LMSG _INBOX.x $JS.ACK.S.c@a.b 5\r\nhello\r\n"
        b"HMSG _INBOX.x $JS.ACK.S.c@a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        b"LMSG p + $JS.ACK.S.c@a g 6\r\nto one\r\n"
        b"HMSG p | g 16 16\r\nNATS/1.0 100\r\n\r\n\r\n"
        b"HMSG _INBOX.x 16 16\r\nNATS/1.0 404\r\n\r\n\r\n"
    )


async def test_one_member_of_each_group_receives_what_names_no_group(leaf):
    """nats-server gives a leaf's message to the groups that the leaf names, and to no other."""
    client, link, transport = leaf
    client._link = link
    link.data_received(b"LS+ p\r\nLS+ p b 1\r\nLS+ p a 1\r\nLS+ q.* c 1\r\nLS+ q.x\r\n")
    client.deliver(b"p", b"1", block=b"")
    client.deliver(b"p", b"2", block=b"", reply=b"r")
    client.deliver(b"q.x", b"3", block=b"")
    client.deliver(b"other", b"4", block=b"")
    link.data_received(b"LS- p a\r\nLS- q.* c\r\n")
    client.deliver(b"p", b"5", block=b"")
    client.deliver(b"q.x", b"6", block=b"")
    link.data_received(b"LS- p b\r\n")
    client.deliver(b"p", b"7", block=b"")
    client.flush()
    assert transport.written == (
        b"LMSG p | a b 1\r\n1\r\nLMSG p + r a b 1\r\n2\r\nLMSG q.x | c 1\r\n3\r\n"
        b"LMSG other 1\r\n4\r\nLMSG p | b 1\r\n5\r\nLMSG q.x 1\r\n6\r\nLMSG p 1\r\n7\r\n"
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


async def test_where_access_is_checked_it_sends_to_private_inboxes_only():
    """A consumer that delivers elsewhere, made before access control, has no receivers."""
    client = LeafClient("strandline-1", lambda: ("127.0.0.1", 1), is_restricted=True)
    for subject in (b"_INBOX.a", b"_INBOX_PRIVATE.shop.a", b"news"):
        client.interest_came(subject)
        assert client.is_subscribed(subject) is (subject == b"_INBOX_PRIVATE.shop.a")


async def test_a_server_with_tls_for_leaf_nodes_is_rejected():
    """With a reason; nothing is sent in clear text."""
    login = {"user": "app", "pass": "secret"}
    client = LeafClient("strandline-1", lambda: ("127.0.0.1", 1), login=lambda _: login)
    assert client.may_send(b"_INBOX.a"), "a user's own server decides itself"
    transport, link = Transport(), LeafLink(client, lambda _: login)
    link.connection_made(transport)
    link.data_received(b'INFO {"tls_required":true,"nonce":"x"}\r\n')
    assert "TLS" in link.failure
    assert transport.written == b""
    link.connection_lost(None)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("here", ("here", 7422, {}, False)),
        ("here:1", ("here", 1, {}, False)),
        ("nats-leaf://a:b%40@here:1", ("here", 1, {"user": "a", "pass": "b@"}, False)),
    ],
)
def test_addresses_of_leaf_listeners(url, found):
    """With a port and a user, or without."""
    assert parse_leaf_url(url) == found


@pytest.mark.parametrize("url", ["tls://here:1", "nats://here", "nats-leaf://", "here:port"])
def test_other_addresses_are_rejected(url):
    """The error names the setting."""
    with pytest.raises(InvalidConfigError, match=r"nats\.leafnodes"):
        parse_leaf_url(url)
