"""Brokers of a cluster as real processes: killed, paused, restarted; every replica is read."""

import asyncio
import contextlib
import os
import random
import signal
import time

import nats
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import strandline
from strandline.api.cluster import CLUSTER_STATUS
from strandline.api.put import BatchTag, PutRequest, put_schema
from strandline.client.connection import BrokerConnection
from strandline.client.producer.put_stream import PutStream
from strandline.errors import StrandlineError, StreamExistsError, UnknownStreamError
from strandline.process.ports import free_ports
from strandline.testing.replica import ReplicaReader
from tests.kit.clusters import three_brokers

IDS = (1, 2, 3)
ROUNDS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILL_SEED", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + ROUNDS * 40)]


@pytest.fixture
def cluster(tmp_path):
    """Three brokers whose nats-servers are connected."""
    meeting = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, free_ports(3), strict=True))
    with three_brokers(tmp_path, more=("--nats-peers", meeting)) as servers:
        yield servers


async def persist(attempt, *, seconds=40):
    """Try something until it works, as a client with retries does."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except (StrandlineError, nats.errors.Error, OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


def create(server, name, **settings):
    """Create a stream, unless an attempt whose answer was lost has done it."""
    with strandline.connect(server.flight) as client, contextlib.suppress(StreamExistsError):
        client.create_stream(name, replicas=3, min_isr=2, acks="replicated", **settings)


def read(server, name, count):
    """The first ``count`` values at a broker; an error if it has fewer."""
    with ReplicaReader(server.flight) as replica:
        batches = replica.read(name, stop=count)
        values = [value for batch in batches for value in batch["value"].to_pylist()]
    if len(values) < count:
        raise StrandlineError(f"{len(values)} of {count}")
    return values


async def publish(servers, subject, value):
    """Publish one record at any broker that runs, until it is acked; its sequence."""

    async def attempt():
        for server in servers.values():
            if not server.is_running:
                continue
            client = await nats.connect(server.nats_url, allow_reconnect=False, connect_timeout=1)
            try:
                headers = {"Nats-Msg-Id": value}
                ack = await client.jetstream().publish(
                    subject, value.encode(), timeout=1, headers=headers
                )
            finally:
                await client.close()
            return ack.seq
        raise StrandlineError("no broker runs")

    return await persist(attempt)


async def same_everywhere(servers, name, values):
    wanted = [value.encode() for value in values]
    for server in servers.values():
        found = await persist(lambda s=server: asyncio.to_thread(read, s, name, len(wanted)))
        assert found == wanted


async def test_a_killed_leader_loses_no_acked_record(cluster):
    """Rounds of kill -9 of the leader: acked records are on every replica, once and in order."""
    await persist(lambda: asyncio.to_thread(create, cluster[2], "orders"))
    values = []
    for number in range(5):
        values.append(f"first-{number}")
        await publish(cluster, "orders", values[-1])
    await same_everywhere(cluster, "orders", values)
    for victim in IDS:
        cluster[victim].kill()
        for number in range(5):
            values.append(f"without-{victim}-{number}")
            await publish(cluster, "orders", values[-1])
        cluster[victim].start()
        values.append(f"with-{victim}")
        await publish(cluster, "orders", values[-1])
        await same_everywhere(cluster, "orders", values)


async def test_every_broker_may_be_killed_at_once(cluster):
    """After a restart of all the records are there, and more are taken."""
    await persist(lambda: asyncio.to_thread(create, cluster[1], "orders"))
    values = [f"v{number}" for number in range(5)]
    for value in values:
        await publish(cluster, "orders", value)
    for server in cluster.values():
        server.kill()
    for server in cluster.values():
        server.start()
    values.append("again")
    await publish(cluster, "orders", "again")
    await same_everywhere(cluster, "orders", values)


def patient(reader):
    """A reader that waits for a broker that was just started and has no high watermark yet."""

    class Patient(reader):
        def _follow(self, replica):
            while not self.is_stopping:
                for partition, end in replica.ends(self.stream).items():
                    if end > self.next[partition]:
                        self._take(replica, partition)
                time.sleep(0.02)

    return Patient


async def disturb(server, *, pause_s):
    """Kill and restart a broker, or pause it for longer than the session timeout."""
    if not pause_s:
        await asyncio.to_thread(server.restart)
        return
    server.signal(signal.SIGSTOP)
    await asyncio.sleep(pause_s)
    server.signal(signal.SIGCONT)


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_kills_and_pauses_under_load(cluster, kit):
    """Every acked record is on every replica where its ack said, once and in order."""
    choice = random.Random(SEED)
    await persist(lambda: asyncio.to_thread(create, cluster[2], "load", subject="load.*"))
    publishers = [
        kit.Publisher(
            cluster[number].nats_url, f"by-{number}-{window}", f"load.{number}", window=window
        )
        for number, window in ((1, 1), (2, 16), (3, 1), (1, 8))
    ]
    readers = [patient(kit.Reader)(server.flight, "load") for server in cluster.values()]
    async with kit.running(*publishers, *readers):
        for _ in range(ROUNDS):
            await kit.progress(publishers)
            await asyncio.sleep(choice.uniform(0.0, 0.3))
            victim = cluster[choice.choice(IDS)]
            await disturb(victim, pause_s=choice.choice((0, 0, 0.5, 4)))
        await kit.progress(publishers)
    count = sum(each.sent for each in publishers)
    logs = []
    for server in cluster.values():
        await persist(lambda s=server: asyncio.to_thread(read, s, "load", count))
        logs.append(await asyncio.to_thread(kit.read_log, server.flight, "load"))
        kit.judge(logs[-1], publishers)
    assert logs[0] == logs[1] == logs[2], "the same on every replica"
    for reader in readers:
        reader.judge(logs[0])
        assert reader.seen, f"{reader.address} served something of its own copy"


def leader_of(server, name):
    """Return the leader's number, as a broker knows it.

    Raises:
        UnknownStreamError: the broker has not heard of the stream yet.
    """
    connection = BrokerConnection(server.flight, timeout_s=5)
    try:
        [found] = connection.action(CLUSTER_STATUS, None)
    finally:
        connection.close()
    leaders = [part.leader for part in found.partitions if part.stream == name]
    if not leaders:
        raise UnknownStreamError(f"no {name} yet")
    return leaders[0]


async def test_flight_names_the_leader_and_every_copy(cluster):
    """A put at the leader is on every replica; others reject it with the leader's address."""
    await persist(lambda: asyncio.to_thread(create, cluster[3], "orders"))
    leader = await persist(lambda: asyncio.to_thread(leader_of, cluster[1], "orders"))
    with strandline.connect(cluster[leader].flight) as client:
        for number in range(20):
            assert client.append("orders", f"v{number}").offset == number
    await same_everywhere(cluster, "orders", [f"v{number}" for number in range(20)])
    other = next(number for number in IDS if number != leader)
    with strandline.connect(cluster[other].flight) as client:
        assert client.append("orders", "w").offset == 20, "clients go there by themselves"
    connection = BrokerConnection(cluster[other].flight, timeout_s=5)
    acks = []
    put = PutStream(
        connection,
        PutRequest(stream="orders", partition=0),
        put_schema(["value"]),
        on_ack=acks.append,
        on_end=lambda _: None,
    )
    assert put.write(pa.record_batch({"value": [b"x"]}), BatchTag(sequence=0))
    assert put.finish() is None
    connection.close()
    assert acks[0].error.code == "not_leader"
    assert cluster[leader].flight in acks[0].error.message
    flight = fl.connect(f"grpc+tcp://{cluster[other].flight}")
    [endpoint] = flight.get_flight_info(fl.FlightDescriptor.for_path("orders")).endpoints
    found = [location.uri.decode().removeprefix("grpc+tcp://") for location in endpoint.locations]
    flight.close()
    assert found[0] == cluster[leader].flight
    assert sorted(found) == sorted(server.flight for server in cluster.values())


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_clean_stops_one_after_the_other_under_load(cluster, kit):
    """Each broker hands over, ends with code 0 and comes back; publishers lose nothing."""
    await persist(lambda: asyncio.to_thread(create, cluster[2], "load", subject="load.*"))
    publishers = [kit.Publisher(cluster[n].nats_url, f"by-{n}", f"load.{n}", window=4) for n in IDS]
    async with kit.running(*publishers):
        for victim in IDS:
            await kit.progress(publishers)
            assert await asyncio.to_thread(cluster[victim].stop) == 0
            await kit.progress([p for n, p in zip(IDS, publishers, strict=True) if n != victim])
            await asyncio.to_thread(cluster[victim].start)
        await kit.progress(publishers)
    count = sum(each.sent for each in publishers)
    for server in cluster.values():
        await persist(lambda s=server: asyncio.to_thread(read, s, "load", count))
        kit.judge(await asyncio.to_thread(kit.read_log, server.flight, "load"), publishers)
