"""The way through nats-server, against a server scripted by hand."""

import asyncio
import json

import pytest

from strandline.errors import InvalidConfigError, NotLeaderError, UnavailableError
from strandline.record.envelope import EnvelopeMessage, decode_ack, encode_message
from strandline.servers.nats import client as subscriber_module
from strandline.servers.nats import server_link
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.client import NatsClient
from strandline.servers.nats.headers import encode_headers
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.server_link import parse_server_url

INFO = b'INFO {"max_payload":1048576,"headers":true,"server_name":"scripted"}\r\n'


class ScriptedServer:
    """Accepts links and keeps their lines."""

    def __init__(self, info=INFO):
        self.info = info
        self.links = asyncio.Queue()
        self.answer_pings = True

    async def start(self, port=0):
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def _accept(self, reader, writer):
        writer.write(self.info)
        link = ScriptedLink(self, reader, writer)
        await self.links.put(link)
        await link.run()

    async def next_link(self):
        async with asyncio.timeout(60):
            link = await self.links.get()
            await link.until(lambda: link.pings)
            return link

    async def stop(self):
        self.server.close()


class ScriptedLink:
    """One connection: collects lines, answers pings."""

    def __init__(self, server, reader, writer):
        self.server = server
        self.reader = reader
        self.writer = writer
        self.lines = []
        self.published = []
        self.replies = []
        self.pings = 0
        self.changed = asyncio.Condition()

    async def run(self):
        while line := (await self.reader.readline()).rstrip(b"\r\n"):
            if line == b"PING":
                self.pings += 1
                if self.server.answer_pings:
                    self.writer.write(b"PONG\r\n")
            elif line.startswith(b"PUB "):
                words = line.split()
                body = await self.reader.readexactly(int(words[-1]) + 2)
                self.published.append((words[1], body[:-2]))
                self.replies.append(words[2] if len(words) == 4 else None)
            else:
                self.lines.append(line)
            async with self.changed:
                self.changed.notify_all()
        self.writer.close()

    async def until(self, condition):
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)

    def subscriptions(self):
        """Subject → (queue, sid) of the SUBs not unsubscribed since."""
        found = {}
        for line in self.lines:
            words = line.split()
            if words[0] == b"SUB":
                found[words[-1]] = (words[1], words[2] if len(words) == 4 else b"")
            elif words[0] == b"UNSUB":
                found.pop(words[1])
        return {subject: (queue, sid) for sid, (subject, queue) in found.items()}


def bindings(broker, *names):
    """Return bindings of streams, or of all, that this broker receives."""
    wanted = names or [stream.config.name for stream in broker.streams()]
    return {n: [each for each in broker.routes.bindings(n) if each.is_ours] for n in wanted}


@pytest.fixture
async def server():
    """A scripted server."""
    started = await ScriptedServer().start()
    yield started
    await started.stop()


@pytest.fixture
async def subscribe(broker, server):
    """A function that starts a subscriber on the scripted server."""
    started = []

    async def start(urls=None, **settings):
        ingest = MessageIngest(
            broker.clock, broker.routes, broker.admission, backpressure=Backpressure(1 << 20)
        )
        broker.on_answered(ingest.send_answers)
        each = NatsClient(broker, ingest=ingest, **settings)
        started.append(each)
        await each.start(urls or [f"127.0.0.1:{server.port}"], bindings(broker))
        return each

    yield start
    broker.thaw()
    for each in started:
        await each.stop()


async def test_handshake(broker, server, subscribe):
    """The link introduces itself, without echo, and subscribes before it counts as connected."""
    broker.add("A", "a.*", queue_group="g")
    broker.add("B", "b", partitions=2)
    await subscribe()
    link = await server.next_link()
    connect = json.loads(link.lines[0].removeprefix(b"CONNECT "))
    assert connect["echo"] is False
    assert connect["headers"] is True
    assert connect["verbose"] is False
    assert link.subscriptions() == {
        b"a.*": (b"g", b"1"),
        b"b": (b"", b"2"),
        b"b.1": (b"", b"3"),
    }
    assert broker.telemetry.nats_connections == 1


