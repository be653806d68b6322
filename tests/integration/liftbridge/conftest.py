"""Liftbridge's API as its stock clients call it, on one broker and on three.

With three every call goes to another broker, but those that clients send to a leader or to a
coordinator, which they look up in the metadata, and again when they are sent away. Metadata takes a
moment to reach all brokers; a change is waited for, since clients look before they go on.
"""

import contextlib
import itertools
import re
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import grpc
import pytest

from strandline.encryption.master_keys import new_key_text
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import ProcessServer, Server
from tests.kit.waiting import until as wait_until

TIMEOUT_S = 120
CONSUMER_TIMEOUT_MS = 10_000
CHANGES = {"CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly"}
GROUP_CHANGES = {"JoinConsumerGroup", "LeaveConsumerGroup"}
SENT_AWAY = ("Server not", "The request should be sent to partition leader", "broker is not the")
SERVICE = pb.DESCRIPTOR.services_by_name["API"]


until = partial(wait_until, seconds=TIMEOUT_S)


def is_sent_away(error):
    """Whether a call reached a broker that no longer leads."""
    code = error.code()
    is_refused = code is grpc.StatusCode.FAILED_PRECONDITION
    return is_refused and error.details().startswith(SENT_AWAY)


def is_too_soon(error):
    """Whether a broker counted as unavailable for a moment."""
    is_unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
    return is_unavailable and "brokers in service" in error.details()


class Subscription:
    """A subscription, read on a thread; the handshake is checked and left out.

    Args:
        opened: makes the call; again, as clients do, if the broker sent it away.
        looks_again: whether it does.
    """

    def __init__(self, opened, *, looks_again=True):
        self._looks_again = looks_again
        self.messages = []
        self.status = None
        self.text = None
        self._open = opened
        self._call = opened()
        self._stands = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        deadline = time.monotonic() + TIMEOUT_S
        while not self._has_ended() and time.monotonic() < deadline:
            self._call = self._open()
        self._stands.set()

    def _has_ended(self):
        try:
            for message in self._call:
                if self._stands.is_set():
                    self.messages.append(message)
                    continue
                assert message == pb.Message()
                self._stands.set()
        except grpc.RpcError as error:
            if self._looks_again and is_sent_away(error) and not self._stands.is_set():
                return False
            self.status, self.text = error.code(), error.details()
        else:
            self.status = grpc.StatusCode.OK
        return True

    def stand(self):
        """Wait for the handshake."""
        assert self._stands.wait(TIMEOUT_S)
        return self

    def wait(self, count):
        """Wait for this many messages; return their values."""
        until(lambda: len(self.messages) >= count or self.status is not None)
        return [message.value for message in self.messages]

    def end(self):
        """Wait for the end; values, status and text."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return [message.value for message in self.messages], self.status, self.text

    def seen(self):
        """The messages, once it has ended."""
        self.end()
        return self.messages

    def cancel(self):
        """End it from here."""
        self._call.cancel()
        self._thread.join(TIMEOUT_S)


class Asynchronous:
    """A stream of publishes that stays open."""

    def __init__(self, api):
        self._requests = []
        self._more = threading.Condition()
        self._is_over = False
        self.responses = api.PublishAsync(self._feed(), timeout=TIMEOUT_S)

    def _feed(self):
        while True:
            with self._more:
                self._more.wait_for(lambda: self._requests or self._is_over)
                if not self._requests:
                    return
                request = self._requests.pop(0)
            yield request

    def send(self, **fields):
        """Publish one message."""
        self.put(pb.PublishRequest(**fields))

    def put(self, request):
        """Publish a request's records."""
        with self._more:
            self._requests.append(request)
            self._more.notify()

    def close(self):
        """Stop publishing."""
        with self._more:
            self._is_over = True
            self._more.notify()


