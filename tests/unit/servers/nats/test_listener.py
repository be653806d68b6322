"""The listener for publishers, over real sockets, on a fake broker."""

import asyncio
import json
from itertools import pairwise

import pytest

from strandline.config import LimitsConfig
from strandline.errors import DiskFullError, UnavailableError
from strandline.record.envelope import EnvelopeMessage, decode_ack, encode_message
from strandline.servers.nats import connection as connection_module
from strandline.servers.nats import listener as listener_module
from strandline.servers.nats.connection import MESSAGE_SLACK_BYTES, PublisherConnection
from strandline.servers.nats.headers import encode_headers
from strandline.servers.round_budget import PIECES_MAX, RoundBudget


async def test_info_says_what_clients_need(broker, ingest):
    """The greeting has the fields that stock clients look at."""
    listener = await ingest()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    info = json.loads((await reader.readline()).removeprefix(b"INFO "))
    assert info["headers"] is True
    assert info["proto"] == 1
    assert info["max_payload"] == LimitsConfig().record_bytes + MESSAGE_SLACK_BYTES
    assert info["port"] == listener.port
    assert info["server_name"].startswith("strandline-")
    writer.close()


async def test_the_broker_knows_what_the_loop_itself_reads(broker, ingest, client):
    """It can poll for more while the disk works."""
    listener = await ingest()
    await client(listener.port)
    assert broker.read_here == list(listener.shared.connections)


async def test_publish_and_ack(broker, ingest, client):
    """A publish with a reply subject is stored and its PubAck is sent to the inbox."""
    (partition,) = broker.add("S", "a.*")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.x.* 7\r\nPUB a.b _INBOX.x.1 5\r\nhello\r\n")
    words, body = await raw.message()
    assert words[:3] == [b"MSG", b"_INBOX.x.1", b"7"]
    assert json.loads(body) == {"stream": "S", "seq": 1}
    assert [(r.value, r.subject) for r in partition.records] == [(b"hello", "a.b")]


async def test_acks_wait_for_the_group_commit_and_come_in_one_write(broker, ingest, client, until):
    """All acks of a group commit are sent together, after the sync."""
    broker.add("S", "a")
    broker.frozen = True
    listener = await ingest()
    raw = await client(listener.port)
    publishes = [b"PUB a _INBOX.i.%d 1\r\nx\r\n" % n for n in range(50)]
    await raw.send(b"SUB _INBOX.i.* 1\r\n" + b"".join(publishes))
    await until(lambda: len(broker.waiting) == 50)
    await raw.send(b"PING\r\n")
    assert await raw.line() == b"PONG"
    broker.turn()
    for number in range(50):
        words, body = await raw.message()
        assert words[1] == b"_INBOX.i.%d" % number
        assert json.loads(body)["seq"] == number + 1


async def test_what_one_read_brings_is_accepted_with_one_call_a_partition(broker, ingest, client):
    """However the subjects alternate; those of a partition keep their order, whatever subject."""
    one, two = broker.add("S", "a.*")[0], broker.add("T", "b")[0]
    listener = await ingest()
    raw = await client(listener.port)
    subjects = [b"a.x", b"b", b"a.y", b"a.x", b"b"]
    data = b"".join(b"PUB %b _INBOX.i.%d 1\r\n%d\r\n" % (s, n, n) for n, s in enumerate(subjects))
    await raw.send(b"SUB _INBOX.i.* 1\r\n" + data)
    for _ in subjects:
        await raw.message()  # the routes are known now, and the read was all messages
    await raw.send(data + b"PUB b 1\r\n9\r\n")
    answers = [await raw.message() for _ in subjects]
    assert (one.chunks, two.chunks) == ([3], [3])
    assert [(r.value, r.subject) for r in one.records[3:]] == [
        (b"0", "a.x"),
        (b"2", "a.y"),
        (b"3", "a.x"),
    ]
    assert [r.value for r in two.records[2:]] == [b"1", b"4", b"9"]
    assert {words[1] for words, _ in answers} == {b"_INBOX.i.%d" % n for n in range(5)}
    assert sorted(json.loads(body)["seq"] for _, body in answers) == [3, 4, 4, 5, 6]


