"""Brokers that are outdated, isolated or silent: clients ask others, in time."""

import asyncio
import socket
import time

import pytest

from strandline.client import metadata
from strandline.client.client import Client
from strandline.client.cluster_client import ClusterClient
from strandline.client.producer import delivery
from strandline.config import BrokerConfig
from strandline.errors import RequestTimeoutError, UnavailableError
from strandline.record.codec import decode_batches
from strandline.servers.flight.server import FlightFrontEnd

OLD, NEW = 5, 9
"""Entries of the metadata that brokers know."""


class Three:
    """Three brokers with a replica of stream ``s`` each; the first has outdated metadata."""

    def __init__(self, make_broker):
        self.brokers = [make_broker() for _ in range(3)]
        self.copies = [broker.make_stream().partitions[0] for broker in self.brokers]
        self.servers = []
        for broker in self.brokers:
            server = FlightFrontEnd(broker, BrokerConfig(flight_port=0))
            asyncio.run(server.start())
            self.servers.append(server)
        self.addresses = tuple(f"127.0.0.1:{server.port}" for server in self.servers)
        for number, broker in enumerate(self.brokers):
            broker.flight_addresses = self.copies[number].in_sync_addresses = self.addresses
            broker.flight_address = self.addresses[number]
            self.knows(number, index=NEW, leader=1)
        self.knows(0, index=OLD, leader=0)

    def knows(self, number, *, index, leader):
        """Set a broker's known metadata and leader."""
        self.brokers[number].metadata_index = index
        self.copies[number].leader_address = self.addresses[leader]
        self.copies[number].is_led = number == leader

    def close(self):
        for server in self.servers:
            asyncio.run(server.stop())


@pytest.fixture
def three(make_broker):
    made = Three(make_broker)
    yield made
    made.close()


def test_metadata_that_is_older_than_what_was_seen_is_not_believed(three):
    """A client that knows a new leader does not return to the old one."""
    brokers = ClusterClient(",".join(three.addresses), timeout_s=20)
    brokers.server_info()
    assert brokers.leaders(brokers.routes("s")) == {0: three.addresses[0]}, "it knows no better"
    brokers.metadata.ask_another()
    assert brokers.leaders(brokers.routes("s")) == {0: three.addresses[1]}
    for _ in three.addresses:
        brokers.metadata.ask_another()
        assert brokers.leaders(brokers.routes("s")) == {0: three.addresses[1]}
    brokers.close()


def test_metadata_that_nobody_has_any_longer_is_not_waited_for(three, monkeypatch):
    """After a forced recovery the cluster has less than clients have seen."""
    monkeypatch.setattr(metadata, "STALE_S", 0.3)
    brokers = ClusterClient(",".join(three.addresses[1:]), timeout_s=20)
    brokers.server_info()
    brokers.routes("s")
    for number in range(3):
        three.knows(number, index=OLD, leader=2)
    started = time.monotonic()
    assert brokers.leaders(brokers.routes("s")) == {0: three.addresses[2]}
    assert time.monotonic() - started >= 0.3
    assert brokers.leaders(brokers.routes("s")) == {0: three.addresses[2]}
    brokers.close()


def test_another_broker_is_asked_after_one_that_has_lost_its_quorum(three):
    """It names no leaders; alone it is an error with the reason."""
    three.brokers[0].has_quorum = False
    with Client(",".join(three.addresses), timeout_s=20) as client:
        assert client.server_info().address == three.addresses[0]
        assert [part.leader for part in client.stream_info("s").partitions] == [three.addresses[1]]
        with client.producer("s", idempotent=False) as producer:
            producer.append(b"v").result(20)
        assert three.copies[1].high_watermark == 1
    for broker in three.brokers:
        broker.has_quorum = False
    with Client(three.addresses[0], timeout_s=1) as client:
        client.server_info()
        for ask in (lambda: client.stream_info("s"), client.list_streams, lambda: client.read("s")):
            with pytest.raises(UnavailableError, match="lost the majority"):
                ask()