class Lift:
    """A client of all brokers.

    Args:
        channels: to each broker, by number.
        grpc_stub: makes a generated client.
        servers: the brokers, by number.
        own_streams: those of the API, which brokers of a cluster make.
    """

    def __init__(self, channels, grpc_stub, servers, *, own_streams=frozenset()):
        self.servers = servers
        self._own = own_streams
        self._grpc_stub = grpc_stub
        self._dial(channels)
        self.size = len(servers)
        self.api = SimpleNamespace(**{m.name: partial(self._call, m.name) for m in SERVICE.methods})

    def _dial(self, channels):
        self.channels = channels
        self.stubs = {n: self._grpc_stub(channel, SERVICE) for n, channel in channels.items()}
        self._turn = itertools.cycle(self.stubs)

    def start(self):
        """Start the processes, and wait until they know each other."""
        with ThreadPoolExecutor() as starting:
            list(starting.map(type(next(iter(self.servers.values()))).start, self.servers.values()))
        ports = {n: server.ready["grpc_port"] for n, server in self.servers.items()}
        self._dial({n: grpc.insecure_channel(f"127.0.0.1:{port}") for n, port in ports.items()})
        until(lambda: all(_is_complete(stub, self._own) for stub in self.stubs.values()))

    @property
    def flight(self):
        """Arrow Flight of some broker."""
        server = next(iter(self.servers.values()))
        is_here = isinstance(server, Server)
        return f"127.0.0.1:{server.app.flight_port}" if is_here else server.flight

    def hang_up(self):
        """Close the connections."""
        for channel in self.channels.values():
            channel.close()

    # Where clients send what

    def _call(self, rpc, request, *, timeout=None):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            broker = self._broker_for(rpc, request)
            try:
                answer = getattr(self.stubs[broker], rpc)(request, timeout=timeout)
            except grpc.RpcError as error:
                is_passing = is_sent_away(error) or is_too_soon(error)
                if self.size > 1 and is_passing and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                raise
            if rpc in CHANGES:
                self._settle(broker, streams=[request.name])
            elif rpc in GROUP_CHANGES:
                self._settle(broker, groups=[request.groupId])
            return answer

    def _broker_for(self, rpc, request):
        any_broker = next(self._turn)
        if self.size == 1:
            return any_broker
        match rpc:
            case "Subscribe" | "FetchPartitionMetadata":
                found = self.leader(request.stream, request.partition)
            case "SetCursor" | "FetchCursor":
                key = f"{request.cursorId},{request.stream},{request.partition}".encode()
                count = len(self.metadata("__cursors").partitions)
                found = self.leader("__cursors", zlib.crc32(key) % count)
            case "FetchConsumerGroupAssignments":
                found = self.group(request.groupId).coordinator
            case _:
                found = ""
        return int(found) if found else any_broker

    def metadata(self, stream, *, broker=None):
        """Return a stream, as a broker knows it."""
        stub = self.stubs[broker or next(self._turn)]
        request = pb.FetchMetadataRequest(streams=[stream])
        return stub.FetchMetadata(request, timeout=TIMEOUT_S).streamMetadata[0]

    def group(self, name, *, broker=None):
        """Return a consumer group, as a broker knows it."""
        stub = self.stubs[broker or next(self._turn)]
        request = pb.FetchMetadataRequest(groups=[name])
        return stub.FetchMetadata(request, timeout=TIMEOUT_S).groupMetadata[0]

    def leader(self, stream, number=0):
        """Return a partition's leader; empty without one."""
        return self.metadata(stream).partitions[number].leader

    def _settle(self, broker, *, streams=(), groups=()):
        """Wait until all brokers know a change."""

        def known(number):
            found = [_summary(self.metadata(name, broker=number)) for name in streams]
            return found, [self.group(name, broker=number) for name in groups]

        def is_settled():
            there = [known(number) for number in self.stubs]
            has_leaders = all(p[0] for stream in there[0][0] for p in stream[1].values())
            return has_leaders and all(each == known(broker) for each in there)

        if self.size > 1:
            until(is_settled)

    # What tests do

    def create(self, name, subject=None, **fields):
        """Make a stream with a copy on each broker."""
        request = pb.CreateStreamRequest(
            name=name, subject=subject or name, replicationFactor=-1, **fields
        )
        self.api.CreateStream(request, timeout=TIMEOUT_S)
        return name

    def publish(self, stream, *values, **fields):
        """Publish and wait until each is committed; the offsets."""
        fields, offsets = {"ackPolicy": pb.ALL, **fields}, []
        for value in values:
            request = pb.PublishRequest(stream=stream, value=value, **fields)
            offsets.append(self.api.Publish(request, timeout=TIMEOUT_S).ack.offset)
        return offsets

    def publishing(self, broker=None):
        """A stream of publishes at a broker; at some broker, if none is named."""
        return Asynchronous(self.api if broker is None else self.stubs[broker])

    def publish_all(self, requests):
        """Publish on one stream, and wait for every answer before it is closed.

        Brokers wait for a few seconds only once it is.
        """
        publishing, due = self.publishing(), list(requests)
        for request in due:
            publishing.put(request)
        answers = list(itertools.islice(publishing.responses, len(due)))
        publishing.close()
        return answers

    def subscribe(self, stream, **fields):
        """A subscription."""
        request = pb.SubscribeRequest(stream=stream, **fields)
        return Subscription(lambda: self.api.Subscribe(request, timeout=TIMEOUT_S))

    def opened(self, call):
        """A subscription at one broker, whether it serves it or not."""
        return Subscription(call, looks_again=False)

    def rejection(self, call, request):
        """The code and text that a call ends with."""
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=TIMEOUT_S)
        return caught.value.code(), caught.value.details()

    def partition(self, stream, number=0):
        """The metadata of a partition."""
        request = pb.FetchPartitionMetadataRequest(stream=stream, partition=number)
        return self.api.FetchPartitionMetadata(request, timeout=TIMEOUT_S).metadata

    until = staticmethod(until)

    def join(self, group, member, *streams):
        """Become a member of a group."""
        request = pb.JoinConsumerGroupRequest(groupId=group, consumerId=member, streams=streams)
        return self.api.JoinConsumerGroup(request, timeout=TIMEOUT_S)

    def leave(self, group, member):
        """Leave a group."""
        request = pb.LeaveConsumerGroupRequest(groupId=group, consumerId=member)
        self.api.LeaveConsumerGroup(request, timeout=TIMEOUT_S)

    def assigned(self, group, member, epoch):
        """A member's partitions by stream."""
        request = pb.FetchConsumerGroupAssignmentsRequest(
            groupId=group, consumerId=member, epoch=epoch
        )
        response = self.api.FetchConsumerGroupAssignments(request, timeout=TIMEOUT_S)
        return {each.stream: list(each.partitions) for each in response.assignments}


