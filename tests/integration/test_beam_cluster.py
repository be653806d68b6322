"""Beam's log on three brokers: the leader answers, and answered proposals survive it.

What the log does on one broker as on three is shown in ``beam/``.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import strandline
from strandline.errors import UnknownStreamError
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.testing import ProcessServer

IDS = (1, 2, 3)
TIMEOUT_S = 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def servers(tmp_path):
    """Three brokers; ``logs`` starts them."""
    ports = free_ports(3)
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, ports, strict=True))
    made = []
    for number, port in zip(IDS, ports, strict=True):
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(port), "--beam-port", "0")
        made.append(ProcessServer(tmp_path / f"broker-{number}", arguments=arguments))
    yield made
    for server in made:
        server.kill()
        print(server.data_dir.name, "said:", *server.errors, sep="\n")  # noqa: T201  if it fails


def start(servers):
    """Start brokers, all at once."""
    with ThreadPoolExecutor() as together:
        list(together.map(ProcessServer.start, servers))


@pytest.fixture
def logs(servers, grpc_stub):
    """The log as each broker serves it."""
    channels = []
    try:
        start(servers)
        addresses = [f"127.0.0.1:{server.ready['beam_port']}" for server in servers]
        channels += map(grpc.insecure_channel, addresses)
        service = pb.DESCRIPTOR.services_by_name["Log"]
        yield [grpc_stub(channel, service) for channel in channels]
    finally:
        for channel in channels:
            channel.close()


def leader(logs):
    """The log at the broker that leads, as soon as one does."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        for log in logs:
            try:
                if log.Info(pb.InfoRequest(), timeout=TIMEOUT_S).WhichOneof("reply") == "ok":
                    return log
            except grpc.RpcError:
                continue  # the stream is not there yet
        assert time.monotonic() < deadline, "nobody leads"
        time.sleep(0.05)


def append(log, *values):
    """Send one request, again while too few replicas are in sync; return the stored indexes."""
    request, deadline = pb.AppendRequest(sequence=1, proposals=values), time.monotonic() + TIMEOUT_S
    while True:
        try:
            [reply] = log.Append(iter([request]), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return list(reply.ok.indexes)


def test_the_log_has_three_copies_though_one_broker_starts_late(servers):
    """The stream is created when all brokers are there: with two it would keep two replicas."""
    start(servers[:2])
    flight = ",".join(server.flight for server in servers[:2])
    with strandline.connect(flight, timeout_s=TIMEOUT_S) as client:
        client.create_stream("other", replicas=2)  # both are in service
        time.sleep(2)  # they would have made it
        assert not is_made(client)
        servers[2].start()
        deadline = time.monotonic() + TIMEOUT_S
        while not is_made(client):
            assert time.monotonic() < deadline, "it is not made"
            time.sleep(0.1)
        assert client.stream_info("beam").config.replicas == len(IDS)


def is_made(client):
    """Whether the stream is there."""
    try:
        return bool(client.stream_info("beam"))
    except UnknownStreamError:
        return False


def test_who_does_not_lead_redirects(logs, servers):
    """Each call, to where the leader is dialled; nothing more comes on an Append then."""
    log = leader(logs)
    address = f"127.0.0.1:{servers[logs.index(log)].ready['beam_port']}"
    assert append(log, b"a") == [1]
    others = [other for other in logs if other is not log]
    for other in others:
        requests = [pb.AppendRequest(sequence=n, proposals=[b"x"]) for n in (1, 2)]
        appended = list(other.Append(iter(requests), timeout=TIMEOUT_S))
        read = list(other.Read(pb.ReadRequest(nextIndex=1), timeout=TIMEOUT_S))
        asked = [other.Info(pb.InfoRequest(), timeout=TIMEOUT_S)]
        for replies in (appended, read, asked):
            assert [reply.redirect.host for reply in replies] == [address]
        stale = other.Info(pb.InfoRequest(allowStale=True), timeout=TIMEOUT_S)
        assert stale.ok.lastIndex in (0, 1)
    assert log.Info(pb.InfoRequest(), timeout=TIMEOUT_S).ok.lastIndex == 1


def test_what_was_answered_survives_the_leader(logs, servers):
    """Thousands of proposals, one of megabytes, are all there under its successor."""
    log = leader(logs)
    values = [b"%d" % n for n in range(2000)] + [b"x" * 1_000_000]
    indexes = append(log, *values)
    assert indexes == list(range(1, 2002))
    servers[logs.index(log)].kill()
    left = [other for other in logs if other is not log]
    successor = leader(left)
    assert successor.Info(pb.InfoRequest(), timeout=TIMEOUT_S).ok.lastIndex == 2001
    found = []
    for reply in successor.Read(pb.ReadRequest(nextIndex=1), timeout=TIMEOUT_S):
        found += [(entry.index, entry.data) for entry in reply.ok.entries]
        if len(found) >= 2001:
            break
    assert found == list(zip(indexes, values, strict=True))
    assert append(successor, b"after") == [2002]


def test_discarding_beyond_the_end_is_for_the_leader(logs):
    """Readers and watchers are notified, and other brokers redirect clients."""
    log = leader(logs)
    assert append(log, b"a", b"b") == [1, 2]
    reading = log.Read(pb.ReadRequest(nextIndex=3), timeout=TIMEOUT_S)
    watching = log.InfoStream(pb.InfoRequest(), timeout=TIMEOUT_S)
    assert next(watching).ok.lastIndex == 2
    reply = log.Discard(pb.DiscardRequest(firstIndex=1000), timeout=TIMEOUT_S)
    assert reply.WhichOneof("reply") == "ok"
    assert next(reading).truncated
    assert any((i.ok.firstIndex, i.ok.lastIndex) == (1000, 999) for i in watching)
    watching.cancel()
    assert append(leader(logs), b"c") == [1000]
    for other in logs:
        if other is not log:
            reply = other.Discard(pb.DiscardRequest(firstIndex=2000), timeout=TIMEOUT_S)
            assert reply.WhichOneof("reply") == "redirect"
