"""The promises of a cluster to clients and operators, shown on three real brokers.

One cluster for all of it, each test with a stream of its own; who was killed is brought back.
"""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, contextmanager

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import strandline
from strandline.api import admin
from strandline.api.cluster import CLUSTER_STATUS
from strandline.broker.cluster.watermark_file import FILE_NAME, load_watermarks
from strandline.client.connection import BrokerConnection
from strandline.errors import InvalidRequestError, NotEnoughReplicasError, UnavailableError
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.storage.disk import Disk
from strandline.testing import ProcessServer
from strandline.testing.replica import ReplicaReader
from tests.kit.clusters import IDS, WITH_HTTP, three_brokers

SOON_S = 20
"""For an ack that waits for nobody, on a busy machine."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Cluster:
    """Three brokers, and a client of all of them."""

    def __init__(self, servers, peer_ports, client, *, persist):
        self.servers = servers
        self.peer_ports = peer_ports
        self.client = client
        self.persist = persist

    def create(self, name, **settings):
        """Create a stream; its name, once all copies are in sync."""
        settings = {"replicas": 3, "min_isr": 2, **settings}
        self.persist(lambda: self.client.create_stream(name, **settings))
        self.wait_until_whole(name)
        return name

    def wait_until_whole(self, name):
        """Wait until each partition of a stream has a leader and all its copies in sync."""

        def look():
            info = self.client.stream_info(name)
            for part in info.partitions:
                assert part.leader
                assert len(part.in_sync) == info.config.replicas

        self.persist(look)

    def at(self, address):
        """The broker with a Flight address."""
        return next(server for server in self.servers.values() if server.flight == address)

    def leader(self, name):
        """Return the leader of partition 0."""
        return self.at(self.persist(lambda: self._leader_address(name)))

    def _leader_address(self, name):
        address = self.client.stream_info(name).partitions[0].leader
        assert address, "nobody yet"
        return address

    def number(self, server):
        """Of a broker."""
        return next(number for number, each in self.servers.items() if each is server)

    def but(self, *some):
        """The other brokers."""
        return [server for server in self.servers.values() if server not in some]

    def values(self, name):
        """Of every record, as the leader has them."""
        return self.client.read(name, columns=["value"]).read_all()["value"].to_pylist()


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    directory, ports = tmp_path_factory.mktemp("promises"), free_ports(len(IDS))
    with three_brokers(directory, ports=ports, more=("--grpc-port", "0", *WITH_HTTP)) as servers:
        addresses = ",".join(server.flight for server in servers.values())
        with strandline.connect(addresses, timeout_s=30) as client:
            yield servers, ports, client


@pytest.fixture
def brokers(started, kit):
    """The cluster; brokers that a failed test left stopped are restarted."""
    cluster = Cluster(*started, persist=kit.persist)
    yield cluster
    for server in cluster.servers.values():
        if not server.is_running:
            server.start()


@contextmanager
def paused(servers):
    """Pause the brokers, and resume them at the end."""
    for server in servers:
        server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            server.signal(signal.SIGCONT)


# Acks


def test_a_publish_that_asks_for_less_waits_for_no_follower(brokers):
    """With both followers paused: acked as ``disk`` and ``memory``, not as ``replicated``."""
    name = brokers.create("asked")
    leader = brokers.leader(name)
    with ExitStack() as stack:
        client = stack.enter_context(strandline.connect(leader.flight))
        copied, on_disk, in_memory = (
            stack.enter_context(client.producer(name, acks=acks, linger_ms=0))
            for acks in ("replicated", "disk", "memory")
        )
        for producer in (copied, on_disk, in_memory):
            producer.append(b"before").result(SOON_S)
        with paused(brokers.but(leader)):
            held = copied.append(b"held")
            brokers.persist(lambda: has_reached(leader, name, 4))
            assert on_disk.append(b"on disk").result(SOON_S).offset == 4
            assert in_memory.append(b"in memory").result(SOON_S).offset == 5
            assert not held.done()
            with ReplicaReader(leader.flight) as replica:
                assert replica.ends(name)[0] <= 3, "what followers lack is not committed"
        assert held.result(60).offset == 3
    assert brokers.values(name) == [b"before"] * 3 + [b"held", b"on disk", b"in memory"]


def has_reached(server, name, end):
    """Whether a broker's log has this many records, committed or not."""
    with closing(BrokerConnection(server.flight, timeout_s=10)) as connection:
        body = admin.StreamInfoRequest(name=name)
        [info] = connection.action(admin.STREAM_INFO, body)
    assert info.partitions[0].log_end_offset == end


