"""A stream is in use at once: stock NATS clients and ours, right after its creation."""

import asyncio
from contextlib import AsyncExitStack

import nats
import pytest

import strandline
from strandline.process.ports import free_ports
from strandline.testing.proxy import TcpProxy
from tests.kit.clusters import IDS, three_brokers
from tests.kit.nats_servers import NatsServer

STREAMS = 30
STREAMS_OVER_A_SLOW_ROUTE = 6
ROUTE_DELAY_S = 0.2
pytestmark = pytest.mark.slow


async def create_and_use(cluster, url_of, *, count=STREAMS):
    """Create streams, publish to each once, and read it."""
    clients = {}
    with strandline.connect(cluster[1].flight) as client:
        await asyncio.to_thread(client.create_stream, "first", replicas=3)
        for number in range(count):
            name = f"s{number}"
            await asyncio.to_thread(client.create_stream, name, replicas=1 + number % 3)
            url = await asyncio.to_thread(url_of, client, name)
            nc = clients[url] = clients.get(url) or await nats.connect(url)
            ack = await nc.jetstream().publish(name, b"v", timeout=5)
            assert ack.seq == 1
            table = await asyncio.to_thread(lambda n=name: client.read(n).read_all())
            assert table.num_rows == 1
    for nc in clients.values():
        await nc.close()


async def test_a_new_stream_is_in_use_at_once_at_its_leaders_server(tmp_path):
    """The leader subscribes before the creation is answered."""
    routes = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, free_ports(3), strict=True))
    with three_brokers(tmp_path, more=("--nats-peers", routes)) as cluster:
        urls = {server.flight: server.nats_url for server in cluster.values()}

        def of_leader(client, name):
            [partition] = client.stream_info(name, of_leaders=False).partitions
            return urls[partition.leader]

        await create_and_use(cluster, of_leader)


async def test_a_new_stream_is_in_use_at_once_at_the_broker_that_was_asked(tmp_path):
    """It forwards to the leader where nats-servers have no routes to each other."""
    with three_brokers(tmp_path) as cluster:
        await create_and_use(cluster, lambda *_: cluster[1].nats_url)


async def test_a_new_stream_is_in_use_at_once_at_a_server_far_from_its_leader(tmp_path, kit):
    """A creation waits until the leader's subscription is known at every nats-server.

    Until then a message reaches only brokers that leave the answer to the leader: it would be lost,
    and its publisher would hear nothing.
    """
    ports = free_ports(6)
    async with AsyncExitStack() as stack:
        route = await stack.enter_async_context(TcpProxy("127.0.0.1", ports[2]))
        servers = [
            NatsServer(tmp_path, ports[:3], []),
            NatsServer(tmp_path, ports[3:], [f"nats-route://127.0.0.1:{route.port}"]),
        ]
        for server in servers:
            server.start()
            stack.callback(server.kill)

        def have_met():
            assert all(server.others() == 1 for server in servers)

        await asyncio.to_thread(kit.persist, have_met)

        def environment_of(number):
            return {"STRANDLINE_NATS__SERVERS": servers[number % 2].url}

        starting = three_brokers(tmp_path, environment_of=environment_of)
        cluster = await asyncio.to_thread(stack.enter_context, starting)
        numbers = {server.flight: number for number, server in cluster.items()}

        def of_other(client, name):
            [partition] = client.stream_info(name, of_leaders=False).partitions
            return servers[(numbers[partition.leader] + 1) % 2].url

        route.delay(ROUTE_DELAY_S)
        await create_and_use(cluster, of_other, count=STREAMS_OVER_A_SLOW_ROUTE)
