"""Both ways in together, with a real nats-server and a stock client, on a fake broker."""

import socket

import nats
import nats.errors
import pytest

from strandline.config import BrokerConfig, NatsConfig
from strandline.errors import UnavailableError
from strandline.servers.nats.frontend import NatsFrontEnd


@pytest.fixture
async def start(broker, tmp_path):
    """A function that starts a front end; stopped afterwards."""
    started = []

    async def front_end(**settings):
        settings = {"port": 0, "ingest_port": 0, **settings}
        config = BrokerConfig(data_dir=str(tmp_path), nats=NatsConfig(**settings))
        each = NatsFrontEnd(broker, config)
        started.append(each)
        await each.start()
        return each

    yield front_end
    broker.thaw()
    for each in started:
        await each.stop()


@pytest.fixture
async def connect():
    """A function that connects a stock client to a port; closed afterwards."""
    opened = []

    async def stock(port):
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        opened.append(client)
        return client

    yield stock
    for client in opened:
        await client.close()


async def test_both_ways_lead_to_the_same_partition(broker, start, connect):
    """A record comes through nats-server or through the listener; both are acked."""
    (partition,) = broker.add("S", "a.*")
    front_end = await start()
    for port in (front_end.nats_port, front_end.ingest_port):
        js = (await connect(port)).jetstream()
        ack = await js.publish("a.b", b"x" * 3)
        assert (ack.stream, ack.seq) == ("S", len(partition.records))
    assert [r.value for r in partition.records] == [b"xxx", b"xxx"]


async def test_new_streams_are_bound_and_deleted_ones_let_go(broker, start, connect):
    """Once ``synced``, a stream created a moment ago records; a deleted one has no responders."""
    front_end = await start()
    (partition,) = broker.add("S", "late")
    await front_end.synced("S")
    for port in (front_end.nats_port, front_end.ingest_port):
        await (await connect(port)).jetstream().publish("late", b"x")
    assert len(partition.records) == 2
    broker.drop("S")
    await front_end.synced("S")
    for port in (front_end.nats_port, front_end.ingest_port):
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await (await connect(port)).jetstream().publish("late", b"x")


async def test_streams_of_a_queue_group_share_through_nats_server(broker, start, connect, flushed):
    """nats-server gives each record to one stream of a group, and to every stream outside it."""
    (a,) = broker.add("A", "q", queue_group="g")
    (b,) = broker.add("B", "q", queue_group="g")
    (c,) = broker.add("C", "q")
    front_end = await start()
    client = await connect(front_end.nats_port)
    for _ in range(60):
        await client.publish("q", b"x")
    await flushed(client)
    for name in "ABC":
        await front_end.synced(name)
    assert len(a.records) + len(b.records) == 60
    assert a.records
    assert b.records
    assert len(c.records) == 60


async def test_own_acks_are_not_recorded(broker, start, connect):
    """A stream bound to everything does not record the acks it causes."""
    (partition,) = broker.add("S", ">")
    front_end = await start()
    js = (await connect(front_end.nats_port)).jetstream()
    for _ in range(3):
        await js.publish("x", b"1")
    await front_end.synced("S")
    assert [r.subject for r in partition.records] == ["x"] * 3


async def test_ingest_can_be_off(broker, start):
    """Port -1 means no listener."""
    front_end = await start(ingest_port=-1)
    assert front_end.ingest_port is None
    assert front_end.nats_port > 0
    assert front_end.nats_pid is not None


async def test_servers_of_the_user_instead_of_a_child(broker, start, connect, flushed):
    """With servers of one's own there is no child, and records come all the same."""
    (partition,) = broker.add("S", "a")
    other = await start(ingest_port=-1)
    front_end = await start(servers=[f"nats://127.0.0.1:{other.nats_port}"], ingest_port=-1)
    assert front_end.nats_port is None
    assert front_end.nats_pid is None
    client = await connect(other.nats_port)
    await client.publish("a", b"x")
    await flushed(client)
    await front_end.synced("S")
    await other.synced("S")
    assert len(partition.records) == 2


async def test_a_failed_start_leaves_nothing_running(broker, start):
    """If the listener's port is taken, the child that was started is stopped again."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UnavailableError, match="ingest_port"),
    ):
        await start(ingest_port=taken.getsockname()[1])


async def test_the_child_dying_is_survived(broker, start, connect):
    """After nats-server is killed, the same port serves again and streams record again."""
    (partition,) = broker.add("S", "a")
    front_end = await start()
    client = await connect(front_end.nats_port)
    js = client.jetstream()
    await js.publish("a", b"1")
    front_end._child._process.kill()
    for _ in range(100):
        try:
            await js.publish("a", b"2", timeout=0.5)
            break
        except (nats.errors.Error, OSError):
            continue
    assert [r.value for r in partition.records][-1] == b"2"
    assert broker.telemetry.nats_server_restarts == 1