@pytest.mark.parametrize("acks", ["disk", "memory"])
def test_the_publishes_of_a_stream_that_promises_less_wait_for_no_follower(brokers, acks):
    """They are acked while both followers are paused, and committed when these resume."""
    name = brokers.create(f"of-{acks}", acks=acks)
    leader = brokers.leader(name)
    with strandline.connect(leader.flight) as client:
        client.append(name, b"before")
        with paused(brokers.but(leader)):
            assert client.append(name, b"alone", timeout_s=SOON_S).offset == 1
            with ReplicaReader(leader.flight) as replica:
                assert replica.ends(name)[0] <= 1
    for server in brokers.servers.values():
        assert brokers.persist(lambda s=server: copy_of(s, name, 2)) == [b"before", b"alone"]


def copy_of(server, name, count):
    """Return this many records of this broker only, once it knows that they are committed."""
    with ReplicaReader(server.flight) as replica:
        assert replica.ends(name)[0] == count
        batches = replica.read(name)
        return [value for batch in batches for value in batch["value"].to_pylist()]


def test_the_policies_of_liftbridge_mean_the_same(brokers, grpc_stub):
    """With both followers paused LEADER is answered, ALL when they resume."""
    name = brokers.create("policies")
    leader = brokers.leader(name)
    with grpc.insecure_channel(f"127.0.0.1:{leader.ready['grpc_port']}") as channel:
        api = grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])

        def publish(policy):
            request = pb.PublishRequest(stream=name, value=b"x", ackPolicy=policy)
            return api.Publish.future(request, timeout=60)

        publish(pb.ALL).result()
        with paused(brokers.but(leader)):
            held = publish(pb.ALL)
            brokers.persist(lambda: has_reached(leader, name, 2))
            assert publish(pb.LEADER).result(SOON_S).ack.offset == 2
            assert not held.done()
        assert held.result(60).ack.offset == 1


def test_with_too_few_copies_no_level_is_acked(brokers):
    """Below ``min_isr`` every publish is rejected with the reason, until the replica is back."""
    name = brokers.create("guarded", min_isr=3)
    leader = brokers.leader(name)
    [away, _] = brokers.but(leader)
    away.kill()
    try:
        for acks in ("replicated", "disk", "memory"):
            why = brokers.persist(lambda a=acks: rejection_of(leader, name, a))
            assert f"fewer than 3 replicas of {name}/0 are in sync" in why
    finally:
        away.start()
    brokers.wait_until_whole(name)
    number = brokers.client.append(name, b"again").offset
    assert brokers.values(name)[number] == b"again"


def test_without_most_of_the_brokers_clients_are_told_so(brokers):
    """The remaining broker reports the lost majority, as far as it knows."""
    name = brokers.create("left-alone")
    left = brokers.leader(name)
    dead = brokers.but(left)
    with strandline.connect(left.flight) as client, client.producer(name) as producer:
        client.stream_info(name)  # knows the others from here on
        for server in dead:
            server.kill()
        try:
            ack = producer.append(b"to whom?")
            for attempt in (lambda: client.create_stream("one-more"), lambda: ack.result(60)):
                with pytest.raises(UnavailableError, match="most of the cluster's brokers up"):
                    attempt()
        finally:
            for server in dead:
                server.start()
    brokers.wait_until_whole(name)


