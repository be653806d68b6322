"""Message ids after a restart and a failover, by stock NATS clients, which repeat no rejection."""

import asyncio
import contextlib

import nats
import pyarrow as pa
import pytest

import strandline
from strandline.testing import ProcessServer
from tests.kit.clusters import IDS, leader_of, status, three_brokers

pytestmark = pytest.mark.slow
RECORDS = 20_000
"""With their ids more than the broker reads back at once."""


def fill(address):
    """Append records with ids, the last of which the tests publish again."""
    ids = [f"m{number}" for number in range(RECORDS)]
    table = pa.table({"value": [b"." * 200] * RECORDS, "message_id": ids})
    with strandline.connect(address, timeout_s=60) as client:
        client.append_batch("orders", table)


@contextlib.asynccontextmanager
async def publisher(url):
    """A stock client."""
    client = await nats.connect(url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def publish_each_once(url):
    """Publish a repeat, a new record, and records without ids around them; try each once."""
    async with publisher(url) as jetstream:
        last = {"Nats-Msg-Id": f"m{RECORDS - 1}"}
        repeat = await jetstream.publish_async("orders", b"repeat", headers=last)
        plain = await jetstream.publish_async("orders", b"plain")
        new = await jetstream.publish_async("orders", b"new", headers={"Nats-Msg-Id": "new"})
        acks = await asyncio.wait_for(asyncio.gather(repeat, plain, new), 10)
    assert [ack.duplicate for ack in acks] == [True, None, None]
    assert [ack.seq for ack in acks] == [RECORDS, RECORDS + 1, RECORDS + 2]


async def test_no_publish_is_rejected_after_a_restart():
    """The broker loads the ids, and publishes wait for that."""
    with ProcessServer() as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("orders")
        fill(server.flight)
        await asyncio.to_thread(server.restart)
        await publish_each_once(server.ingest_url)


async def test_no_publish_is_rejected_after_a_failover(tmp_path, kit):
    """The new leader reads the ids back that the old one has had."""
    with three_brokers(tmp_path, more=("--ingest-port", "0")) as cluster:
        addresses = ",".join(server.flight for server in cluster.values())
        with strandline.connect(addresses, timeout_s=60) as client:
            client.create_stream("orders", replicas=3, min_isr=2)
        fill(addresses)
        old = await asyncio.to_thread(kit.persist, lambda: leader_of(cluster))
        cluster[old].kill()
        [one, other] = (number for number in IDS if number != old)

        def new_leader():
            known = status(cluster[one])
            assert known.leader in (one, other)
            assert len(known.isr) == len(IDS) - 1
            return known.leader

        new = await asyncio.to_thread(kit.persist, new_leader)
        await publish_each_once(cluster[new].ingest_url)