async def test_a_read_spread_over_partitions_is_accepted_record_by_record(
    broker, ingest, client, until
):
    """A call with one record in it costs more; publishes without a reply get no answer."""
    partitions = broker.add("S", "a", partitions=3)
    listener = await ingest()
    raw = await client(listener.port)
    data = b"PUB a _INBOX.i.0 1\r\n0\r\nPUB a.1 1\r\n1\r\nPUB a.2 _INBOX.i.2 1\r\n2\r\n"
    await raw.send(b"SUB _INBOX.i.* 1\r\n" + data)
    await raw.message(), await raw.message()
    await raw.send(data)
    answers = [await raw.message() for _ in range(2)]
    assert [[r.value for r in each.records] for each in partitions] == [
        [b"0", b"0"],
        [b"1", b"1"],
        [b"2", b"2"],
    ]
    assert not any(each.chunks for each in partitions)
    assert {words[1] for words, _ in answers} == {b"_INBOX.i.0", b"_INBOX.i.2"}
    assert [json.loads(body)["seq"] for _, body in answers] == [2, 2]


@pytest.mark.parametrize(
    "odd",
    [
        b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        b"PUB a 6\r\n\xb9\x0e\x43\xb4xx\r\n",
        b"PUB nowhere 2\r\nhi\r\n",
        b"PING\r\n",
    ],
    ids=["headers", "envelope", "no stream", "ping"],
)
async def test_a_read_with_anything_but_plain_messages_keeps_its_order(
    broker, ingest, client, until, odd
):
    """Its messages are accepted one by one, as they came."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"PUB a 5\r\nfirst\r\n")
    await until(lambda: partition.records)
    await raw.send(b"PUB a 1\r\n1\r\n" + odd + b"PUB a 1\r\n2\r\n")
    await until(lambda: partition.records[-1].value == b"2")
    assert not partition.chunks
    assert [r.value for r in partition.records][:2] == [b"first", b"1"]


async def test_headers_are_kept_and_message_id_is_read(broker, ingest, client):
    """HPUB takes the slow way with all its meaning."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port)
    block = encode_headers([("Nats-Msg-Id", b"id"), ("x", b"y")])
    sizes = b"%d %d" % (len(block), len(block) + 2)
    await raw.send(b"SUB _INBOX.i 1\r\nHPUB a _INBOX.i %b\r\n%bhi\r\n" % (sizes, block))
    await raw.message()
    (record,) = partition.records
    assert (record.value, record.message_id) == (b"hi", "id")
    assert record.headers == [("Nats-Msg-Id", b"id"), ("x", b"y")]


async def test_an_empty_header_block_is_none(broker, ingest, client):
    """JavaScript clients send one with every message: it is a plain message, whole or in parts."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\nHPUB a _INBOX.i 0 2\r\nhi\r\nHPUB a 0 2\r\nh")
    await raw.message()
    await raw.send(b"o\r\nPING\r\n")
    assert await raw.line() == b"PONG"
    assert [record.value for record in partition.records] == [b"hi", b"ho"]


@pytest.mark.parametrize("pattern", [b"orders.>", b">", b"other", b"*.a", b"_INBOX"])
async def test_subscriptions_that_would_hear_nothing_are_rejected(broker, ingest, client, pattern):
    """Only replies are delivered here; others get an error, and the client stays connected."""
    broker.add("S", "orders.>")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB %b 1\r\nPING\r\n" % pattern)
    answer = await raw.line()
    assert answer.startswith(b'-ERR \'Permissions Violation for Subscription to "%b"' % pattern)
    assert b"subscribe at nats-server" in answer
    assert await raw.line() == b"PONG"


async def test_liftbridge_envelope(broker, ingest, client):
    """An envelope is unwrapped and acked on its inbox."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port)
    message = EnvelopeMessage(key=b"k", value=b"v", ack_inbox="_INBOX.ack.1", correlation_id="c")
    payload = encode_message(message)
    await raw.send(b"SUB _INBOX.ack.* 1\r\nPUB a %d\r\n%b\r\n" % (len(payload), payload))
    _, body = await raw.message()
    assert decode_ack(body).correlation_id == "c"
    assert (partition.records[0].value, partition.records[0].key) == (b"v", b"k")