async def test_messages_are_stored_and_acked(broker, server, subscribe):
    """A message reaches the partition of its sid, and its PubAck the reply subject."""
    partitions = broker.add("B", "b", partitions=2)
    await subscribe()
    link = await server.next_link()
    link.writer.write(b"MSG b 1 r.1 2\r\nhi\r\nMSG b.1 2 r.2 2\r\nho\r\nMSG b 99 r.3 0\r\n\r\n")
    await link.until(lambda: len(link.published) == 2)
    assert link.published == [
        (b"r.1", b'{"stream":"B","seq":1}'),
        (b"r.2", b'{"stream":"B","seq":1,"partition":1}'),
    ]
    assert [p.records[0].value for p in partitions] == [b"hi", b"ho"]


async def test_headers_envelopes_and_errors(broker, server, subscribe):
    """Headers and envelopes are interpreted, and rejections are answered."""
    (partition,) = broker.add("S", "a.>")
    await subscribe()
    link = await server.next_link()
    block = encode_headers([("Nats-Msg-Id", b"id")])
    link.writer.write(b"HMSG a.b 1 r.1 %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block))
    payload = encode_message(EnvelopeMessage(value=b"v", ack_inbox="inbox"))
    link.writer.write(b"MSG a.b 1 %d\r\n%b\r\n" % (len(payload), payload))
    link.writer.write(b"HMSG a.b 1 r.2 4 4\r\nJUNK\r\n")
    link.writer.write(b"MSG a..b 1 r.3 0\r\n\r\nMSG a..b 1 0\r\n\r\n")
    await link.until(lambda: len(link.published) == 4)
    replies = dict(link.published)
    assert json.loads(replies[b"r.1"])["seq"] == 1
    assert decode_ack(replies[b"inbox"]).offset == 1
    assert json.loads(replies[b"r.2"])["error"]["code"] == 400
    assert json.loads(replies[b"r.3"])["error"]["code"] == 400
    assert [r.message_id for r in partition.records] == ["id", None]


async def test_no_reply_breaks_the_link(broker, server, subscribe):
    """nats-server ends a link for a line or a payload that is too long, and all share this one."""
    broker.add("S", "a")
    await subscribe()
    link = await server.next_link()
    for message in (
        EnvelopeMessage(ack_inbox="i" * 5000),
        EnvelopeMessage(ack_inbox="inbox", correlation_id="c" * ((1 << 20) - 32)),
    ):
        payload = encode_message(message)
        link.writer.write(b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload))
    quoted = encode_headers([("Nats-Expected-Stream", b"\xff" * 500_000)])
    link.writer.write(b"HMSG a 1 r %d %d\r\n%b\r\n" % (len(quoted), len(quoted), quoted))
    payload = encode_message(EnvelopeMessage(ack_inbox="last"))
    link.writer.write(b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload))
    await link.until(lambda: any(to == b"last" for to, _ in link.published))
    replies = dict(link.published)
    assert set(replies) == {b"r", b"last"}
    assert len(replies[b"r"]) < 5000


async def test_an_ack_inbox_cannot_inject_protocol(broker, server, subscribe):
    """White space in an ack inbox would break the link, so that ack is dropped."""
    broker.add("S", "a")
    await subscribe()
    link = await server.next_link()
    for inbox in ("x 0\r\n\r\nPUB evil", "a b", "a\tb", "a\nb"):
        payload = encode_message(EnvelopeMessage(ack_inbox=inbox))
        link.writer.write(b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload))
    link.writer.write(b"MSG a 1 r 0\r\n\r\n")
    await link.until(lambda: link.published)
    assert [to for to, _ in link.published] == [b"r"]


async def test_stream_changes_change_the_subscriptions(broker, server, subscribe):
    """New streams are subscribed, deleted ones unsubscribed, a re-created one gets a new sid."""
    broker.add("A", "a")
    broker.add("B", "b")
    each = await subscribe()
    link = await server.next_link()
    broker.drop("A")
    each.streams_changed(bindings(broker, "A"))
    (again,) = broker.add("A", "a")
    broker.add("C", "c")
    each.streams_changed(bindings(broker, "A", "C"))
    await each.synced()
    assert link.subscriptions() == {b"b": (b"", b"2"), b"a": (b"", b"3"), b"c": (b"", b"4")}
    link.writer.write(b"MSG a 3 r 0\r\n\r\n")
    await link.until(lambda: link.published)
    assert len(again.records) == 1


