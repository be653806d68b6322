"""A stream is in use at once: stock NATS clients and ours, right after its creation."""

import asyncio

import nats
import pytest

import strandline
from strandline.process.ports import free_ports
from tests.kit.clusters import IDS, three_brokers

STREAMS = 30
pytestmark = pytest.mark.slow


@pytest.fixture(params=["servers that meet", "servers apart"])
def cluster(request, tmp_path):
    """Three brokers, whose nats-servers have routes to each other or not."""
    routes = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, free_ports(3), strict=True))
    more = ("--nats-peers", routes) if request.param == "servers that meet" else ()
    with three_brokers(tmp_path, more=more) as servers:
        yield servers


async def test_a_new_stream_takes_and_shows_records_at_once(cluster):
    """Each publish is tried once, at the broker that was asked for the stream, and is stored."""
    nc = await nats.connect(cluster[1].nats_url)
    jetstream = nc.jetstream()
    with strandline.connect(cluster[1].flight) as client:
        await asyncio.to_thread(client.create_stream, "first", replicas=3)
        for number in range(STREAMS):
            name = f"s{number}"
            replicas = 1 + number % 3
            await asyncio.to_thread(client.create_stream, name, replicas=replicas, partitions=3)
            for key in ("a", "b", "c"):
                headers = {"Strandline-Key": key}
                ack = await jetstream.publish(name, b"v", timeout=5, headers=headers)
                assert ack.stream == name
            table = await asyncio.to_thread(lambda n=name: client.read(n).read_all())
            assert table.num_rows == 3
    await nc.close()