def rejection_of(server, name, acks):
    """Return the rejection of a publish at a leader; fail while it is accepted, or waits."""
    with strandline.connect(server.flight) as client:
        producer = client.producer(name, acks=acks, delivery_timeout_s=1, linger_ms=0)
        with closing(producer):
            error = producer.append(b"x").exception(SOON_S)
        assert isinstance(error, NotEnoughReplicasError), error
        assert "unknown" not in error.message, error
        return error.message


@pytest.mark.parametrize(("promised", "asked"), [("disk", "replicated"), ("memory", "disk")])
def test_a_publish_cannot_ask_for_more_than_the_stream_promises(brokers, promised, asked):
    """The rejection names both levels."""
    name = brokers.create(f"more-than-{promised}", acks=promised)
    with brokers.client.producer(name, acks=asked) as producer:
        error = producer.append(b"x").exception(SOON_S)
    assert isinstance(error, InvalidRequestError)
    assert f"'{asked}'" in error.message
    assert f"'{promised}'" in error.message
    assert brokers.values(name) == []


# Stock clients of Arrow Flight

PATIENTLY = fl.FlightCallOptions(timeout=10)


class StockClient:
    """Plain pyarrow: follows GetFlightInfo, and asks again after a failure."""

    def __init__(self, addresses):
        self._seeds = [f"grpc+tcp://{address}" for address in addresses]

    def _endpoint(self, stream):
        """Return the endpoint of partition 0, according to any broker."""
        for seed in self._seeds:
            try:
                return endpoint_told_by(seed, stream)
            except (fl.FlightError, pa.ArrowException):
                continue  # the next may know
        raise fl.FlightUnavailableError("nobody answers")

    def append(self, stream, number):
        """Append a record, which is stored once however often; the offset of it."""
        location = self._endpoint(stream).locations[0]
        command = json.dumps({"stream": stream, "partition": 0}).encode()
        batch = pa.record_batch({"value": [b"%d" % number], "message_id": [f"id-{number}"]})
        with fl.connect(location) as client:
            descriptor = fl.FlightDescriptor.for_command(command)
            writer, reader = client.do_put(descriptor, batch.schema, PATIENTLY)
            with writer:
                writer.write_batch(batch)
                writer.done_writing()
                answer = reader.read()
        if answer is None:
            raise fl.FlightUnavailableError("no ack")
        ack = json.loads(answer.to_pybytes())
        if "error" in ack:
            raise fl.FlightServerError(ack["error"]["message"])
        return ack["offsets"][0]

    def read(self, stream, location):
        """Return every value up to the leader's end, at one of the endpoint's locations."""
        endpoint = endpoint_told_by(self._endpoint(stream).locations[0], stream)
        with fl.connect(endpoint.locations[location]) as client:
            return client.do_get(endpoint.ticket, PATIENTLY).read_all()["value"].to_pylist()


def endpoint_told_by(location, stream):
    """Return the endpoint of partition 0, according to a broker."""
    descriptor = fl.FlightDescriptor.for_path(stream, "0")
    with fl.connect(location) as client:
        return client.get_flight_info(descriptor, PATIENTLY).endpoints[0]


def retried(kit, attempt):
    """Try until it works, as every client of a cluster has to."""

    def once():
        try:
            return attempt()
        except (fl.FlightError, pa.ArrowException) as error:
            raise UnavailableError(str(error)) from error

    return kit.persist(once)


def test_a_stock_flight_client_follows_the_leader_through_a_kill(brokers, kit):
    """It appends and reads by GetFlightInfo's locations: all is there, once and in order."""
    name = brokers.create("stock")
    stock = StockClient([server.flight for server in brokers.servers.values()])
    victim = brokers.leader(name)
    offsets = []
    for number in range(40):
        if number == 20:
            victim.kill()
        offsets.append(retried(kit, lambda n=number: stock.append(name, n)))
    assert offsets == list(range(40))
    expected = [b"%d" % number for number in range(40)]
    assert retried(kit, lambda: stock.read(name, 0)) == expected
    assert brokers.leader(name) is not victim
    victim.start()
    brokers.wait_until_whole(name)
    for location in range(len(IDS)):
        assert retried(kit, lambda at=location: stock.read(name, at)) == expected


