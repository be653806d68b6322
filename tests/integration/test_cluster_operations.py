"""Operating a cluster of real brokers by its command line: grow, drain, move, repair.

Every story begins with its own brokers, and ends them; what is ordered is ordered as a person does,
with ``strandline cluster …``, and judged by what the brokers then say and serve.
"""

import asyncio
import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import nats
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMinRows

import strandline
from pyspark_strandline import DefaultSource
from strandline.api import admin, cluster
from strandline.client.connection import BrokerConnection
from strandline.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnavailableError,
    UnknownPartitionError,
)
from strandline.process.ports import free_ports
from strandline.spark.connection import forget_client
from strandline.testing import ProcessServer

PATIENCE_S = 90
MOVED_S_MAX = 10
"""After so long every client has found a partition that was moved."""
KEY_OF_THE_SECOND = "a"
"""Its checksum is odd."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Brokers:
    """Broker processes by number, and an operator's commands."""

    def __init__(self, directory):
        self.directory = directory
        self.ports = dict(enumerate(free_ports(5), 1))
        self.running, self.gone = {}, {}

    def server(self, number, *arguments, members, environment=None):
        peers = ",".join(f"{n}=127.0.0.1:{self.ports[n]}" for n in members)
        given = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        given += ("--peer-port", str(self.ports[number]))
        given += ("--ingest-port", "-1", "--http-port", "-1", *arguments)
        return ProcessServer(
            self.directory / f"broker-{number}", arguments=given, environment=environment
        )

    def found(self, count, *, racks=(), environment=None):
        """Start a cluster of brokers 1 to ``count``."""
        members = range(1, count + 1)
        for number in members:
            rack = ("--rack", racks[number - 1]) if racks else ()
            self.running[number] = self.server(
                number, *rack, members=members, environment=environment
            )
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, self.running.values()))
        self.until(lambda found: states(found) == dict.fromkeys(members, "live"))

    def join(self, number, members):
        """Start a broker that joins."""
        self.running[number] = self.server(number, "--join", members=members)
        self.running[number].start()

    def some(self, but=()):
        return next(s for n, s in self.running.items() if s.is_running and n not in but)

    def order(self, command, request=None, *, at=None):
        """Give an order at any broker; its answers."""
        with connected(self.running[at] if at else self.some()) as connection:
            return connection.action(command, request)

    def command(self, *words, at=None, code=0):
        """Run a command; return its output as JSON documents."""
        done = self.run(*words, "--output", "json", at=at)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]

    def run(self, *words, at=None):
        server = (self.running[at] if at else self.some()).flight
        return subprocess.run(
            [sys.executable, "-m", "strandline.cli", *map(str, words), "--server", server],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )

    def status(self, at=None):
        [found] = self.order(cluster.CLUSTER_STATUS, at=at)
        return found

    def until(self, holds, at=None, seconds=PATIENCE_S):
        """Wait until a status satisfies; the status."""
        deadline, found = time.monotonic() + seconds, None
        while True:
            try:
                found = self.status(at)
                if holds(found):
                    return found
            except UnavailableError as error:
                found = error
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def logs(self, number):
        """The directories of the copies that a broker keeps."""
        return list((self.directory / f"broker-{number}" / "logs").iterdir())

    def reassign(self, *to, at=None, stream="orders"):
        order = cluster.Reassign(stream=stream, partition=0, to=to)
        self.order(cluster.REASSIGN, order, at=at)

    def create(self, name, **settings):
        with strandline.connect(self.some().flight) as client:
            client.create_stream(name, **settings)

    def append(self, name, *values, partition=0):
        """Append at whoever leads, until it is acked."""
        for value in values:
            self._persist(lambda v=value: self._append(name, v, partition))

    def _append(self, name, value, partition):
        leader = part(self.status(), name, partition).leader
        if leader is None or not self.running[leader].is_running:
            raise UnavailableError("no leader yet")
        with strandline.connect(self.running[leader].flight) as client:
            client.append(name, value, partition=partition, message_id=value, timeout_s=5)

    def values(self, name, number, count, *, start=0):
        """Return a broker's own values of partition 0, once it has exactly these offsets."""
        wanted = list(range(start, start + count))

        def read():
            with strandline.connect(self.running[number].flight) as client:
                found = client.read(name, partition=0, replica="this").read_all()
            if found["offset"].to_pylist() != wanted:
                raise UnavailableError(f"{found['offset'].to_pylist()} and not {wanted}")
            return [value.decode() for value in found["value"].to_pylist()]

        return self._persist(read)

    def _persist(self, attempt):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return attempt()
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)