async def test_what_replaces_a_subscription_comes_before_its_end(broker, server, subscribe):
    """Between the two nothing is lost at the server."""
    broker.add("A", "a")
    each = await subscribe()
    link = await server.next_link()
    broker.drop("A")
    broker.add("A", "a")
    each.streams_changed(bindings(broker))
    await each.synced()
    assert link.lines[-2:] == [b"SUB a 2", b"UNSUB 1"]


async def test_who_leads_no_more_leaves_the_queue_group(broker, server, subscribe):
    """Messages in flight are still handled, since no other broker receives them."""
    (partition,) = broker.add("A", "a", queue_group="g")
    each = await subscribe()
    link = await server.next_link()
    server.answer_pings = False
    partition.is_led = False
    broker.announce("A")
    each.streams_changed(bindings(broker))
    await link.until(lambda: link.lines[-1] == b"UNSUB 1")
    link.writer.write(b"MSG a 1 r.1 0\r\n\r\n")
    await link.until(lambda: link.published)
    assert link.published == [(b"r.1", b'{"stream":"A","seq":1}')]
    server.answer_pings = True
    link.writer.write(b"PONG\r\n")
    partition.is_led = True
    broker.announce("A")
    each.streams_changed(bindings(broker))
    await each.synced()
    assert link.subscriptions() == {b"a": (b"g", b"2")}
    link.writer.write(b"MSG a 1 r.2 0\r\n\r\nMSG a 2 r.3 0\r\n\r\n")
    await link.until(lambda: len(link.published) == 2)
    assert link.published[1] == (b"r.3", b'{"stream":"A","seq":2}')


async def test_of_a_queue_group_also_who_does_not_lead_answers(broker, server, subscribe):
    """Only one broker gets the message, so it answers; for other streams the leader does."""
    broker.add("Q", "q", queue_group="g")
    broker.add("S", "s")
    broker.write_error = NotLeaderError("another leads")
    await subscribe()
    link = await server.next_link()
    wrapped = encode_message(EnvelopeMessage(value=b"v", ack_inbox="inbox"))
    for subject, sid in ((b"q", b"1"), (b"s", b"2")):
        link.writer.write(b"MSG %b %b %b.r 0\r\n\r\n" % (subject, sid, subject))
        link.writer.write(b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(wrapped), wrapped))
    link.writer.write(b"PING\r\n")
    await link.until(lambda: b"PONG" in link.lines and len(link.published) >= 2)
    assert [to for to, _ in link.published] == [b"q.r", b"inbox"]
    assert json.loads(link.published[0][1])["code"] == "not_leader"


@pytest.mark.parametrize(("is_leaderless", "is_controller"), [(1, 1), (1, 0), (0, 1), (0, 0)])
async def test_the_controller_answers_for_partitions_that_nobody_leads(
    broker, server, subscribe, is_leaderless, is_controller
):
    """With 503, so that a publisher retries; all other brokers leave it to the leader to answer."""
    broker.add("S", "s")
    broker.write_error = NotLeaderError("S/0 has no leader now", is_leaderless=bool(is_leaderless))
    broker.is_controller = bool(is_controller)
    await subscribe()
    link = await server.next_link()
    wrapped = encode_message(EnvelopeMessage(value=b"v", ack_inbox="inbox"))
    link.writer.write(b"MSG s 1 r 0\r\n\r\n")
    link.writer.write(b"MSG s 1 %d\r\n%b\r\n" % (len(wrapped), wrapped))
    link.writer.write(b"PING\r\n")
    await link.until(lambda: b"PONG" in link.lines)
    if not (is_leaderless and is_controller):
        assert link.published == []
        return
    (to, body), (inbox, _) = link.published
    assert (to, inbox) == (b"r", b"inbox")
    assert json.loads(body)["error"]["code"] == 503