async def test_no_stream_means_no_responders(broker, ingest, client):
    """A request that no stream binds gets the 503 status at once, if the client asked for it."""
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i.* 1\r\nPUB nobody _INBOX.i.1 0\r\n\r\n")
    words, body = await raw.message()
    assert words == [b"HMSG", b"_INBOX.i.1", b"1", b"16", b"16"]
    assert body == b"NATS/1.0 503\r\n\r\n"
    silent = await client(listener.port, options=b'{"verbose":false}')
    await silent.send(b"SUB _INBOX.i.* 1\r\nPUB nobody _INBOX.i.1 0\r\n\r\n")
    await silent.send(b"PUB nobody 0\r\n\r\nPING\r\n")
    assert await silent.line() == b"PONG"


async def test_rejections_reach_the_publisher(broker, ingest, client):
    """A rejected record is answered with JetStream's error format."""
    broker.add("S", "a")
    broker.write_error = DiskFullError("no space left")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\nPUB a _INBOX.i 0\r\n\r\nPUB a 0\r\n\r\nPING\r\n")
    _, body = await raw.message()
    error = json.loads(body)
    assert error["error"]["code"] == 503
    assert error["code"] == "disk_full"
    assert await raw.line() == b"PONG"


async def test_invalid_subjects(broker, ingest, client):
    """A subject that cannot be published to costs an error, not the connection."""
    broker.add("S", ">")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\nPUB a..b _INBOX.i 0\r\n\r\n")
    _, body = await raw.message()
    assert json.loads(body)["error"]["code"] == 400
    await raw.send(b"PUB a.* 0\r\n\r\nSUB a..b 2\r\nPING\r\n")
    assert await raw.line() == b"-ERR 'Invalid Publish Subject'"
    assert await raw.line() == b"-ERR 'Invalid Subject'"
    assert await raw.line() == b"PONG"


async def test_verbose_mode(broker, ingest, client):
    """A verbose client gets +OK for each operation; before CONNECT a client is verbose."""
    broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port, options=None)
    await raw.send(
        b"SUB _INBOX.i 1\r\nPUB a 0\r\n\r\nUNSUB 1\r\nUNSUB 1 1\r\nCONNECT {}\r\nPING\r\n"
    )
    assert [await raw.line() for _ in range(6)] == [b"+OK"] * 5 + [b"PONG"]
    await raw.send(b'CONNECT {"verbose":false}\r\nPUB a 0\r\n\r\nPING\r\n')
    assert await raw.line() == b"PONG"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HELLO\r\n", b"-ERR 'Unknown Protocol Operation'"),
        (b"PUB a 99999999\r\n", b"-ERR 'Maximum Payload Violation'"),
        (b"PING" + b" " * 5000, b"-ERR 'Maximum Control Line Exceeded'"),
        (b"PUB a 1\r\nxyz\r\n", b"-ERR 'Parser Error'"),
        (b"CONNECT {broken\r\nPING\r\n", b"-ERR 'Parser Error'"),
        (b"CONNECT \xff\r\n", b"-ERR 'Parser Error'"),
        (b'CONNECT {"x":%b}\r\n' % (b"[" * 4000), b"-ERR 'Parser Error'"),
        (b"GET / HTTP/1.1\r\n\r\n", b"-ERR 'Unknown Protocol Operation'"),
        (b"\x16\x03\x01\x02\x00\x01\r\n", b"-ERR 'Unknown Protocol Operation'"),
    ],
)
async def test_misbehaviour_costs_only_its_sender(broker, ingest, client, data, error):
    """A faulty client gets the reason and is closed; the others continue."""
    broker.add("S", "a")
    listener = await ingest()
    good = await client(listener.port)
    bad = await client(listener.port, options=b'{"verbose":false}')
    await bad.send(data)
    assert await bad.line() == error
    assert await bad.line() == b""
    await good.send(b"SUB _INBOX.i 1\r\nPUB a _INBOX.i 0\r\n\r\n")
    await good.message()


async def test_half_sent_messages_of_all_connections_are_bounded(broker, ingest, client, until):
    """A client that makes the broker buffer too many partial messages is disconnected."""
    listener = await ingest(limits=LimitsConfig(pending_bytes=5000))
    clients = [await client(listener.port) for _ in range(3)]
    for raw in clients[:2]:
        await raw.send(b"PUB a 100000\r\n" + bytes(2000))
    await until(lambda: listener.shared.buffered_bytes == 4000)
    await clients[2].send(b"PUB a 100000\r\n" + bytes(2000))
    assert b"half-sent" in await clients[2].line()
    await until(lambda: listener.shared.buffered_bytes == 4000)
    for raw in clients:
        await raw.close()
    await until(lambda: listener.shared.buffered_bytes == 0)