def wait_for(holds, what):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def states(found):
    return {broker.id: broker.state for broker in found.brokers}


def voters(found):
    return {broker.id for broker in found.brokers if broker.is_voter}


def part(found, stream="orders", partition=0):
    return next(p for p in found.partitions if (p.stream, p.partition) == (stream, partition))


def is_whole(found):
    """Whether every copy is in sync and nothing moves."""
    return all(sorted(p.isr) == sorted(p.replicas) and not p.is_moving for p in found.partitions)


@contextmanager
def connected(server):
    connection = BrokerConnection(server.flight, timeout_s=40)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def brokers(tmp_path):
    made = Brokers(tmp_path)
    try:
        yield made
    finally:
        for number, server in [*made.running.items(), *made.gone.items()]:
            server.signal(signal.SIGCONT)
            if server.is_running:
                server.kill()
            print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails


def test_a_broker_joins_and_another_is_drained_and_removed(brokers):
    """No acked record is lost; the number is not used again; the others continue."""
    brokers.found(3)
    brokers.create("orders", partitions=2, replicas=3, min_isr=2)
    brokers.create("small", partitions=6)
    brokers.append("orders", *"abc")
    refused = brokers.command("cluster", "drain", 1, code=1)
    assert "no broker can take" in refused[-1]["message"], "three copies need three brokers"
    brokers.order(cluster.DRAIN_BROKER, cluster.DrainBroker(broker=1, is_on=False))
    brokers.command("cluster", "add", f"4=127.0.0.1:{brokers.ports[4]}")
    brokers.join(4, range(1, 5))
    found = brokers.until(lambda found: voters(found) == {1, 2, 3, 4})
    assert states(found)[4] == "live"
    assert all(4 not in p.replicas for p in found.partitions), "it keeps nothing at first"
    *_, done = brokers.command("cluster", "rebalance")
    assert int(done["message"].split()[0]) > 0, done
    assert is_whole(found := brokers.status()), "the command waits"
    assert any(4 in p.replicas for p in found.partitions)
    brokers.until(lambda found: any(p.leader == 4 for p in found.partitions))
    assert_progress(brokers.command("cluster", "drain", 1, at=2))
    wait_for(lambda: brokers.logs(1) == [], "its copies are deleted")
    brokers.append("orders", *"de")
    brokers.command("cluster", "remove", 1, at=4)
    found = brokers.until(lambda found: voters(found) == {2, 3, 4}, at=3)
    assert found.removed == (1,)
    brokers.gone[1] = removed = brokers.running.pop(1)
    assert removed.stop() == 0
    again = cluster.AdmitBrokerRequest(broker=1, peer_address="127.0.0.1:1")
    with pytest.raises(InvalidRequestError, match="not used again"):
        brokers.order(cluster.ADMIT_BROKER, again)
    removed.start()  # with the directory it had
    brokers.running[2].kill()
    brokers.append("orders", *"fg")
    for number in (3, 4):
        assert brokers.values("orders", number, 7) == list("abcdefg")
    assert states(brokers.status(3)).keys() == {2, 3, 4}


