"""Liftbridge's API on three real brokers: any of them takes publishes, also after a kill."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.server.ports import free_ports
from strandline.testing import ProcessServer

IDS = (1, 2, 3)
PATIENCE_S = 90
TIMEOUT_S = 40
pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


class Cluster:
    """Three broker processes and a client of each."""

    def __init__(self, directory, grpc_stub):
        ports = free_ports(3)
        peers = ",".join(f"{n}=127.0.0.1:{ports[n - 1]}" for n in IDS)
        self.servers = {}
        for number in IDS:
            arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
            arguments += ("--peer-port", str(ports[number - 1]), "--grpc-port", "0")
            self.servers[number] = ProcessServer(
                directory / f"broker-{number}", arguments=arguments
            )
        self._stub = grpc_stub
        self._channels = []
        self.api = {}

    def start(self):
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, self.servers.values()))
        for number, server in self.servers.items():
            channel = grpc.insecure_channel(f"127.0.0.1:{server.ready['grpc_port']}")
            self._channels.append(channel)
            self.api[number] = self._stub(channel, pb.DESCRIPTOR.services_by_name["API"])

    def stop(self):
        for channel in self._channels:
            channel.close()
        for number, server in self.servers.items():
            server.kill()
            print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails

    def metadata(self, number, *, groups=()):
        request = pb.FetchMetadataRequest(groups=groups)
        return self.api[number].FetchMetadata(request, timeout=TIMEOUT_S)

    def leader(self, number, stream):
        """The leader of a stream's partition 0, as a broker knows it; None: nobody."""
        streams = {s.name: s for s in self.metadata(number).streamMetadata}
        found = streams[stream].partitions[0].leader if stream in streams else ""
        return int(found) if found else None