@pytest.mark.parametrize(
    "answer", [b"MSG %b replies 0\r\n\r\n", b"HMSG %b replies 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"]
)
async def test_other_servers_know_a_subscription_once_other_brokers_answer(
    server, subscribe, until, answer
):
    """The request follows the subscriptions on every route; who is away has no responder."""
    each = await subscribe()
    link = await server.next_link()
    syncing = asyncio.create_task(each.synced([b"peer.2", b"peer.3"]))
    await link.until(lambda: len(link.published) == 2)
    assert link.published == [(b"peer.2", b""), (b"peer.3", b"")]
    for reply in link.replies:
        await asyncio.sleep(0.05)
        assert not syncing.done()
        link.writer.write(answer % reply)
    await until(syncing.done)
    await syncing


async def test_a_broker_that_does_not_answer_is_not_waited_for_long(
    server, subscribe, monkeypatch, caplog
):
    """Creations go on while another broker is stuck."""
    monkeypatch.setattr(subscriber_module, "PEER_TIMEOUT_S", 0.05)
    each = await subscribe()
    await server.next_link()
    async with asyncio.timeout(5):
        await each.synced([b"peer.2"])
    assert "not known at every nats-server yet: no answer in time" in caplog.text


async def test_other_brokers_are_answered(server, subscribe):
    """Their request says that what they subscribed to before is known at our server."""
    await subscribe(peer_subject=b"peer.1")
    link = await server.next_link()
    assert b"SUB peer.1 peers" in link.lines
    link.writer.write(b"MSG peer.1 peers _INBOX.x 0\r\n\r\nMSG peer.1 peers 0\r\n\r\n")
    await link.until(lambda: link.published)
    assert link.published == [(b"_INBOX.x", b"")]


async def test_reconnects_and_subscribes_again(broker, server, subscribe):
    """A lost link is made again, with all subscriptions, and acks flow on it."""
    broker.add("A", "a")
    await subscribe()
    first = await server.next_link()
    first.writer.close()
    second = await server.next_link()
    assert second.subscriptions() == {b"a": (b"", b"1")}
    second.writer.write(b"MSG a 1 r 0\r\n\r\n")
    await second.until(lambda: second.published)


async def test_goes_to_the_next_server(broker, server, subscribe):
    """With several servers, one that is down is passed over."""
    broker.add("A", "a")
    await subscribe(["127.0.0.1:1", f"nats://127.0.0.1:{server.port}"])
    assert (await server.next_link()).subscriptions()


async def test_acks_of_a_lost_link_are_dropped(broker, server, subscribe, until):
    """The record is stored; its ack is dropped without an error."""
    (partition,) = broker.add("A", "a")
    broker.frozen = True
    await subscribe()
    first = await server.next_link()
    first.writer.write(b"MSG a 1 r.old 0\r\n\r\n")
    await until(lambda: broker.waiting)
    first.writer.close()
    second = await server.next_link()
    broker.thaw()
    second.writer.write(b"MSG a 1 r.new 0\r\n\r\n")
    await second.until(lambda: second.published)
    assert [to for to, _ in second.published] == [b"r.new"]
    assert len(partition.records) == 2


async def test_a_silent_server_is_given_up(broker, server, subscribe, monkeypatch):
    """A link whose pings are not answered is replaced."""
    monkeypatch.setattr(subscriber_module, "PING_INTERVAL_S", 0.02)
    monkeypatch.setattr(subscriber_module, "PING_TIMEOUT_S", 0.05)
    await subscribe()
    first = await server.next_link()
    await first.until(lambda: first.pings > 3)
    server.answer_pings = False
    async with asyncio.timeout(60):
        await server.links.get()
    server.answer_pings = True


@pytest.mark.parametrize(
    "garbage", [b"WHAT\r\n", b"MSG a\r\n", b"MSG a 1 99999999999\r\n", b"\x00" * 70_000]
)
async def test_a_server_that_breaks_the_protocol_is_left(broker, server, subscribe, garbage):
    """Garbage ends the link, not the broker, and a new link is made."""
    await subscribe()
    first = await server.next_link()
    first.writer.write(garbage)
    await server.next_link()