def assert_progress(told):
    """The remaining work was reported, decreasing to nothing; then the end."""
    *progress, done = told
    assert done["event"] == "done"
    assert {line["event"] for line in progress} == {"progress"}
    left = [line["partitions_left"] for line in progress]
    assert left == sorted(left, reverse=True)
    assert left[0] > left[-1] == 0
    assert (progress[-1]["moving"], progress[-1]["records_to_copy"]) == (0, 0)


RATE = 256 << 10


def test_a_reassignment_outlives_its_controller(brokers):
    """It keeps to its rate, is finished by another controller, and racks are kept apart."""
    rate = {"STRANDLINE_CLUSTER__MOVE_BYTES_PER_S": str(RATE)}
    brokers.found(4, racks="aabb", environment=rate)
    move_slowly(brokers)
    brokers.create("orders", partitions=2, replicas=2, min_isr=1)
    for one in (part(brokers.status(), "orders", number) for number in (0, 1)):
        assert len({broker in (1, 2) for broker in one.replicas}) == 2, "a copy in each rack"
    addresses = ",".join(server.flight for server in brokers.running.values())
    client = strandline.connect(addresses)
    subscription = client.subscribe("orders")
    *_, done = brokers.command("cluster", "reassign", "orders", "--partition", 0, "--to", "1,3")
    assert done["message"] == "1 partition was moved"
    found = brokers.until(is_whole)
    assert part(found).replicas == (1, 3), "the command waits"
    brokers.append("orders", *"abc")
    controller = brokers.status().controller
    other = 1 if controller == 3 else 3
    waiting = 2 if controller == 4 else 4
    brokers.running[waiting].signal(signal.SIGSTOP)
    brokers.reassign(waiting, other, at=other)
    assert part(brokers.status(other)).adding == (waiting,)
    shown = brokers.run("cluster", "status", "--timeout", 3, at=other)
    assert not shown.returncode, shown.stderr
    [row] = re.findall(r"^orders +0 .*$", shown.stdout, re.MULTILINE)
    assert {f"+{waiting}", f"-{4 - other}", str(other)} <= set(row.split()), "who comes and goes"
    brokers.running[controller].kill()
    brokers.running[waiting].signal(signal.SIGCONT)

    def is_there(found):
        return set(part(found).replicas) == {waiting, other} == set(part(found).isr)

    found = brokers.until(is_there, at=other)
    assert found.controller != controller
    assert brokers.values("orders", waiting, 3) == list("abc")
    brokers.append("orders", "d")
    assert brokers.values("orders", other, 4) == list("abcd")
    with client, subscription:
        values = [record.value.decode() for record in itertools.islice(subscription, 4)]
    assert values == list("abcd"), "who reads a partition goes after it"


def move_slowly(brokers):
    brokers.create("large", replicas=1)
    leader = part(brokers.status(), "large").leader
    other = 1 + leader % 4
    size = 24
    with strandline.connect(brokers.running[leader].flight) as client:
        for number in range(size):
            client.append("large", bytes(64 << 10), message_id=f"m{number}")
        order = ("cluster", "reassign", "large", "--partition", 0, "--to", f"{leader},{other}")
        begun = time.monotonic()
        [told] = brokers.command(*order, "--no-wait")
        assert told["message"] == "1 partition is being moved"
        client.append("large", b"while it moves")  # by a command it could come after the move
        told = brokers.command(*order)  # given again it shows how far it is
    took_s = time.monotonic() - begun
    assert_progress(told)
    assert any(line.get("records_to_copy") for line in told), "what is left of it is counted"
    found = part(brokers.status(), "large")
    assert found.replicas == (leader, other)
    assert sorted(found.isr) == sorted(found.replicas)
    assert took_s > 0.6 * size * (64 << 10) / RATE, "the first slice goes at once"


