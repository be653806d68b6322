"""Clients of three real brokers while leaders are killed and stopped: once, in order, no error.

One cluster for all stories, each with a stream of its own; whoever was killed is brought back.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import strandline
from strandline.api.cluster import CLUSTER_STATUS
from strandline.client.connection import BrokerConnection
from strandline.errors import (
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StrandlineError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.process.ports import free_ports
from strandline.record.schema import COLUMNS
from strandline.testing import ProcessServer
from tests.kit.clusters import figure
from tests.kit.waiting import until as wait_until

DELIVERED = "strandline_read_records_total"
IDS = (1, 2, 3)
PARTITIONS = 3
PATIENCE_S = 90
ROUNDS = int(os.environ.get("KILLS", "2"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "nats_publisher.py"
LEADS = re.compile(r"broker \d+ is (leading|no longer leading) the metadata, term (\d+)")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200 + ROUNDS * 60)]


class Cluster:
    """Three broker processes."""

    def __init__(self, directory):
        ports = free_ports(6)
        peers = ",".join(f"{n}=127.0.0.1:{ports[n - 1]}" for n in IDS)
        meeting = ",".join(f"{n}=127.0.0.1:{ports[n + 2]}" for n in IDS)
        self.servers = {}
        for number in IDS:
            arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
            arguments += ("--peer-port", str(ports[number - 1]), "--nats-peers", meeting)
            self.servers[number] = ProcessServer(
                directory / f"broker-{number}", arguments=arguments
            )

    def start(self):
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, self.servers.values()))

    @property
    def addresses(self):
        return ",".join(server.flight for server in self.servers.values())

    def by_address(self, address):
        return next(s for s in self.servers.values() if s.flight == address)

    def bring_back(self, server):
        """Start it, and wait until every copy of every stream is in sync again."""
        server.start()
        with strandline.connect(self.addresses) as client:
            until(lambda: all(in_sync(client, info.name) for info in client.list_streams()))


def in_sync(client, name):
    info = client.stream_info(name)
    return all(len(part.in_sync) == info.config.replicas for part in info.partitions)


until = partial(wait_until, seconds=PATIENCE_S, retried=StrandlineError)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        with strandline.connect(cluster.addresses) as client:
            until(lambda: len(client.server_info().brokers) == len(IDS))
        yield cluster
    finally:
        for number, server in cluster.servers.items():
            server.kill()
            print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails


@pytest.fixture
def client(cluster):
    with strandline.connect(cluster.addresses, timeout_s=30) as client:
        yield client


def create(client, name, *, partitions=PARTITIONS):
    client.create_stream(
        name, partitions=partitions, partition_by="key", replicas=3, min_isr=2, acks="replicated"
    )
    until(lambda: in_sync(client, name))


def leader(cluster, client, name, partition=0):
    """The process that leads a partition."""
    found = []
    until(lambda: found.append(client.stream_info(name).partitions[partition].leader) or found[-1])
    return cluster.by_address(found[-1])


def stored(client, name):
    """(offset, value) of every record, by partition."""
    found = {}
    for part in client.stream_info(name).partitions:
        rows = client.read(name, partition=part.partition, columns=["offset", "value"]).read_all()
        found[part.partition] = list(zip(*(c.to_pylist() for c in rows.columns), strict=True))
    return found


def test_a_leader_that_is_away_is_logged_once(cluster, client, caplog):
    """However many records of other partitions are acknowledged meanwhile; and its end.

    A producer that never knew a leader says so.
    """
    client.create_stream("away", partitions=PARTITIONS)
    until(lambda: in_sync(client, "away"))
    server = leader(cluster, client, "away")
    with client.producer("away", delivery_timeout_s=120) as producer:
        server.kill()
        waiting = producer.append(b"waits", partition=0)
        reached = time.monotonic() + 9
        while time.monotonic() < reached:
            for number in range(1, PARTITIONS):
                producer.append(b"v", partition=number)
            time.sleep(0.1)
        with (
            client.producer("away", delivery_timeout_s=7) as other,
            pytest.raises(NotLeaderError, match=r"away/0 has no leader; .*; it was not stored"),
        ):
            other.append(b"v", partition=0).result(PATIENCE_S)
        cluster.bring_back(server)
        waiting.result(PATIENCE_S)

    def told():
        texts = (each.getMessage() for each in caplog.records)
        return [text for text in texts if "records of away" in text]

    until(lambda: len(told()) == 4)  # the watchdog may still be at it
    begun, of_other, end_of_other, over = told()
    assert re.match(r"no ack for records of away in \d+ s; they time out in 11\d s: ", begun)
    assert re.match(r"no ack for .*; they time out in \d s: away/0 has no leader", of_other)
    assert re.match(r"records of away no longer wait for acks, after \d+ s; 1 of", end_of_other)
    assert re.match(r"records of away no longer wait for acks, after \d+ s; 0 of them", over)


class Work:
    """A producer that sends one record after another to each partition in rotation."""

    def __init__(self, client, name):
        self.futures = []
        """Future of each record, whose value is its place in this list."""
        self._client, self._name = client, name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with self._client.producer(self._name, linger_ms=1, delivery_timeout_s=120) as producer:
            while not self._stopping.wait(0.001):
                number = len(self.futures)
                value = b"%d" % number
                self.futures.append(producer.append(value, partition=number % PARTITIONS))

    def progress(self):
        """Wait until a record appended from now on to each partition is acked."""
        mark = len(self.futures)
        until(lambda: len(self.futures) >= mark + PARTITIONS)
        for future in self.futures[mark : mark + PARTITIONS]:
            future.exception(PATIENCE_S)

    @contextmanager
    def running(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def judge(self, log):
        """Every record was acked, and is where its ack said, once and in order."""
        acks = [future.result(0) for future in self.futures]
        for partition, records in log.items():
            numbers = [n for n in range(len(acks)) if n % PARTITIONS == partition]
            assert records == [(acks[n].offset, b"%d" % n) for n in numbers]
            assert [offset for offset, _ in records] == list(range(len(numbers)))


class Listener:
    """A subscriber that records what it receives."""

    def __init__(self, client, name, **options):
        self.seen = defaultdict(list)
        self.error = None
        self._subscription = client.subscribe(name, start="earliest", **options)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            for record in self._subscription:
                self.seen[record.partition].append((record.offset, record.value))
        except StrandlineError as error:
            self.error = error

    def judge(self, log):
        """It has seen everything, once and in order, and no error."""
        until(lambda: sum(map(len, self.seen.values())) >= sum(map(len, log.values())))
        self._subscription.close()
        self._thread.join(PATIENCE_S)
        assert self.error is None
        assert dict(self.seen) == log


def test_producers_and_subscribers_ride_through_lost_leaders(cluster, client):
    """Alternating kill -9 and SIGTERM of leaders: all records are acked, stored once, seen once."""
    create(client, "load")
    with strandline.connect(cluster.servers[2].flight, timeout_s=30) as another:
        listeners = [Listener(client, "load"), Listener(another, "load", replica="any")]
        with Work(client, "load").running() as work:
            for turn in range(ROUNDS):
                work.progress()
                victim = leader(cluster, client, "load")
                if turn % 2 == 0:
                    victim.kill()
                else:
                    assert victim.stop() == 0
                work.progress()
                cluster.bring_back(victim)
        log = stored(client, "load")
        work.judge(log)
        for listener in listeners:
            listener.judge(log)


def test_a_clean_stop_of_a_leader_is_not_noticed(cluster, client):
    """Appends, reads and queries get answers, also from a client with one address."""
    create(client, "calm", partitions=1)
    victim, codes = leader(cluster, client, "calm"), []
    with strandline.connect(victim.flight, timeout_s=30) as only:
        acks = [only.append("calm", b"0")]
        stopping = threading.Thread(target=lambda: codes.append(victim.stop()))
        stopping.start()
        while stopping.is_alive() or len(acks) < 20:
            acks.append(only.append("calm", b"%d" % len(acks)))
            assert only.offsets("calm")[0] >= len(acks) - 1
            assert only.wait_for("calm", {0: len(acks) - 1}, timeout_s=10)[0] >= len(acks)
        rows = only.read("calm", columns=["value"]).read_all()["value"].to_pylist()
        only.create_stream("made-meanwhile", replicas=2, acks="replicated")
    cluster.bring_back(victim)
    assert codes == [0]
    assert acks == list(range(len(acks)))
    assert rows == [b"%d" % number for number in range(len(acks))]
    client.delete_stream("made-meanwhile")


def controller(server):
    """The number of the controller, as a broker knows it; None: unknown."""
    connection = BrokerConnection(server.flight, timeout_s=30)
    try:
        [found] = connection.action(CLUSTER_STATUS, None)
    finally:
        connection.close()
    return found.controller


def elections(server):
    """The terms in which a broker that runs began (True) or ceased to lead the metadata."""
    said = (LEADS.search(line) for line in list(server.errors))
    return [(int(found[2]), found[1] == "leading") for found in said if found]


def test_a_clean_stop_of_the_controller_is_not_noticed(cluster, client):
    """It leads partitions and the metadata: it gives up both, and others need not miss it."""
    create(client, "handed-over")
    servers = cluster.servers
    until(lambda: controller(servers[1]) is not None)
    number = controller(servers[1])
    victim, others = servers[number], [s for n, s in servers.items() if n != number]
    led = [part.leader for part in client.stream_info("handed-over").partitions]
    assert victim.flight in led, "leaders are shared"
    with Work(client, "handed-over").running() as work:
        work.progress()
        assert victim.stop() == 0
        work.progress()
        successors = {controller(server) for server in others}
        assert successors <= servers.keys() - {number}, "each knows of another"
    work.judge(stored(client, "handed-over"))
    ended, was_leading = elections(victim)[-1]
    assert not was_leading, "it gave up the metadata before it ended"
    began = [term for server in others for term, leads in elections(server) if leads]
    assert ended in began, "by the election that it asked for: its last word is the new term"
    cluster.bring_back(victim)


def test_a_wait_notices_what_any_leader_stores(cluster, client):
    """Soon, though several leaders are asked one after another."""
    create(client, "waited")
    assert len({part.leader for part in client.stream_info("waited").partitions}) == PARTITIONS
    for number in range(PARTITIONS):
        ends, began_s = client.offsets("waited"), time.monotonic()
        later = threading.Timer(0.5, client.append, ("waited", b"news"), {"partition": number})
        later.start()
        found = client.wait_for("waited", ends, timeout_s=50)
        assert time.monotonic() - began_s < 25
        later.join()
        assert found == ends | {number: ends[number] + 1}
        past = {number: ends[number] + 1}
        assert client.wait_for("waited", past, timeout_s=0.1) == past, "it is not beyond that"


def test_reads_gather_partitions_from_their_leaders(cluster, client):
    """All of a stream, wherever it is led, in the shape that one broker gives it."""
    create(client, "wide")
    with client.producer("wide", linger_ms=0) as producer:
        for number in range(90):
            producer.append(b"%d" % number, partition=number % PARTITIONS)
    leaders = {part.leader for part in client.stream_info("wide").partitions}
    assert len(leaders) == PARTITIONS
    every = {p: [b"%d" % n for n in range(p, 90, PARTITIONS)] for p in range(PARTITIONS)}
    for replica in ("leader", "any"):
        found = client.read("wide", replica=replica).read_all()
        assert found.schema.names == ["partition", *COLUMNS]
        assert found["value"].to_pylist() == [*every[0], *every[1], *every[2]]
    for server in cluster.servers.values():
        delivered = figure(server, DELIVERED)
        with strandline.connect(server.flight) as near:
            rows = near.read("wide", replica="this").read_all()
            assert rows.to_pylist() == found.to_pylist()
        assert figure(server, DELIVERED) == delivered + 90
    assert client.offsets("wide") == dict.fromkeys(every, 30)
    some = client.read("wide", records_max=45, columns=["value", "partition"]).read_all()
    assert some.schema.names == ["value", "partition"]
    assert some["partition"].to_pylist() == [0] * 30 + [1] * 15
    rows = client.read("wide", starts={2: 25, 0: 28}, columns=["value"], follow=True, stop="latest")
    assert sorted(rows.read_all()["value"].to_pylist()) == sorted(every[0][28:] + every[2][25:])
    rows = client.read("wide", partition=1, start=10, stop=12).read_all()
    assert (rows.schema.names, rows["value"].to_pylist()) == (list(COLUMNS), every[1][10:12])
    assert client.read("wide", start="latest").read_all().num_rows == 0
    for replica in ("leader", "any"):
        down = client.read("wide", order="descending", replica=replica).read_all()
        assert down["value"].to_pylist() == [*every[0][::-1], *every[1][::-1], *every[2][::-1]]
        last = client.read("wide", start=-2, replica=replica).read_all()
        assert last["value"].to_pylist() == [*every[0][-2:], *every[1][-2:], *every[2][-2:]]
    with client.subscribe("wide", start=-3, partition=1) as followed:
        assert [next(followed).value for _ in range(3)] == every[1][-3:]
    assert client.wait_for("wide", dict.fromkeys(every, 30), timeout_s=0.1) == client.offsets(
        "wide"
    )
    for wrong, error in (
        ({"partition": 0, "start": 31}, OffsetOutOfRangeError),
        ({"partition": 3}, UnknownPartitionError),
        ({"start": 5}, InvalidRequestError),
        ({"columns": ["no"]}, InvalidRequestError),
    ):
        with pytest.raises(error):
            client.read("wide", **wrong)
    with pytest.raises(UnknownStreamError):
        client.read("nothing")


@pytest.mark.parametrize(
    ("replica", "order"), [("leader", "ascending"), ("any", "ascending"), ("leader", "descending")]
)
def test_a_long_read_continues_at_another_replica(cluster, client, replica, order):
    """In the middle of a kill -9 of the broker that serves it: no record twice, none left out."""
    name = f"long-{replica}-{order}"
    create(client, name, partitions=1)
    with client.producer(name) as producer:
        for number in range(60):
            producer.append(b"%d:" % number + bytes(300_000))
    with strandline.connect(cluster.addresses, timeout_s=30) as reader:
        victim = leader(cluster, reader, name)
        if replica == "any":
            victim = cluster.by_address(reader.address)  # it is read where it is asked
        batches = reader.read(
            name, columns=["value"], replica=replica, order=order, batch_bytes=1 << 20
        )
        found = batches.read_next_batch()["value"].to_pylist()
        victim.kill()
        for batch in batches:
            assert batch.schema.names == ["value"]
            found += batch["value"].to_pylist()
    cluster.bring_back(victim)
    numbers = [int(value.split(b":")[0]) for value in found]
    assert numbers == list(range(60))[:: -1 if order == "descending" else 1]


def test_a_read_of_one_copy_waits_for_its_broker(cluster, client):
    """A follower is killed in the middle and comes back: it alone serves, each record once."""
    create(client, "one-copy", partitions=1)
    with client.producer("one-copy") as producer:
        for number in range(60):
            producer.append(b"%d:" % number + bytes(300_000))
    leads = leader(cluster, client, "one-copy")
    victim, other = (server for server in cluster.servers.values() if server is not leads)
    with strandline.connect(victim.flight, timeout_s=60) as reader:
        options = {"follow": True, "stop": 60, "batch_bytes": 1 << 20}  # not from its files
        batches = reader.read("one-copy", columns=["value"], replica="this", **options)
        found = batches.read_next_batch()["value"].to_pylist()
        before = [figure(server, DELIVERED) for server in (leads, other)]
        victim.kill()
        returning = threading.Thread(target=cluster.bring_back, args=(victim,))
        returning.start()
        for batch in batches:
            found += batch["value"].to_pylist()
        returning.join()
    assert [int(value.split(b":")[0]) for value in found] == list(range(60))
    assert [figure(server, DELIVERED) for server in (leads, other)] == before
    assert figure(victim, DELIVERED) > 0, "it served the rest after its return"


def test_every_copy_counts_the_records_that_readers_see(cluster, client):
    """No markers of transactions, and nothing aborted, also under another leader."""
    create(client, "counted", partitions=1)
    client.append("counted", b"plain")
    with client.transaction("counting-1") as transaction:
        transaction.append("counted", b"in")
    with suppress(ValueError), client.transaction("counting-2") as transaction:
        transaction.append("counted", b"out").result()
        raise ValueError

    def counts():
        for server in cluster.servers.values():
            with strandline.connect(server.flight) as one:
                yield from (
                    part.records
                    for info in one.list_streams()
                    for part in info.partitions
                    if info.name == "counted"
                )

    until(lambda: list(counts()) == [2, 2, 2])
    victim = leader(cluster, client, "counted")
    victim.kill()
    cluster.bring_back(victim)
    client.append("counted", b"more")
    until(lambda: list(counts()) == [3, 3, 3])


def test_the_example_of_a_nats_publisher_is_stored_once(cluster, client):
    """Stock nats-py with Nats-Msg-Id through the kill of the leader: no loss, no second copy."""
    count = 200
    create(client, "events", partitions=1)
    victim = leader(cluster, client, "events")
    urls = [server.nats_url for server in (victim, *cluster.servers.values())]
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "events", str(count), *urls], stdout=subprocess.PIPE, text=True
    ) as publisher:
        try:
            lines = [publisher.stdout.readline() for _ in range(count // 2)]
            victim.kill()
            lines += publisher.stdout.readlines()
        except BaseException:
            publisher.kill()
            raise
    cluster.bring_back(victim)
    assert publisher.returncode == 0
    assert stored(client, "events")[0] == [(n, b"%d" % n) for n in range(count)]
    assert lines == [f"{n} is record {n + 1}\n" for n in range(count)]
