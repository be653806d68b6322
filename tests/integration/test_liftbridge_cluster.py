"""Liftbridge's API on three real brokers: any of them takes publishes, also after a kill."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pytest

from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import ProcessServer
from tests.kit.waiting import until as wait_until

IDS = (1, 2, 3)
PATIENCE_S = 90
TIMEOUT_S = 40
SETTINGS = {
    "STRANDLINE_GRPC__ACTIVITY": "true",
    # A member is not taken for dead while the machine is slow.
    "STRANDLINE_GRPC__CONSUMER_TIMEOUT_MS": "300000",
}
EXPECTED = [b"%d-%d" % (number, n) for number in IDS for n in range(22)]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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
                directory / f"broker-{number}", arguments=arguments, environment=SETTINGS
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
        """Return the leader of a stream's partition 0, as a broker knows it; None: none."""
        streams = {s.name: s for s in self.metadata(number).streamMetadata}
        found = streams[stream].partitions[0].leader if stream in streams else ""
        return int(found) if found else None


until = partial(wait_until, seconds=PATIENCE_S, retried=grpc.RpcError)


def code_of(call):
    """Return the status that a call ends with; None for success."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return None


def publish(api, values):
    """Publish until everything is acknowledged; an id makes a retry the same record."""
    left = list(values)

    def attempt():
        requests = [
            pb.PublishRequest(
                stream="s",
                value=value,
                key=b"k",
                headers={"h": b"1", "Nats-Msg-Id": value},
                correlationId=value.decode(),
                ackPolicy=pb.ALL,
            )
            for value in left
        ]
        for response in api.PublishAsync(iter(requests), timeout=TIMEOUT_S):
            if not response.HasField("asyncError"):
                left.remove(response.correlationId.encode())
        return not left

    until(attempt)


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
            until(lambda n=number: cluster.leader(n, "__activity"))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def stream(cluster):
    """A stream with a copy on each broker."""
    request = pb.CreateStreamRequest(name="s", subject="s", replicationFactor=-1)
    request.minIsr.value = 2
    created = (None, grpc.StatusCode.ALREADY_EXISTS)
    until(
        lambda: code_of(lambda: cluster.api[2].CreateStream(request, timeout=TIMEOUT_S)) in created
    )
    for number in IDS:
        until(lambda n=number: cluster.leader(n, "s"))
    return "s"


def test_every_broker_lists_those_that_can_be_dialled(cluster):
    """With the clients' addresses, and their numbers of replicas and leaderships."""
    for number in IDS:
        brokers = cluster.metadata(number).brokers
        assert [broker.id for broker in brokers] == ["1", "2", "3"]
        ports = [cluster.servers[n].ready["grpc_port"] for n in IDS]
        assert [broker.port for broker in brokers] == ports


def test_any_broker_takes_any_publish(cluster, stream):
    """Acknowledged when all replicas have it; every replica in sync serves it, in one order."""
    for number in IDS:
        api = cluster.api[number]
        publish(api, [b"%d-%d" % (number, n) for n in range(20)])
        single = pb.PublishRequest(
            stream=stream, value=b"%d-20" % number, headers={"Nats-Msg-Id": b"20-%d" % number}
        )
        until(lambda a=api, r=single: a.Publish(r, timeout=TIMEOUT_S).ack.stream == stream)
        subject = pb.PublishToSubjectRequest(
            subject="s", value=b"%d-21" % number, headers={"Nats-Msg-Id": b"21-%d" % number}
        )
        until(lambda a=api, r=subject: a.PublishToSubject(r, timeout=TIMEOUT_S).ack.stream == "s")
    expected = sorted(EXPECTED)
    logs = {}

    def log_of(number):
        logs[number] = read(cluster.api[number], stream, len(expected), readISRReplica=True)
        return len(logs[number]) == len(expected)

    for number in IDS:
        until(lambda n=number: log_of(n))
        assert [m.value for m in logs[number]] == [m.value for m in logs[1]]
    assert sorted(message.value for message in logs[1]) == expected
    assert (logs[1][0].key, logs[1][0].headers["h"]) == (b"k", b"1")

    def a_follower_sends_away():
        leader = cluster.leader(1, stream)
        api = cluster.api[next(n for n in IDS if n != leader)]
        return code_of(lambda: read(api, stream, 1)) is grpc.StatusCode.FAILED_PRECONDITION

    until(a_follower_sends_away)


