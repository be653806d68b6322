"""Publishers at a broker that does not lead: the leader stores and acks their records."""

import asyncio
import contextlib

import nats
import nats.errors
import pytest
from nats.js.errors import APIError

import strandline
from tests.kit.clusters import IDS, leader_of, three_brokers

RECORDS = 200


@pytest.fixture
def cluster(tmp_path):
    """Three brokers with listeners for publishers, whose nats-servers do not meet."""
    with three_brokers(tmp_path, more=("--ingest-port", "0")) as servers:
        addresses = ",".join(server.flight for server in servers.values())
        with strandline.connect(addresses, timeout_s=60) as client:
            client.create_stream("orders", replicas=3, min_isr=2)
            client.create_stream("alone", replicas=1)
            client.create_stream("keyed", partitions=6, partition_by="key", subject="keyed.>")
        yield servers


@contextlib.asynccontextmanager
async def publisher(url):
    """A stock client."""
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


def ways_in(cluster):
    """Every address at which publishers reach a broker."""
    return [url for each in cluster.values() for url in (each.ingest_url, each.nats_url)]


async def test_every_broker_takes_any_publish(cluster):
    """With the leader's ack, whichever way in; also to a stream with one replica elsewhere."""
    sent = 0
    for url in ways_in(cluster):
        async with publisher(url) as client:
            jetstream = client.jetstream()
            for stream in ("orders", "alone"):
                acks = [await jetstream.publish(stream, b"%d" % n, timeout=20) for n in range(5)]
                assert {ack.stream for ack in acks} == {stream}
                assert [ack.seq for ack in acks] == list(range(sent + 1, sent + 6))
            sent += 5


async def test_keys_headers_and_checks_reach_the_leader(cluster):
    """Key and headers are kept, a message id is stored once, a wrong sequence is rejected."""
    for url in ways_in(cluster):
        async with publisher(url) as client:
            jetstream = client.jetstream()
            headers = {"Strandline-Key": "k", "Nats-Msg-Id": url, "X-Why": "test"}
            first = await jetstream.publish("keyed.a", b"v", timeout=20, headers=headers)
            again = await jetstream.publish("keyed.a", b"v", timeout=20, headers=headers)
            assert (again.seq, again.duplicate) == (first.seq, True)
            latest = await jetstream.publish("orders", b"v", timeout=20)
            wrong = {"Nats-Expected-Last-Sequence": str(latest.seq + 7)}
            with pytest.raises(APIError, match=f"wrong last sequence: {latest.seq}"):
                await jetstream.publish("orders", b"v", timeout=20, headers=wrong)
            right = {"Nats-Expected-Last-Sequence": str(latest.seq)}
            ack = await jetstream.publish("orders", b"v", timeout=20, headers=right)
            assert ack.seq == latest.seq + 1
    with strandline.connect(cluster[1].flight) as client:
        table = client.read("keyed").read_all()
        assert table["key"].to_pylist() == [b"k"] * len(ways_in(cluster))
        assert set(table["subject"].to_pylist()) == {"keyed.a"}
        assert ("X-Why", b"test") in table["headers"].to_pylist()[0]


async def test_core_publishes_are_forwarded_in_their_order(cluster, kit):
    """These publishes have no ack."""
    leader = kit.persist(lambda: leader_of(cluster))
    other = next(number for number in IDS if number != leader)
    async with publisher(cluster[other].ingest_url) as client:
        for number in range(RECORDS):
            await client.publish("orders", b"%d" % number)
        await client.flush()
        with strandline.connect(cluster[leader].flight) as reader:

            def has_all():
                assert reader.stream_info("orders").partitions[0].high_watermark == RECORDS

            await asyncio.to_thread(kit.persist, has_all)
            values = reader.read("orders").read_all()["value"].to_pylist()
    assert values == [b"%d" % number for number in range(RECORDS)]


@pytest.mark.slow
async def test_publishers_at_a_follower_go_on_when_the_leader_dies(cluster, kit):
    """The listener finds the new leader; a retry with an id is stored once, in its order."""
    leader = kit.persist(lambda: leader_of(cluster))
    other = next(number for number in IDS if number != leader)
    publishers = [
        kit.Publisher(cluster[other].ingest_url, f"p{n}", "orders", timeout_s=15) for n in range(3)
    ]
    async with kit.running(*publishers):
        await kit.progress(publishers)
        cluster[leader].kill()
        await kit.progress(publishers)
        await asyncio.sleep(1)
        await kit.progress(publishers)
    kit.judge(kit.read_log(cluster[other].flight, "orders"), publishers)