def until(condition):
    """Wait for something to become true; a failing call means not yet."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except grpc.RpcError:
            pass  # not yet
        time.sleep(0.05)
    pytest.fail("it did not happen in time")


def code_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def read(api, stream, count, **fields):
    """The first records of a stream."""
    request = pb.SubscribeRequest(
        stream=stream,
        startPosition=pb.EARLIEST,
        stopPosition=pb.STOP_OFFSET,
        stopOffset=count - 1,
        **fields,
    )
    found = []
    try:
        found.extend(api.Subscribe(request, timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
    return found[1:]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, grpc_stub):
    cluster = Cluster(tmp_path_factory.mktemp("liftbridge"), grpc_stub)
    try:
        cluster.start()
        for number in IDS:
            until(lambda n=number: len(cluster.metadata(n).brokers) == len(IDS))
            until(lambda n=number: cluster.leader(n, "__cursors"))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def stream(cluster):
    """A stream with a copy on each broker."""
    request = pb.CreateStreamRequest(name="s", subject="s", replicationFactor=-1)
    request.minIsr.value = 2
    cluster.api[2].CreateStream(request, timeout=TIMEOUT_S)
    for number in IDS:
        until(lambda n=number: cluster.leader(n, "s"))
    return "s"


def test_every_broker_lists_those_that_can_be_dialled(cluster):
    """With the addresses that clients connect to, and what they keep and lead."""
    for number in IDS:
        brokers = cluster.metadata(number).brokers
        assert [broker.id for broker in brokers] == ["1", "2", "3"]
        ports = [cluster.servers[n].ready["grpc_port"] for n in IDS]
        assert [broker.port for broker in brokers] == ports


def test_any_broker_takes_any_publish(cluster, stream):
    """Acknowledged when all replicas have it; every replica in sync serves it, in one order."""
    for number in IDS:
        requests = (
            pb.PublishRequest(
                stream=stream,
                value=b"%d-%d" % (number, n),
                key=b"k",
                headers={"h": b"1"},
                correlationId=str(n),
                ackPolicy=pb.ALL,
            )
            for n in range(20)
        )
        responses = list(cluster.api[number].PublishAsync(requests, timeout=TIMEOUT_S))
        assert not [r for r in responses if r.HasField("asyncError")]
        assert [r.correlationId for r in responses] == [str(n) for n in range(20)]
        single = pb.PublishRequest(stream=stream, value=b"%d-20" % number, ackPolicy=pb.ALL)
        assert cluster.api[number].Publish(single, timeout=TIMEOUT_S).ack.stream == stream
        subject = pb.PublishToSubjectRequest(subject="s", value=b"%d-21" % number)
        assert cluster.api[number].PublishToSubject(subject, timeout=TIMEOUT_S).ack.stream == "s"
    leader = cluster.leader(1, stream)
    expected = [b"%d-%d" % (number, n) for number in IDS for n in range(22)]
    messages = read(cluster.api[leader], stream, len(expected))
    assert [message.value for message in messages] == expected
    assert (messages[0].key, messages[0].headers["h"]) == (b"k", b"1")
    for number in set(IDS) - {leader}:
        api = cluster.api[number]
        refused = code_of(lambda api=api: read(api, stream, 1))
        assert refused is grpc.StatusCode.FAILED_PRECONDITION
        copies = read(api, stream, len(expected), readISRReplica=True)
        assert [message.value for message in copies] == expected


def test_cursors_are_with_the_leader_of_their_partition(cluster):
    """The others send clients away; what the leader acknowledged every copy has."""
    leader = cluster.leader(1, "__cursors")
    where = {"stream": "s", "partition": 0, "cursorId": "c"}
    request = pb.SetCursorRequest(offset=7, **where)
    cluster.api[leader].SetCursor(request, timeout=TIMEOUT_S)
    fetch = pb.FetchCursorRequest(**where)
    assert cluster.api[leader].FetchCursor(fetch, timeout=TIMEOUT_S).offset == 7
    other = cluster.api[next(n for n in IDS if n != leader)]
    refused = code_of(lambda: other.FetchCursor(fetch, timeout=TIMEOUT_S))
    assert refused is grpc.StatusCode.FAILED_PRECONDITION


def test_a_killed_broker_is_done_without(cluster, stream):
    """The group gets a new coordinator, the stream a new leader; nothing acknowledged is lost."""
    join = pb.JoinConsumerGroupRequest(groupId="g", consumerId="m", streams=[stream])
    joined = cluster.api[1].JoinConsumerGroup(join, timeout=TIMEOUT_S)
    victim = int(joined.coordinator)
    survivors = [n for n in IDS if n != victim]
    fetch = pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="m", epoch=joined.epoch)
    until(lambda: cluster.api[victim].FetchConsumerGroupAssignments(fetch, timeout=TIMEOUT_S))
    elsewhere = cluster.api[survivors[0]]
    until(lambda: cluster.metadata(survivors[0], groups=["g"]).groupMetadata[0].error == 0)
    refused = code_of(lambda: elsewhere.FetchConsumerGroupAssignments(fetch, timeout=TIMEOUT_S))
    assert refused is grpc.StatusCode.FAILED_PRECONDITION
    cluster.servers[victim].kill()
    for number in survivors:
        until(lambda n=number: len(cluster.metadata(n).brokers) == len(IDS) - 1)
        until(lambda n=number: cluster.leader(n, stream) in survivors)
        until(lambda n=number: cluster.leader(n, "__cursors") in survivors)
    report = pb.ReportConsumerGroupCoordinatorRequest(
        groupId="g", consumerId="m", coordinator=str(victim), epoch=joined.epoch
    )
    until(lambda: elsewhere.ReportConsumerGroupCoordinator(report, timeout=TIMEOUT_S) is not None)
    until(
        lambda: (
            cluster.metadata(survivors[0], groups=["g"]).groupMetadata[0].coordinator
            in map(str, survivors)
        )
    )
    group = cluster.metadata(survivors[0], groups=["g"]).groupMetadata[0]
    fetch.epoch = group.epoch
    coordinator = cluster.api[int(group.coordinator)]
    until(lambda: coordinator.FetchConsumerGroupAssignments(fetch, timeout=TIMEOUT_S))
    for number in survivors:
        request = pb.PublishRequest(stream=stream, value=b"after", headers={"Nats-Msg-Id": b"1"})
        until(lambda n=number, r=request: cluster.api[n].Publish(r, timeout=TIMEOUT_S))
    leader = cluster.leader(survivors[0], stream)
    values = [message.value for message in read(cluster.api[leader], stream, 67)]
    assert values[:66] == [b"%d-%d" % (number, n) for number in IDS for n in range(22)]
    assert values[66:] == [b"after"]
    cursors = cluster.api[cluster.leader(survivors[0], "__cursors")]
    where = pb.FetchCursorRequest(stream="s", partition=0, cursorId="c")
    assert cursors.FetchCursor(where, timeout=TIMEOUT_S).offset == 7