def test_a_stream_is_known_at_any_broker_as_soon_as_it_was_created(cluster, stream):
    """Any first call at any other broker knows it."""

    def published(api, name):
        request = pb.PublishRequest(stream=name, value=b"v")
        return api.Publish(request, timeout=TIMEOUT_S).ack.stream

    def published_on_a_stream(api, name):
        [answer] = api.PublishAsync(iter([pb.PublishRequest(stream=name)]), timeout=TIMEOUT_S)
        return answer.ack.stream

    def published_to_its_subject(api, name):
        request = pb.PublishToSubjectRequest(subject=name, value=b"v")
        return api.PublishToSubject(request, timeout=TIMEOUT_S).ack.stream

    def described(api, name):
        [found] = api.FetchMetadata(
            pb.FetchMetadataRequest(streams=[name]), timeout=TIMEOUT_S
        ).streamMetadata
        return name if found.error == pb.StreamMetadata.OK else found.error

    def made_readonly(api, name):
        api.SetStreamReadonly(pb.SetStreamReadonlyRequest(name=name), timeout=TIMEOUT_S)
        return name

    def deleted(api, name):
        api.DeleteStream(pb.DeleteStreamRequest(name=name), timeout=TIMEOUT_S)
        return name

    uses = (published, published_on_a_stream, published_to_its_subject, described)
    for use in (*uses, made_readonly, deleted):
        for at in IDS:
            for other_id in set(IDS) - {at}:
                name = f"{use.__name__}-{at}-{other_id}"
                request = pb.CreateStreamRequest(name=name, subject=name, replicationFactor=1)
                cluster.api[at].CreateStream(request, timeout=TIMEOUT_S)
                assert use(cluster.api[other_id], name) == name


def test_who_publishes_wakes_what_was_paused_a_moment_ago_elsewhere(cluster, stream):
    """Though the forwarding broker does not know of the pause yet, or of the resume."""
    name = "paused"
    request = pb.CreateStreamRequest(name=name, subject=name, replicationFactor=-1)
    cluster.api[1].CreateStream(request, timeout=TIMEOUT_S)
    leader = cluster.leader(1, name)
    sent = [b"%d-%d" % (attempt, n) for attempt in range(6) for n in range(20)]
    for attempt in range(6):
        other_id = sorted(set(IDS) - {leader})[attempt % 2]
        cluster.api[leader].PauseStream(pb.PauseStreamRequest(name=name), timeout=TIMEOUT_S)
        requests = [
            pb.PublishRequest(stream=name, value=value, ackPolicy=pb.ALL)
            for value in sent[20 * attempt : 20 * attempt + 20]
        ]
        for answer in cluster.api[other_id].PublishAsync(iter(requests), timeout=TIMEOUT_S):
            assert not answer.HasField("asyncError"), answer.asyncError.message
    assert [m.value for m in read(cluster.api[leader], name, len(sent))] == sent


def test_who_has_just_joined_a_group_is_known_to_every_broker(cluster, stream):
    """To its coordinator, whichever broker the member asked, and wherever it leaves."""

    def join(at, name, member):
        request = pb.JoinConsumerGroupRequest(groupId=name, consumerId=member, streams=[stream])
        return cluster.api[at].JoinConsumerGroup(request, timeout=TIMEOUT_S)

    for attempt in range(5):
        for at in IDS:
            for other_id in set(IDS) - {at}:
                name = f"quick-{attempt}-{at}-{other_id}"
                where = {"groupId": name, "consumerId": "m"}
                joined = join(at, name, "m")
                fetch = pb.FetchConsumerGroupAssignmentsRequest(epoch=joined.epoch, **where)
                coordinator = cluster.api[int(joined.coordinator)]
                found = coordinator.FetchConsumerGroupAssignments(fetch, timeout=TIMEOUT_S)
                assert [each.stream for each in found.assignments] == [stream]
                epoch = join(at, name, "n").epoch
                [described] = cluster.metadata(other_id, groups=[name]).groupMetadata
                assert described.epoch in (joined.epoch, epoch), "perhaps not the newest"
                leave = pb.LeaveConsumerGroupRequest(groupId=name, consumerId="n")
                cluster.api[other_id].LeaveConsumerGroup(leave, timeout=TIMEOUT_S)


def test_cursors_are_with_the_leader_of_their_partition(cluster):
    """Other brokers redirect clients; an acknowledged cursor is on every replica."""
    where = {"stream": "s", "partition": 0, "cursorId": "c"}
    fetch = pb.FetchCursorRequest(**where)

    def is_kept():
        api = cluster.api[cluster.leader(1, "__cursors")]
        api.SetCursor(pb.SetCursorRequest(offset=7, **where), timeout=TIMEOUT_S)
        return api.FetchCursor(fetch, timeout=TIMEOUT_S).offset == 7

    until(is_kept)

    def a_follower_sends_away():
        leader = cluster.leader(1, "__cursors")
        api = cluster.api[next(n for n in IDS if n != leader)]
        found = code_of(lambda: api.FetchCursor(fetch, timeout=TIMEOUT_S))
        return found is grpc.StatusCode.FAILED_PRECONDITION

    until(a_follower_sends_away)


