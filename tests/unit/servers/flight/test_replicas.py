"""Reads from replicas with different high watermarks: real Flight servers, logs in memory.

Two servers say that they copy one partition, and which of them leads; each serves what its own log
has, so a test decides how far behind a replica is.
"""

import asyncio
import threading
import time

import pytest

from strandline.client.client import Client
from strandline.config import BrokerConfig
from strandline.errors import (
    DataLossError,
    DisconnectedError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from strandline.servers.flight.server import FlightFrontEnd


class Pair:
    """Two brokers with a copy of stream ``s`` each."""

    def __init__(self, make_broker):
        self.brokers = [make_broker(), make_broker()]
        self.copies = [broker.make_stream().partitions[0] for broker in self.brokers]
        self.servers = []
        for broker in self.brokers:
            server = FlightFrontEnd(broker, BrokerConfig(flight_port=0))
            asyncio.run(server.start())
            self.servers.append(server)
        self.addresses = tuple(f"127.0.0.1:{server.port}" for server in self.servers)
        for broker, copy in zip(self.brokers, self.copies, strict=True):
            broker.flight_addresses = copy.in_sync_addresses = self.addresses
        for broker, address in zip(self.brokers, self.addresses, strict=True):
            broker.flight_address = address
        self.lead(0)

    def lead(self, number):
        """Let one of them lead."""
        for place, copy in enumerate(self.copies):
            copy.leader_address = self.addresses[number]
            copy.is_led = place == number

    def store(self, number, *values):
        self.copies[number].store(*values)

    def stop(self, number):
        """As SIGTERM does."""
        asyncio.run(self.servers[number].stop())

    def close(self):
        for number in (0, 1):
            self.stop(number)


@pytest.fixture
def pair(make_broker):
    made = Pair(make_broker)
    yield made
    made.close()


@pytest.fixture
def client(pair):
    with Client(",".join(pair.addresses), timeout_s=20) as client:
        client.server_info()
        yield client


def values(rows):
    return [value for batch in rows for value in batch.column("value").to_pylist()]


def later(action):
    """Run an action after the present attempt had time to fail once."""
    timer = threading.Timer(0.5, action)
    timer.start()
    return timer


def test_a_reader_waits_for_a_replica_that_is_behind(pair, client):
    """A new leader may have a lower high watermark: nothing is skipped or repeated."""
    pair.store(0, b"a", b"b", b"c")
    pair.store(1, b"a")
    rows = client.read("s", follow=True)
    assert rows.read_next_batch()["value"].to_pylist() == [b"a", b"b", b"c"]
    pair.lead(1)
    timer = later(lambda: pair.store(1, b"b", b"c", b"d"))
    pair.stop(0)
    assert rows.read_next_batch()["value"].to_pylist() == [b"d"]
    timer.join()
    rows.close()


def test_any_replica_serves_what_it_has(pair, client):
    """The one that was asked, without a detour to the leader."""
    pair.store(0, b"a", b"b")
    pair.store(1, b"a", b"b")
    with Client(pair.addresses[1], timeout_s=20) as near:
        assert values(near.read("s", replica="any")) == [b"a", b"b"]
    assert [broker.telemetry.read_records for broker in pair.brokers] == [0, 2]
    assert values(client.read("s")) == [b"a", b"b"]
    assert [broker.telemetry.read_records for broker in pair.brokers] == [2, 2]


def test_an_offset_that_is_only_late_at_a_replica_is_read_at_another(pair):
    """The leader's end counts; a replica without it is skipped."""
    pair.store(0, b"a", b"b", b"c")
    pair.store(1, b"a")
    with Client(pair.addresses[1], timeout_s=20) as near:
        assert values(near.read("s", start=2, replica="any")) == [b"c"]
    with Client(pair.addresses[1], timeout_s=20) as near:
        assert values(near.read("s", replica="any")) == [b"a", b"b", b"c"]


def test_an_end_that_a_new_leader_does_not_know_yet_is_waited_for(pair, client):
    """The previous leader reported it, so earlier records are committed."""
    streams = [broker.make_stream("t", partitions=2) for broker in pair.brokers]

    def lead(number):
        for copy in (copy for stream in streams for copy in stream.partitions):
            copy.leader_address, copy.in_sync_addresses = pair.addresses[number], pair.addresses

    lead(0)
    streams[0].partitions[0].store(b"a")
    streams[0].partitions[1].store(b"b", b"c")
    rows = client.read("t")
    lead(1)
    timer = later(lambda: streams[1].partitions[1].store(b"b", b"c"))
    assert values(rows) == [b"a", b"b", b"c"]
    timer.join()


def test_an_offset_that_does_not_exist_is_told_at_once(pair, client):
    """The leader knows that; waiting would not help."""
    pair.store(0, b"a")
    started = time.monotonic()
    with pytest.raises(OffsetOutOfRangeError, match="high watermark is 1"):
        client.read("s", start=2)
    with pytest.raises(OffsetOutOfRangeError, match="negative"):
        client.read("s", stop=-1)
    assert time.monotonic() - started < client._brokers.timeout_s


def test_deleted_records_are_not_waited_for(pair, client):
    """A reader whose next record was deleted gets an error."""
    pair.store(0, b"a", b"b", b"c")
    pair.store(1, b"a", b"b", b"c")
    pair.store(1, b"d")
    rows = client.read("s", follow=True, stop=4)
    assert rows.read_next_batch().num_rows == 3
    pair.copies[1].log_start_offset = 4
    pair.lead(1)
    pair.stop(0)
    with pytest.raises((OffsetOutOfRangeError, DataLossError)):
        list(rows)


def test_a_partition_without_a_leader_is_waited_for(pair, client):
    """Until there is one, within the client's time limit."""
    pair.store(0, b"a")
    for copy in pair.copies:
        copy.leader_address = ""
    timer = later(lambda: pair.lead(0))
    assert values(client.read("s")) == [b"a"]
    timer.join()
    for copy in pair.copies:
        copy.leader_address = ""
    with Client(pair.addresses[0], timeout_s=0.5) as hasty:
        with pytest.raises(NotLeaderError, match="s/0 has no leader"):
            hasty.read("s")
        with pytest.raises(NotLeaderError, match="s/0 has no leader"):
            hasty.offsets("s")


def test_a_partition_is_read_though_another_has_no_leader(pair, client):
    """Only the leaders of the requested partitions resolve the end."""
    for broker in pair.brokers:
        parts = broker.make_stream("t", partitions=2).partitions
        parts[0].store(b"a")
        parts[0].leader_address, parts[0].in_sync_addresses = pair.addresses[0], pair.addresses
    assert values(client.read("t", partition=0)) == [b"a"]
    followed = client.read("t", partition=0, start="earliest", stop="latest", follow=True)
    assert values(followed) == [b"a"]
    with client.subscribe("t", partition=0, start="earliest") as records:
        assert next(records).value == b"a"


def test_a_new_partition_that_its_leader_does_not_know_yet_is_waited_for(pair, client):
    """Partitions are added while a stream is read; brokers learn of them one after the other."""

    def make(broker, partitions):
        parts = broker.make_stream("t", partitions=partitions).partitions
        for place, part in enumerate(parts):
            part.leader_address, part.in_sync_addresses = pair.addresses[place], pair.addresses
            part.is_led = pair.brokers[place] is broker
            part.store(b"%d" % place)

    make(pair.brokers[0], 2)
    make(pair.brokers[1], 1)
    timer = later(lambda: make(pair.brokers[1], 2))
    assert sorted(values(client.read("t"))) == [b"0", b"1"]
    timer.join()


def test_a_cancelled_read_wakes_who_waits(pair, client):
    """From another thread, while nothing comes."""
    stream = client.open_read("s", follow=True)
    caught = []

    def read():
        try:
            list(stream.batches())
        except DisconnectedError as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 20
    while not stream._streams and time.monotonic() < deadline:
        time.sleep(0.01)
    stream.cancel()
    reader.join(20)
    assert not reader.is_alive()
    assert caught


def test_this_replica_is_the_one_that_was_asked(pair, client):
    """Whichever broker leads, and even if it is behind at first; others serve nothing."""
    pair.store(0, b"a", b"b")
    pair.store(1, b"a")
    timer = later(lambda: pair.store(1, b"b"))
    with Client(pair.addresses[1], timeout_s=20) as follower:
        assert values(follower.read("s", replica="this")) == [b"a", b"b"]
    timer.join()
    assert [broker.telemetry.read_records for broker in pair.brokers] == [0, 2]
    with Client(pair.addresses[0], timeout_s=20) as leader:
        assert values(leader.read("s", replica="this", stop=1)) == [b"a"]
    assert [broker.telemetry.read_records for broker in pair.brokers] == [1, 2]
    with pytest.raises(InvalidRequestError, match="this one has 2"):
        client.read("s", replica="this")


def test_this_replica_has_to_be_in_sync(pair):
    """Another one is not read in its place, and the error names the broker and the partition."""
    for broker in pair.brokers:
        broker.make_stream("t", partitions=2)
    for broker, copy in zip(pair.brokers, pair.copies, strict=True):
        copy.store(b"a")
        copy.in_sync_addresses = pair.addresses[:1]
        for part in broker.stream("t").partitions:
            part.leader_address, part.in_sync_addresses = pair.addresses[0], pair.addresses[:1]
    why = f"{pair.addresses[1]} has no in-sync replica of {{}}"
    with Client(pair.addresses[1], timeout_s=0.5) as behind:
        with pytest.raises(UnavailableError, match=why.format("s/0")):
            behind.read("s", replica="this")
        with pytest.raises(UnavailableError, match=why.format("t/0")):
            list(behind.read("t", replica="this", follow=True))
    assert [broker.telemetry.read_records for broker in pair.brokers] == [0, 0]


def test_this_replica_is_waited_for_until_it_is_in_sync(pair):
    """As one is that has just been started."""
    pair.store(1, b"a")
    pair.copies[1].in_sync_addresses = pair.addresses[:1]

    def come_back():
        pair.copies[1].in_sync_addresses = pair.addresses

    timer = later(come_back)
    pair.store(0, b"a")
    with Client(pair.addresses[1], timeout_s=20) as back:
        assert values(back.read("s", replica="this")) == [b"a"]
    timer.join()
    assert [broker.telemetry.read_records for broker in pair.brokers] == [0, 1]
