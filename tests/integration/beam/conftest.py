"""Beam's log as generated clients of its service use it, on one broker and on three.

A listener serves one stream, so each test gets that anew, deleted and made again. With three, calls
go to the leader, as those of clients do that were redirected.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import grpc
import pytest

import strandline
from strandline.errors import StreamExistsError, UnknownStreamError
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.testing import ProcessServer
from tests.kit.waiting import until as wait_until

TIMEOUT_S = 120
SERVICE = pb.DESCRIPTOR.services_by_name["Log"]
ENVIRONMENT = {
    "STRANDLINE_CLEANER_INTERVAL_MS": "50",
    "STRANDLINE_JOURNAL__CHECKPOINT_INTERVAL_MS": "50",
}
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class LogClient:
    """Every rpc by its name, and helpers of tests.

    Args:
        channel: to one broker.
        grpc_stub: makes a generated client.
    """

    def __init__(self, channel, grpc_stub):
        vars(self).update(vars(grpc_stub(channel, SERVICE)))

    def append(self, *batches):
        """Append batches of proposals on one stream, all at once; the replies."""
        requests = [
            pb.AppendRequest(sequence=number, proposals=proposals)
            for number, proposals in enumerate(batches, 1)
        ]
        return list(self.Append(iter(requests), timeout=TIMEOUT_S))

    def info(self):
        """The extent of the log."""
        return self.Info(pb.InfoRequest(), timeout=TIMEOUT_S).ok

    def entries(self, first, count):
        """The next entries from an index on."""
        reading = self.Read(pb.ReadRequest(nextIndex=first), timeout=TIMEOUT_S)
        replies = (reply for reply in reading)
        found = list(itertools.islice((e for r in replies for e in r.ok.entries), count))
        reading.cancel()
        return found

    def discard(self, first):
        """Give up the entries below an index."""
        reply = self.Discard(pb.DiscardRequest(firstIndex=first), timeout=TIMEOUT_S)
        assert reply.WhichOneof("reply") == "ok"


class Beam:
    """The log of running brokers.

    Args:
        servers: the brokers, as processes.
        channels: to Beam's listener of each.
        logs: a client at each.
    """

    def __init__(self, servers, channels, logs):
        self.channel = channels[0]
        self.flight = ",".join(server.flight for server in servers)
        self._logs = logs
        self._servers = servers
        until(lambda: all(map(self._exists, logs)))

    def warnings(self, text):
        """Return lines of the brokers' logs that contain a text."""
        lines = (line for server in self._servers for line in server.errors)
        return [line for line in lines if text in line]

    def anew(self, **config):
        """An empty log, of a stream with these settings: a client at its leader."""
        copies = len(self._logs)
        config = {"replicas": copies, "min_isr": copies // 2 + 1, "dedup_window_ms": 0, **config}
        with strandline.connect(self.flight, timeout_s=TIMEOUT_S) as client:
            until(lambda: self._is_made_anew(client, config))
        until(lambda: any(map(self._is_led, self._logs)))
        return next(filter(self._is_led, self._logs))

    def _is_made_anew(self, client, config):
        """Whether it was deleted and made; a broker that is still starting may make its own."""
        with suppress(UnknownStreamError):  # it was deleted before
            client.delete_stream("beam")
        if any(map(self._exists, self._logs)):
            return False
        with suppress(StreamExistsError):
            client.create_stream("beam", **config)
            return True
        return False

    def _exists(self, log):
        """Whether a broker knows the log."""
        try:
            log.Info(pb.InfoRequest(allowStale=True), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
        return True

    def _is_led(self, log):
        """Whether a broker leads it."""
        try:
            info = log.Info(pb.InfoRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False  # it has not heard of it
        return info.WhichOneof("reply") == "ok"


until = partial(wait_until, seconds=TIMEOUT_S)


@contextmanager
def running(servers, grpc_stub):
    """The log of broker processes, which are started and ended."""
    channels = []
    try:
        with ThreadPoolExecutor() as together:
            list(together.map(ProcessServer.start, servers))
        addresses = [f"127.0.0.1:{server.ready['beam_port']}" for server in servers]
        channels += [grpc.insecure_channel(address, options=UNLIMITED) for address in addresses]
        yield Beam(servers, channels, [LogClient(channel, grpc_stub) for channel in channels])
    finally:
        for channel in channels:
            channel.close()
        for server in servers:
            server.kill()
            print(server.data_dir.name, "said:", *server.errors, sep="\n")  # noqa: T201  if it fails


@pytest.fixture(scope="session")
def connected(grpc_stub):
    """A client of one broker, which is a context."""

    @contextmanager
    def connect(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
            yield LogClient(channel, grpc_stub)

    return connect


@pytest.fixture(scope="module")
def one(tmp_path_factory, grpc_stub):
    """One broker."""
    directory = tmp_path_factory.mktemp("beam") / "alone"
    server = ProcessServer(directory, arguments=("--beam-port", "0"), environment=ENVIRONMENT)
    with running([server], grpc_stub) as beam:
        yield beam


@pytest.fixture(scope="module")
def three(tmp_path_factory, grpc_stub):
    """Three brokers."""
    directory, ports, servers = tmp_path_factory.mktemp("beam"), free_ports(3), []
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(ports, 1))
    for number, port in enumerate(ports, 1):
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(port), "--beam-port", "0")
        servers.append(
            ProcessServer(
                directory / f"broker-{number}", arguments=arguments, environment=ENVIRONMENT
            )
        )
    with running(servers, grpc_stub) as beam:
        yield beam


@pytest.fixture(params=["one", "three"])
def beam(request):
    """The log of one broker, and of three."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def log(beam):
    """A client of the log, empty, at its leader."""
    return beam.anew()