def test_a_killed_broker_is_done_without(cluster, stream):
    """The group gets a new coordinator, the stream a new leader; nothing acknowledged is lost."""
    join = pb.JoinConsumerGroupRequest(groupId="g", consumerId="m", streams=[stream])
    cluster.api[1].JoinConsumerGroup(join, timeout=TIMEOUT_S)

    def group(number):
        return cluster.metadata(number, groups=["g"]).groupMetadata[0]

    def is_assigned(number):
        """Whether the coordinator that a broker names gives the member its partitions."""
        known = group(number)
        fetch = pb.FetchConsumerGroupAssignmentsRequest(
            groupId="g", consumerId="m", epoch=known.epoch
        )
        api = cluster.api[int(known.coordinator)]
        found = api.FetchConsumerGroupAssignments(fetch, timeout=TIMEOUT_S).assignments
        return [(each.stream, list(each.partitions)) for each in found] == [(stream, [0])]

    until(lambda: is_assigned(1))
    victim = int(group(1).coordinator)
    survivors = [n for n in IDS if n != victim]
    cluster.servers[victim].kill()
    for number in survivors:
        until(lambda n=number: len(cluster.metadata(n).brokers) == len(IDS) - 1)
        until(lambda n=number: cluster.leader(n, stream) in survivors)
        until(lambda n=number: cluster.leader(n, "__cursors") in survivors)
    first = survivors[0]

    def has_moved():
        known = group(first)
        if int(known.coordinator) in survivors:
            return True
        report = pb.ReportConsumerGroupCoordinatorRequest(
            groupId="g", consumerId="m", coordinator=known.coordinator, epoch=known.epoch
        )
        cluster.api[first].ReportConsumerGroupCoordinator(report, timeout=TIMEOUT_S)
        return False

    until(has_moved)
    until(lambda: is_assigned(first))
    for number in survivors:
        publish(cluster.api[number], [b"after"])
    found = []

    def all_is_there():
        api = cluster.api[cluster.leader(first, stream)]
        found[:] = [message.value for message in read(api, stream, len(EXPECTED) + 1)]
        return len(found) > len(EXPECTED)

    until(all_is_there)
    assert sorted(found) == sorted([*EXPECTED, b"after"])

    def cursor():
        api = cluster.api[cluster.leader(first, "__cursors")]
        where = pb.FetchCursorRequest(stream="s", partition=0, cursorId="c")
        return api.FetchCursor(where, timeout=TIMEOUT_S).offset

    until(lambda: cursor() == 7)


def test_every_broker_tells_what_happened(cluster, stream):
    """Each change once and in order, also after a kill, at all copies alike."""
    survivors = [n for n in IDS if cluster.servers[n].is_running]
    gone = (None, grpc.StatusCode.NOT_FOUND)
    request = pb.DeleteStreamRequest(name=stream)
    api = cluster.api[survivors[0]]
    until(lambda: code_of(lambda: api.DeleteStream(request, timeout=TIMEOUT_S)) in gone)
    told = {}

    def is_current(number):
        told[number] = events(cluster.api[number])
        return any(event.deleteStreamOp.stream == stream for event in told[number])

    for number in survivors:
        until(lambda n=number: is_current(n))
    first = told[survivors[0]]
    assert all(found == first for found in told.values())
    assert [event.id for event in first] == list(range(1, len(first) + 1))
    ours = [event.op for event in first if event_stream(event) == stream]
    assert ours == [pb.CREATE_STREAM, pb.DELETE_STREAM]


def test_without_a_majority_nothing_is_decided(cluster, stream):
    """Clients know the text and retry; existing metadata is still served."""
    survivors = [n for n in IDS if cluster.servers[n].is_running]
    for number in survivors[1:]:
        cluster.servers[number].kill()
    api = cluster.api[survivors[0]]
    refused = (
        (api.CreateStream, pb.CreateStreamRequest(name="late", subject="late")),
        (api.PauseStream, pb.PauseStreamRequest(name="__activity")),
        (
            api.JoinConsumerGroup,
            pb.JoinConsumerGroupRequest(groupId="l", consumerId="m", streams=["__activity"]),
        ),
    )

    def is_reported(call, request):
        """Whether the call ends so; until the leader is missed it ends otherwise."""
        try:
            call(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return (error.code(), error.details()) == (
                grpc.StatusCode.INTERNAL,
                "no known metadata leader",
            )
        return False

    for call, request in refused:
        until(lambda c=call, r=request: is_reported(c, r))
    assert cluster.metadata(survivors[0]).brokers


def events(api):
    """Return the current content of a replica of the activity stream."""
    request = pb.SubscribeRequest(
        stream="__activity",
        startPosition=pb.EARLIEST,
        stopPosition=pb.STOP_LATEST,
        readISRReplica=True,
    )
    found = []
    try:
        found.extend(api.Subscribe(request, timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
    return [pb.ActivityStreamEvent.FromString(message.value) for message in found[1:]]


def event_stream(event):
    """The stream that was created or deleted."""
    return event.createStreamOp.stream or event.deleteStreamOp.stream