async def test_errors_and_later_infos_are_taken_calmly(broker, server, subscribe):
    """-ERR, +OK and cluster changes have no effect."""
    broker.add("A", "a")
    await subscribe()
    link = await server.next_link()
    link.writer.write(b"-ERR 'Permissions Violation'\r\n+OK\r\n" + INFO + b"MSG a 1 r 0\r\n\r\n")
    link.writer.write(b"PING\r\nPONG\r\n")
    await link.until(lambda: b"PONG" in link.lines)
    await link.until(lambda: link.published)


async def test_stop_drains(broker, server, subscribe):
    """Stopping unsubscribes, answers messages in flight, and then disconnects."""
    (partition,) = broker.add("A", "a")
    broker.frozen = True
    each = await subscribe()
    link = await server.next_link()
    link.writer.write(b"MSG a 1 r 0\r\n\r\n")
    stopping = asyncio.create_task(each.stop())
    await link.until(lambda: b"UNSUB 1" in link.lines)
    await asyncio.sleep(0.02)
    assert not stopping.done()
    broker.thaw()
    await stopping
    assert link.published == [(b"r", b'{"stream":"A","seq":1}')]
    assert len(partition.records) == 1
    assert broker.telemetry.nats_connections == 0


async def test_stop_without_a_server(broker, server, subscribe):
    """Stopping while disconnected does not hang."""
    each = await subscribe()
    link = await server.next_link()
    await server.stop()
    link.writer.close()
    await asyncio.sleep(0.05)
    await each.synced()
    async with asyncio.timeout(60):
        await each.stop()


async def test_no_server_is_a_clear_error(broker, subscribe, monkeypatch):
    """If nothing can be reached, the error names the address and the reason."""
    monkeypatch.setattr(server_link, "FIRST_CONNECTION_TIMEOUT_S", 0.2)
    with pytest.raises(UnavailableError, match=r"nats://127\.0\.0\.1:1: .*(refused|Connect)"):
        await subscribe(["127.0.0.1:1"])


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (b'INFO {"tls_required":true,"headers":true}\r\n', "TLS"),
        (b"INFO {}\r\n", "headers"),
        (b"INFO nonsense\r\n", "unreadable INFO"),
    ],
)
async def test_unusable_servers_are_rejected(broker, subscribe, monkeypatch, info, why):
    """A server we cannot work with is named, with the reason."""
    monkeypatch.setattr(server_link, "FIRST_CONNECTION_TIMEOUT_S", 0.3)
    unusable = await ScriptedServer(info).start()
    with pytest.raises(UnavailableError, match=why):
        await subscribe([f"127.0.0.1:{unusable.port}"])
    await unusable.stop()


@pytest.mark.parametrize(
    ("url", "host", "port", "credentials"),
    [
        ("localhost", "localhost", 4222, {}),
        ("10.0.0.1:5", "10.0.0.1", 5, {}),
        ("nats://h:5", "h", 5, {}),
        ("nats://[::1]:5", "::1", 5, {}),
        ("nats://u:p%40ss@h", "h", 4222, {"user": "u", "pass": "p@ss"}),
        ("nats://t0ken@h", "h", 4222, {"auth_token": "t0ken"}),
    ],
)
def test_server_urls(url, host, port, credentials):
    """URLs are read with their credentials, which never appear in messages."""
    parsed = parse_server_url(url)
    assert (parsed.host, parsed.port, parsed.credentials) == (host, port, credentials)
    assert not any(secret in str(parsed) for secret in credentials.values())


def test_tls_is_asked_for_in_the_url():
    """Only the URL enables it, and printed addresses show it."""
    parsed = parse_server_url("tls://h:1")
    assert (parsed.is_tls, str(parsed)) == (True, "tls://h:1")
    assert not parse_server_url("h:1").is_tls


@pytest.mark.parametrize("url", ["", "nats://", "http://h", "wss://h", "nats://h:port", "h:99999"])
def test_wrong_server_urls(url):
    """An invalid URL is a configuration error that names the key."""
    with pytest.raises(InvalidConfigError, match=r"nats\.servers"):
        parse_server_url(url)