# Operators


def test_truncating_is_ordered_at_any_broker(brokers):
    """By the command line and by a client with one address, whichever broker leads."""
    name = brokers.create("shortened")
    for number in range(12):
        brokers.client.append(name, b"%d" % number)
    for number, server in enumerate(brokers.servers.values(), 1):
        order = (
            "stream",
            "delete-records",
            name,
            "--before",
            str(2 * number),
            "--server",
            server.flight,
        )
        done = subprocess.run(
            [sys.executable, "-m", "strandline.cli", *order],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == f"{name}/0 now starts at offset {2 * number}"
    for number, server in enumerate(brokers.servers.values(), 7):
        with strandline.connect(server.flight) as client:
            assert client.delete_records(name, number).partitions[0].log_start_offset == number
    assert brokers.values(name) == [b"9", b"10", b"11"]


def test_a_second_broker_of_a_number_is_kept_out(brokers, tmp_path):
    """It logs the reason and never gets ready; the first one leads on, in the same epoch."""
    name = brokers.create("undisturbed")
    first = brokers.leader(name)
    before = part_of(first, name)
    second = second_of(brokers, first, tmp_path)
    try:
        second.start()
        brokers.persist(lambda: is_told_why(second, brokers, first))
        for number in range(20):
            assert brokers.client.append(name, b"x", timeout_s=5).offset == number
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{second.http_url}/health/ready", timeout=10)
    finally:
        second.kill()
    assert part_of(first, name) == before
    assert brokers.values(name) == [b"x"] * 20


def part_of(server, name):
    """Return a broker's view of partition 0: leader, epoch, in-sync replicas."""
    with closing(BrokerConnection(server.flight, timeout_s=5)) as connection:
        [found] = connection.action(CLUSTER_STATUS, None)
    return next(part for part in found.partitions if part.stream == name)


def second_of(brokers, first, directory):
    """Another process, with a directory and a peer port of its own, under a broker's number."""
    number = brokers.number(first)
    [port] = free_ports(1)
    ports = {**dict(zip(IDS, brokers.peer_ports, strict=True)), number: port}
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in ports.items())
    arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
    return ProcessServer(directory, arguments=(*arguments, "--peer-port", str(port)))


def is_told_why(second, brokers, first):
    """Whether its log has the others' rejection."""
    number = brokers.number(first)
    told = "".join(second.errors)
    for other in IDS:
        if other != number:
            assert f"rejected by broker {other}: broker {number} has another data directory" in told
    assert "give a second broker a number of its own" in told


def test_a_restarted_copy_serves_what_it_knew_to_be_committed(brokers):
    """According to its checkpoint, without a leader; without the checkpoint it serves nothing."""
    name = brokers.create("checkpointed", replicas=2, min_isr=1)
    leader = brokers.leader(name)
    [copy] = [brokers.at(a) for a in brokers.client.stream_info(name).partitions[0].in_sync
              if a != leader.flight]  # fmt: skip
    for number in range(37):
        brokers.client.append(name, b"%d" % number)

    def is_checkpointed():
        assert 37 in load_watermarks(copy.data_dir, disk=Disk()).values()

    def is_out():
        [partition] = brokers.client.stream_info(name).partitions
        assert partition.in_sync == (leader.flight,), "or it may lead"

    brokers.persist(is_checkpointed)
    copy.kill()
    brokers.persist(is_out)
    leader.kill()
    copy.start()
    try:
        expected = [b"%d" % number for number in range(37)]
        assert brokers.persist(lambda: copy_of(copy, name, 37)) == expected
        copy.kill()
        (copy.data_dir / FILE_NAME).unlink()
        copy.start()
        assert brokers.persist(lambda: copy_of(copy, name, 0)) == []
    finally:
        leader.start()
    brokers.wait_until_whole(name)
    assert brokers.persist(lambda: copy_of(copy, name, 37)) == expected