def test_a_partition_moves_to_a_broker_that_its_producer_already_writes_to(brokers):
    """It moves during a put and back, and no record fails."""
    brokers.found(3)
    brokers.create("orders", partitions=3, replicas=1)
    first = part(brokers.status()).leader
    other = part(brokers.status(), partition=1).leader
    assert first != other, "spread over the brokers"
    with (
        strandline.connect(brokers.running[other].flight) as client,
        client.producer("orders", delivery_timeout_s=PATIENCE_S) as producer,
    ):
        for count, to in enumerate((None, other, first)):
            if to is not None:
                brokers.command("cluster", "reassign", "orders", "--partition", 0, "--to", to)
            begun_s = time.monotonic()
            acks = [producer.append("v", partition=number) for number in range(3)]
            assert [ack.result(PATIENCE_S).offset for ack in acks] == [count] * 3
            assert to is None or time.monotonic() - begun_s < MOVED_S_MAX
            assert client.wait_for("orders", {0: count - 1}) == {0: count + 1}


def test_a_moved_partition_is_followed_by_its_readers_and_by_nats_publishers(brokers):
    """A subscription, a group's member, and stock clients at the broker before and after."""
    brokers.found(3)
    brokers.create("orders", replicas=1)
    first = part(brokers.status()).leader
    other = next(number for number in brokers.running if number != first)

    async def publish(number, value):
        headers, end_s = {"Nats-Msg-Id": value.decode()}, time.monotonic() + MOVED_S_MAX
        async with await nats.connect(brokers.running[number].nats_url) as publisher:
            while True:
                try:
                    return await publisher.jetstream().publish("orders", value, headers=headers)
                except nats.errors.Error:
                    if time.monotonic() > end_s:
                        raise

    with (
        strandline.connect(brokers.running[other].flight) as client,
        client.subscribe("orders", start="earliest") as subscription,
        client.consumer("billing", "orders") as consumer,
    ):
        for moves, to in enumerate((None, other, first)):
            if to is not None:
                brokers.command("cluster", "reassign", "orders", "--partition", 0, "--to", to)
                brokers.until(lambda found, to=to: part(found).leader == to and is_whole(found))
            for number in (first, other):
                value = b"at broker %d after %d moves" % (number, moves)
                asyncio.run(publish(number, value))
                assert next(subscription).value == value
                found = []
                while not found:
                    found = [row for batch in consumer.poll(1.0) for row in batch]
                assert [row.value for row in found] == [value]


def test_a_lost_disk_is_replaced_by_an_explicit_order(brokers):
    """The new disk is kept out until then; after it everything is copied, and it leads again."""
    brokers.found(3)
    brokers.create("orders", replicas=3, min_isr=2)
    brokers.append("orders", *"abc")
    prefer = cluster.ElectLeaderRequest(stream="orders", leader=3)
    brokers.order(cluster.ELECT_LEADER, prefer)
    lost = brokers.running[3]
    lost.kill()
    shutil.rmtree(lost.data_dir)
    lost.start()
    brokers.until(lambda found: states(found)[3] == "fenced", at=1)
    assert brokers.status(3).controller is None, "nobody talks to it"
    brokers.append("orders", "d")
    lost.kill()
    shutil.rmtree(lost.data_dir)
    brokers.command("cluster", "replace-disk", 3, at=1)
    assert voters(brokers.status(1)) == {1, 2}
    brokers.join(3, range(1, 4))
    found = brokers.until(lambda found: voters(found) == {1, 2, 3} and is_whole(found), at=1)
    assert states(found)[3] == "live"
    assert brokers.values("orders", 3, 4) == list("abcd")
    brokers.until(lambda found: part(found).leader == 3, at=1)  # when all have settled


