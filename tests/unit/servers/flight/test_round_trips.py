"""The cost of a read in calls: one resolve per leader, one DoGet per partition."""

import asyncio
import sys
import threading
from collections import Counter

import pyarrow as pa
import pytest

from strandline.client.client import Client
from strandline.config import BrokerConfig
from strandline.errors import NotLeaderError
from strandline.reading.cursor import Cursor
from strandline.servers.flight.server import FlightFrontEnd, FlightServer
from tests.unit.broker.cluster.test_walks import Trace, check_walk, traced

PARTITIONS = 64
COUNTED = ("do_get", "do_action", "get_flight_info", "do_put")


@pytest.fixture
def calls(monkeypatch):
    """How often each call has reached a broker; of actions by name."""
    counts = Counter()

    def counted(name):
        method = getattr(FlightServer, name)

        def wrapper(server, context, *arguments):
            counts[arguments[0].type if name == "do_action" else name] += 1
            return method(server, context, *arguments)

        monkeypatch.setattr(FlightServer, name, wrapper)

    for name in COUNTED:
        counted(name)
    return counts


@pytest.fixture
def cluster(make_broker, calls):
    """Makes the brokers of a cluster, which lead a stream of 64 partitions in rotation."""
    servers = []

    def make(size):
        brokers = [make_broker() for _ in range(size)]
        streams = [broker.make_stream("s", partitions=PARTITIONS) for broker in brokers]
        for broker in brokers:
            server = FlightFrontEnd(broker, BrokerConfig(flight_port=0))
            asyncio.run(server.start())
            servers.append(server)
        addresses = tuple(f"127.0.0.1:{server.port}" for server in servers)
        for me, (broker, stream) in enumerate(zip(brokers, streams, strict=True)):
            broker.flight_addresses, broker.flight_address = addresses, addresses[me]
            for number, partition in enumerate(stream.partitions):
                partition.leader_address = addresses[number % size]
                partition.in_sync_addresses = addresses
                partition.is_led = number % size == me
                if partition.is_led:  # the copies lag behind
                    partition.store(b"a", b"b")
        return brokers, addresses

    yield make
    for server in servers:
        asyncio.run(server.stop())


def numbers_of(table: pa.Table) -> list[int]:
    return sorted(set(table["partition"].to_pylist()))


def test_a_description_costs_a_lookup_and_a_call_per_leader(cluster, calls):
    """The leaders are those that the lookup has named; they are not looked up again."""
    _, addresses = cluster(3)
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        calls.clear()
        described = client.stream_info("s")
    assert [part.high_watermark for part in described.partitions] == [2] * PARTITIONS
    assert calls == {"stream_info": 1 + 3}


def test_waiting_looks_up_leaders_once(cluster, calls):
    """They are known from then on, until one of them fails."""
    _, addresses = cluster(3)
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        calls.clear()
        for _ in range(3):
            assert client.wait_for("s", {0: 2, 1: 2, 2: 2}, timeout_s=0) == {0: 2, 1: 2, 2: 2}
    assert calls == {"stream_info": 1, "wait_beyond": 9}


@pytest.mark.parametrize(("size", "resolves"), [(1, 1), (3, 3)])
def test_a_read_of_64_partitions_costs_a_resolve_per_leader_and_64_reads(
    cluster, calls, size, resolves
):
    """Each leader resolves its own ends, so a lagging replica does not shorten the read."""
    _, addresses = cluster(size)
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        calls.clear()
        table = client.read("s").read_all()
    assert table.num_rows == 2 * PARTITIONS
    assert numbers_of(table) == list(range(PARTITIONS))
    assert calls == {"get_flight_info": resolves, "do_get": PARTITIONS}


def test_the_last_records_of_each_partition_cost_no_more(cluster, calls):
    """Both ends are resolved by the same call."""
    _, addresses = cluster(1)
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        calls.clear()
        assert client.read("s", start=-1).read_all().num_rows == PARTITIONS
    assert calls == {"get_flight_info": 1, "do_get": PARTITIONS}


def test_only_the_partitions_that_were_asked_for_are_resolved_and_read(cluster, calls):
    """Another partition, whose new leader does not know its end, delays nothing."""
    brokers, addresses = cluster(3)
    for broker in brokers:
        broker.stream("s").partitions[6].knows_end = False
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        calls.clear()
        table = client.read("s", starts={3: 0, 4: 1}).read_all()
    assert numbers_of(table) == [3, 4]
    assert table.num_rows == 3
    assert calls == {"get_flight_info": 2, "do_get": 2}


def test_a_leader_that_moved_is_looked_up_again(cluster, calls):
    """The old leader rejects the call, and the cached routes are dropped."""
    brokers, addresses = cluster(3)
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        stream = brokers[1].stream("s")
        moved = stream.partitions[1]
        heir = brokers[2].stream("s").partitions[1]
        heir.store(b"a", b"b", b"c")
        moved.is_led, heir.is_led = False, True
        for number in (1, 2):  # the first broker does not know yet
            brokers[number].stream("s").partitions[1].leader_address = addresses[2]
        moved.remote_error = NotLeaderError("broker 3 leads s/1")
        table = client.read("s", partition=1).read_all()
    assert table.num_rows == 3
    assert calls["get_flight_info"] >= 2


def test_a_read_from_a_cluster_takes_the_walk(cluster, monkeypatch):
    """From the client to the brokers' logs and back, as docs/explanation/walks.md says."""
    trace = Trace()
    for owner, name in (
        (FlightServer, "get_flight_info"),
        (FlightServer, "do_get"),
        (Cursor, "read"),
    ):
        monkeypatch.setattr(owner, name, traced(getattr(owner, name), trace))
    _, addresses = cluster(1)
    with Client(addresses[0], timeout_s=60) as client:
        client.server_info()
        threading.setprofile(trace.note)
        sys.setprofile(trace.note)
        try:
            calls = trace.during(lambda: client.read("s").read_all())
        finally:
            threading.setprofile(None)
            sys.setprofile(None)
    check_walk("A clustered read", calls)