async def test_reading_stops_while_the_broker_is_full(broker, ingest, client, until):
    """A connection is not read beyond the limit of pending bytes, until the next group commit."""
    (partition,) = broker.add("S", "a")
    broker.frozen = True
    listener = await ingest(limits=LimitsConfig(pending_bytes=100_000))
    raw = await client(listener.port)
    await raw.send(b"PUB a 60000\r\n%b\r\n" % bytes(60000))
    await until(lambda: len(partition.records) == 1)
    await raw.send(b"PUB a 1\r\nx\r\n")
    await asyncio.sleep(0.05)
    assert len(partition.records) == 1
    broker.turn()
    await until(lambda: len(partition.records) == 2)


async def test_a_client_that_does_not_read_is_not_read(broker, ingest, client, until):
    """Unread replies stop the reading of their client only, and nothing is lost when it reads."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    lazy, busy = await client(listener.port), await client(listener.port)
    lazy.writer.transport.pause_reading()
    await lazy.send(b"SUB _INBOX.i 1\r\n")
    for _ in range(2000):
        lazy.writer.write(b"PUB a _INBOX.i 0\r\n\r\n" * 100)
    await until(lambda: any(len(c._inboxes) for c in listener.shared.connections))
    (connection,) = [c for c in listener.shared.connections if len(c._inboxes)]
    await until(lambda: connection._held_for)
    assert len(partition.records) < 200_000
    await busy.send(b"SUB _INBOX.i 1\r\nPUB a _INBOX.i 0\r\n\r\n")
    await busy.message()
    lazy.writer.transport.resume_reading()
    replies, tail = 0, b""
    async with asyncio.timeout(20):
        while replies < 200_000:
            data = tail + await lazy.reader.read(1 << 20)
            replies += data.count(b"MSG ")
            tail = data[-3:]  # too short to hold what was counted
    assert len(partition.records) == 200_001


async def test_too_many_subscriptions(broker, ingest, client):
    """Subscriptions are capped per connection."""
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"".join(b"SUB _INBOX.i.%d %d\r\n" % (n, n) for n in range(5000)))
    assert await raw.line() == b"-ERR 'maximum subscriptions exceeded'"


async def test_too_many_connections(broker, ingest, client, until):
    """Connections beyond the limit are turned away politely."""
    listener = await ingest()
    limit = listener.shared.metering.connections
    limit.connections_max = 2
    for _ in range(2):
        await client(listener.port)
    await until(lambda: not limit._strangers)
    raw = await client(listener.port, options=None)
    assert await raw.line() == b"-ERR 'maximum connections exceeded'"
    await until(lambda: len(listener.shared.connections) == 2)


async def test_silent_connections_are_found(broker, ingest, client, monkeypatch, until):
    """A client that answers no pings is closed; one that does stays."""
    monkeypatch.setattr(listener_module, "PING_INTERVAL_S", 0.02)
    listener = await ingest()
    alive, dead = await client(listener.port), await client(listener.port)
    lines = []

    async def answer():
        while (line := await alive.line()) == b"PING":
            await alive.send(b"PONG\r\n")
            lines.append(line)

    task = asyncio.create_task(answer())
    assert [await dead.line() for _ in range(3)] == [b"PING", b"PING", b"-ERR 'Stale Connection'"]
    await until(lambda: len(lines) > 5)
    task.cancel()


async def test_a_client_that_says_nothing_is_dropped(broker, ingest, client, monkeypatch):
    """A client that neither connects nor publishes within seconds is disconnected."""
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    broker.add("S", "a")
    listener = await ingest()
    silent = await client(listener.port, options=None)
    known = await client(listener.port)
    publisher = await client(listener.port, options=None)
    await publisher.send(b"PUB a 0\r\n\r\n")
    assert await silent.line() == b"-ERR 'Authentication Timeout'"
    assert await silent.line() == b""
    await known.send(b"PING\r\n")
    assert await known.line() == b"PONG"
    assert await publisher.line() == b"+OK"
    await publisher.send(b"PING\r\n")
    assert await publisher.line() == b"PONG"


@pytest.mark.parametrize("operation", [b"PING", b"PONG", b"CONNECT {}", b"UNSUB 1"])
async def test_operations_without_any_message_end_the_connection(
    broker, ingest, client, monkeypatch, operation
):
    """A limited number is accepted before a message must come."""
    monkeypatch.setattr(connection_module, "CONTROLS_MAX", 100)
    broker.add("S", "a")
    listener = await ingest()
    good = await client(listener.port)
    for _ in range(3):
        await good.send(b"PONG\r\n" * 90 + b"PUB a 0\r\n\r\n")
    await good.send(b"PING\r\n")
    assert await good.line() == b"PONG"
    bad = await client(listener.port)
    await bad.send((operation + b"\r\n") * 200)
    while (line := await bad.line()) in (b"PONG", b"+OK"):
        pass
    assert line.startswith(b"-ERR 'more than 100 operations")


async def test_a_flood_takes_its_share_of_a_round(broker, ingest, client, monkeypatch):
    """A burst from one client is handled over several rounds, in order and completely."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    listener.shared.budget = RoundBudget(slice_s=0.0)
    flooding = await client(listener.port)
    rounds = []
    original = PublisherConnection._taken

    def counted(connection, size):
        rounds.append(len(partition.records))
        original(connection, size)

    monkeypatch.setattr(PublisherConnection, "_taken", counted)
    await flooding.send(b"".join(b"PUB a %d\r\n%d\r\n" % (len(b"%d" % n), n) for n in range(3000)))
    await flooding.send(b"PING\r\n")
    assert await flooding.line() == b"PONG"
    assert [record.value for record in partition.records] == [b"%d" % n for n in range(3000)]
    steps = [after - before for before, after in pairwise(rounds)]
    assert max(steps) <= PIECES_MAX