def test_leaders_partitions_and_log_starts_by_order(brokers):
    """Elections, more partitions, records deleted on every copy; an unclean leader by name only."""
    brokers.found(3)
    brokers.create("orders", replicas=3, min_isr=1)
    brokers.append("orders", *"abcdef")
    first = part(brokers.status()).leader
    second, third = (n for n in (1, 2, 3) if n != first)
    elect = cluster.ElectLeaderRequest(stream="orders", leader=second)
    brokers.order(cluster.ELECT_LEADER, elect, at=third)
    found = brokers.until(lambda found: part(found).leader == second, at=third)
    assert part(found).replicas[0] == second, "or leaders shared again would undo it"
    with (
        reading_by_spark(brokers, "orders") as read_on,
        appending(brokers, first) as append,
        consuming(brokers, first) as consumed,
        strandline.connect(brokers.running[first].flight) as client,
        client.subscribe("orders") as subscription,
    ):
        assert read_on() == list("abcdef")
        brokers.command("stream", "add-partitions", "orders", "--partitions", 2, at=first)
        brokers.append("orders", "x", partition=1)
        record = next(subscription)
        assert (record.partition, record.offset, record.value) == (1, 0, b"x")
        assert subscription.positions == {0: 6, 1: 1}
        assert read_on() == ["x"], "a query whose checkpoint does not know the partition goes on"
        assert consumed() == "x", "a member that began late leaves nothing of the new one out"
        append()
    find_partitions(brokers, first)
    brokers.command("stream", "delete-records", "orders", "--before", 4, at=second)
    for number in (1, 2, 3):
        assert brokers.values("orders", number, 2, start=4) == list("ef")
    beyond = admin.DeleteRecords(name="orders", offset=99)
    with pytest.raises(OffsetOutOfRangeError):
        brokers.order(admin.DELETE_RECORDS, beyond, at=second)
    elect_one_that_lacks_records(brokers)


@contextmanager
def consuming(brokers, number):
    """A member of a group that starts at the end; returns its next value."""
    with (
        strandline.connect(brokers.running[number].flight) as client,
        client.consumer("billing", "orders", start="latest") as consumer,
    ):
        while not consumer.assignment():
            consumer.poll(0.1)
        batches = (batch for _ in range(100) for batch in consumer.poll(PATIENCE_S / 100))
        yield lambda: next(record.value.decode() for batch in batches for record in batch)


@contextmanager
def appending(brokers, number):
    """A client and producers that know one partition, before another is added."""
    with (
        strandline.connect(brokers.running[number].flight) as client,
        client.producer("orders") as records,
        client.producer("orders") as tables,
    ):
        client.appender("orders")

        def append():
            acks = [
                client.append("orders", "y", partition=1),
                records.append("z", partition=1).result(PATIENCE_S),
            ]
            assert [(ack.partition, ack.offset) for ack in acks] == [(1, 1), (1, 2)]
            table = tables.append_batch(pa.table({"value": ["t"]}), partition=1)
            assert table.result(PATIENCE_S).ranges == ((1, 3, 1),)
            keyed = client.append("orders", "k", key=KEY_OF_THE_SECOND)
            assert keyed.partition == 1, "who knows of it sends it its share, too"
            with pytest.raises(UnknownPartitionError, match="no partition 2; it has 0 to 1"):
                records.append("no", partition=2)

        yield append


@contextmanager
def reading_by_spark(brokers, name):
    """Read like a streaming query of Spark: each call reads one micro-batch."""
    server = brokers.some().flight
    source = DefaultSource(CaseInsensitiveDict({"server": server, "stream": name}))
    reader = source.streamReader(schema=source.schema())
    begin = reader.initialOffset()

    def read_on():
        nonlocal begin
        start, begin = begin, reader.latestOffset(begin, ReadMinRows(1))
        batches = [b for part in reader.partitions(start, begin) for b in reader.read(part)]
        return [value.decode() for batch in batches for value in batch["value"].to_pylist()]

    yield read_on
    forget_client(server)