def _summary(stream):
    """Return the state of a stream on which all brokers agree."""
    partitions = {
        number: (p.leader, p.paused, p.readonly, list(p.replicas))
        for number, p in stream.partitions.items()
    }
    return stream.error, partitions


def _as_variables(settings):
    """Nested settings as the environment has them."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            inner = _as_variables(value)
            found |= {
                f"STRANDLINE_{name.upper()}__{k[len('STRANDLINE_') :]}": v for k, v in inner.items()
            }
        else:
            found[f"STRANDLINE_{name.upper()}"] = (
                str(value).lower() if isinstance(value, bool) else str(value)
            )
    return found


SOON = {"cleaner_interval_ms": 150, "journal": {"checkpoint_interval_ms": 150}}
OPTIONS = {"port": 0, "activity": True, "consumer_timeout_ms": CONSUMER_TIMEOUT_MS}


@pytest.fixture(scope="session")
def begin(grpc_stub):
    """Starts a broker alone; a context that gives its client."""

    @contextlib.contextmanager
    def running(data_dir=None, *, settings=None, **options):
        server = Server(data_dir=data_dir, grpc={**OPTIONS, **options}, **(settings or {}))
        server.start()
        try:
            port = server.app.ready_line()["grpc_port"]
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Lift({0: channel}, grpc_stub, {0: server})
        finally:
            server.stop()

    return running


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    """A master key, so that streams can be encrypted."""
    path = tmp_path_factory.mktemp("keys") / "master"
    path.touch(mode=0o600)
    path.write_text(new_key_text())
    return str(path)


@pytest.fixture(scope="module")
def one(begin, key_file):
    """A client of one broker alone."""
    with begin(settings={**SOON, "encryption": {"key_file": key_file}}) as lift:
        yield lift


@contextlib.contextmanager
def three_brokers(directory, grpc_stub, settings):
    """Three broker processes for the context's duration; gives a client of all."""
    ports = free_ports(3)
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(ports, 1))
    servers = {}
    for number, port in enumerate(ports, 1):
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(port))
        servers[number] = ProcessServer(
            directory / f"broker-{number}", arguments=arguments, environment=_as_variables(settings)
        )
    own = {"__activity"} | (
        {"__cursors"} if settings["grpc"].get("cursor_partitions", 1) else set()
    )
    lift = Lift({}, grpc_stub, servers, own_streams=own)
    try:
        lift.start()
        yield lift
    finally:
        lift.hang_up()
        for number, server in servers.items():
            server.kill()
            print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails


@pytest.fixture(scope="module")
def three(tmp_path_factory, grpc_stub, key_file):
    """A client of three broker processes."""
    settings = {"grpc": OPTIONS, "encryption": {"key_file": key_file}, **SOON}
    with three_brokers(tmp_path_factory.mktemp("liftbridge"), grpc_stub, settings) as lift:
        yield lift


@pytest.fixture(scope="module", params=[1, 3])
def bare(request, begin, tmp_path_factory, grpc_stub):
    """A client of brokers that have neither cursors nor a master key."""
    options = {**OPTIONS, "cursor_partitions": 0}
    directory = tmp_path_factory.mktemp("bare")
    with (
        begin(directory, **options)
        if request.param == 1
        else three_brokers(directory, grpc_stub, {"grpc": options})
    ) as lift:
        yield lift


def _is_complete(stub, own_streams):
    """Whether a broker knows the others, and leaders of the API's internal streams."""
    try:
        found = stub.FetchMetadata(pb.FetchMetadataRequest(), timeout=TIMEOUT_S)
    except grpc.RpcError:
        return False  # it is just being started
    led = {s.name for s in found.streamMetadata if all(p.leader for p in s.partitions.values())}
    return len(found.brokers) == 3 and own_streams <= led


@pytest.fixture(params=["one", "three"])
def lift(request):
    """A client of one broker, and of three."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def api(lift):
    """The rpcs, each at the broker to which a client sends it."""
    return lift.api


@pytest.fixture
def stream(lift, request):
    """A stream of two partitions, named after the test."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    return lift.create(name, partitions=2)