async def test_streams_that_change_change_the_routes(broker, ingest, client):
    """A cached subject is routed again after its stream was deleted."""
    (partition,) = broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\nPUB a _INBOX.i 0\r\n\r\n")
    await raw.message()
    broker.drop("S")
    listener.streams_changed()
    await raw.send(b"PUB a _INBOX.i 0\r\n\r\n")
    words, _ = await raw.message()
    assert words[0] == b"HMSG"
    assert len(partition.records) == 1


async def test_stop_answers_what_was_taken(broker, ingest, client, until):
    """Stopping waits for the acks of accepted records and sends them before closing."""
    broker.add("S", "a")
    broker.frozen = True
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\nPUB a _INBOX.i 0\r\n\r\n")
    await until(lambda: broker.waiting)
    stopping = asyncio.create_task(listener.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    broker.thaw()
    _, body = await raw.message()
    assert json.loads(body)["seq"] == 1
    await stopping
    assert await raw.line() == b""


async def test_acks_for_a_connection_that_is_gone_are_dropped(broker, ingest, client, until):
    """The record is stored; its ack is dropped without an error."""
    (partition,) = broker.add("S", "a")
    broker.frozen = True
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\nPUB a _INBOX.i 0\r\n\r\n")
    await until(lambda: broker.waiting)
    await raw.close()
    await until(lambda: not listener.shared.connections)
    broker.turn()
    assert len(partition.records) == 1
    assert listener.shared.ingest.unflushed == []


async def test_a_port_in_use_is_a_clear_error(broker, ingest):
    """The error names the port and its setting."""
    listener = await ingest()
    second = listener_module.IngestListener(
        broker,
        listener_module.BrokerConfig(
            nats=listener._config.nats.__class__(ingest_port=listener.port)
        ),
        routes=listener.shared.routes,
        ingest=listener.shared.ingest,
    )
    with pytest.raises(UnavailableError, match=r"nats\.ingest_port"):
        await second.start()
    await second.stop()


async def test_connections_and_messages_are_counted(broker, ingest, client, until):
    """The metrics have open connections and messages."""
    broker.add("S", "a")
    listener = await ingest()
    raw = await client(listener.port)
    await raw.send(b"SUB _INBOX.i 1\r\n" + b"PUB a _INBOX.i 0\r\n\r\n" * 3)
    for _ in range(3):
        await raw.message()
    assert broker.telemetry.connections["ingest"] == 1
    assert broker.telemetry.messages_received["ingest"] == 3
    await raw.close()
    await until(lambda: broker.telemetry.connections["ingest"] == 0)