def find_partitions(brokers, number):
    """A producer discovers a new partition and sends it its share of the keys."""
    brokers.create("grown", replicas=3, min_isr=1)
    with (
        strandline.connect(brokers.running[number].flight) as client,
        client.producer("grown") as producer,
    ):
        assert producer.append("k", key=KEY_OF_THE_SECOND).result(PATIENCE_S).partition == 0
        brokers.command("stream", "add-partitions", "grown", "--partitions", 2, at=number)
        deadline_s = time.monotonic() + PATIENCE_S
        while producer.append("k", key=KEY_OF_THE_SECOND).result(PATIENCE_S).partition != 1:
            assert time.monotonic() < deadline_s, "it keeps to the partition that it found"
            time.sleep(0.1)
        assert len(client.add_partitions("grown", 3).partitions) == 3
        assert len(client.add_partitions("grown", 3).partitions) == 3, "it has as many"
        assert len(client.stream_info("grown").partitions) == 3


def elect_one_that_lacks_records(brokers):
    brokers.create("rare", replicas=2, min_isr=1)
    leader, follower = part(brokers.status(), "rare").replicas
    other = next(n for n in (1, 2, 3) if n not in (leader, follower))
    brokers.append("rare", "a")
    assert brokers.values("rare", follower, 1) == ["a"]
    brokers.running[follower].kill()
    brokers.until(lambda found: part(found, "rare").isr == (leader,), at=other)
    brokers.append("rare", "b")
    brokers.running[leader].kill()
    brokers.running[follower].start()
    brokers.until(lambda found: states(found)[follower] == "live", at=other)
    clean = cluster.ElectLeaderRequest(stream="rare", leader=follower)
    with pytest.raises(InvalidRequestError, match="may lack committed records"):
        brokers.order(cluster.ELECT_LEADER, clean, at=other)
    words = ("cluster", "elect", "rare", "--leader", follower, "--unclean")
    told = brokers.run(*words, at=other)
    assert told.returncode == 0, told.stderr
    assert "RECORDS MAY BE LOST" in told.stderr
    brokers.until(lambda found: part(found, "rare").leader == follower, at=other)
    brokers.append("rare", "c")
    assert brokers.values("rare", follower, 2) == list("ac")
    # What comes back from before drops what only it had, and follows.
    brokers.running[leader].start()
    brokers.until(lambda found: set(part(found, "rare").isr) == {leader, follower}, at=other)
    assert brokers.values("rare", leader, 2) == list("ac")


def consume(brokers, server, count):
    """Join the group, consume this many records, commit; return their values."""

    def poll():
        values = []
        with (
            strandline.connect(server.flight, timeout_s=30) as client,
            client.consumer("g", "orders", session_timeout_s=6.0) as consumer,
        ):
            deadline = time.monotonic() + PATIENCE_S
            while len(values) < count and time.monotonic() < deadline:
                for batch in consumer.poll(0.5):
                    values += batch.records.column("value").to_pylist()
            consumer.commit()
        return [value.decode() for value in values]

    return brokers._persist(poll)


def test_streams_of_the_clusters_own_get_copies_on_brokers_that_join(brokers):
    """A group created on one broker survives that broker after two have joined."""
    brokers.found(1)
    brokers.create("orders")
    brokers.append("orders", *"abc")
    assert consume(brokers, brokers.running[1], 3) == list("abc")
    assert part(brokers.status(), "__groups").replicas == (1,)
    for number in (2, 3):
        brokers.command("cluster", "add", f"{number}=127.0.0.1:{brokers.ports[number]}")
        brokers.join(number, range(1, number + 1))
        brokers.until(lambda found, n=number: voters(found) == set(range(1, n + 1)))
    brokers.reassign(1, 2, 3)
    found = brokers.until(
        lambda found: is_whole(found) and {len(p.replicas) for p in found.partitions} == {3}
    )
    assert part(found, "__groups").leader is not None
    brokers.append("orders", "d")
    assert consume(brokers, brokers.running[2], 1) == ["d"]
    brokers.running[1].kill()
    brokers.append("orders", *"ef")
    assert consume(brokers, brokers.running[3], 2) == list("ef")