def test_the_own_copy_of_a_broker_without_a_quorum_can_be_read(three):
    """To its end, since it is unknown whether there is more."""
    for broker in three.brokers:
        broker.has_quorum = False
    three.copies[0].store(b"a", b"b")
    with Client(three.addresses[0], timeout_s=20) as client:
        assert client.read("s", replica="this").read_all()["value"].to_pylist() == [b"a", b"b"]
        rows = client.read("s", replica="this", follow=True)
        assert rows.read_next_batch()["value"].to_pylist() == [b"a", b"b"]
        rows.close()


def unanswered(three, producer, *values):
    """Futures of records that the leader has taken and not acknowledged."""
    three.copies[1].holds_acks = True
    futures = []
    for number, value in enumerate(values, 1):
        futures.append(producer.append(value))
        deadline_s = time.monotonic() + 20
        while len(three.copies[1].held) < number:
            assert time.monotonic() < deadline_s, "the leader takes what it does not answer"
            time.sleep(0.01)
    return futures


def lead_elsewhere(three):
    """Let the third broker lead, known to all."""
    for number in range(3):
        three.knows(number, index=NEW + 1, leader=2)


def values_of(partition):
    batches = decode_batches(b"".join(partition.batches))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_what_a_silent_leader_did_not_answer_is_sent_to_the_next(three, monkeypatch):
    """In order, and before the delivery timeout; late answers are ignored."""
    monkeypatch.setattr(delivery, "SILENCE_S", 0.3)
    three.knows(0, index=NEW, leader=1)
    with Client(",".join(three.addresses), timeout_s=20) as client:
        producer = client.producer("s", idempotent=False, linger_ms=0, delivery_timeout_s=60)
        futures = unanswered(three, producer, b"a", b"b")
        lead_elsewhere(three)
        started = time.monotonic()
        assert [each.result(40).offset for each in futures] == [0, 1]
        assert time.monotonic() - started < 30
        three.copies[1].holds_acks = False
        for answer in three.copies[1].held:
            answer()
        producer.append(b"c").result(40)
        producer.close()
    assert values_of(three.copies[2]) == [b"a", b"b", b"c"]


def test_what_a_leader_that_is_gone_did_not_answer_is_sent_to_the_next(three):
    """Its connection ends, and nothing waits for its answers."""
    three.knows(0, index=NEW, leader=1)
    with Client(",".join(three.addresses), timeout_s=20) as client:
        producer = client.producer("s", idempotent=False, linger_ms=0, delivery_timeout_s=60)
        futures = unanswered(three, producer, b"a", b"b")
        lead_elsewhere(three)
        started = time.monotonic()
        asyncio.run(three.servers[1].stop())
        assert [each.result(40).offset for each in futures] == [0, 1]
        assert time.monotonic() - started < 30
        producer.close()
    assert values_of(three.copies[2]) == [b"a", b"b"]


@pytest.fixture
def silent():
    """Addresses of listeners that never answer."""
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=50) for _ in range(5)]
    yield ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    for each in sockets:
        each.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.server_info(),
        lambda client: client.stream_info("s"),
        lambda client: client.offsets("s"),
        lambda client: client.create_stream("s"),
        lambda client: client.read("s"),
        lambda client: client.subscribe("s", starts={0: 0}, reconnect_timeout_s=2),
        lambda client: client.append("s", b"v", timeout_s=2),
        lambda client: client.groups.list(),
        lambda client: client.transactions(),
        lambda client: client.wait_for("s", {0: 0}, timeout_s=0.1),
    ],
)
def test_a_timeout_is_for_all_brokers_together(silent, call):
    """Five silent brokers take no more time than one."""
    client = Client(silent, timeout_s=2)
    started = time.monotonic()
    with pytest.raises((RequestTimeoutError, UnavailableError)):
        call(client)
    assert time.monotonic() - started < 2 * 2
    client.close()
