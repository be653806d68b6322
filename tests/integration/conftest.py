"""Fixtures with real processes: publishers that record every ack, and a checker of logs.

A publisher's outcome is three-valued: acked, refused, or unknown (no answer); what is unknown may
or may not be stored. The judge knows nothing of how the log came about.
"""

import asyncio
import contextlib
import gc
import time
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import nats
import nats.errors
import pytest
from google.protobuf import descriptor_pb2, message_factory
from nats.js.errors import APIError

from strandline.errors import StrandlineError
from strandline.testing.replica import ReplicaReader
from tests.kit.clusters import three_brokers
from tests.kit.processes import child_of, is_running
from tests.kit.waiting import until_async


@pytest.fixture(scope="session")
def grpc_stub():
    """Makes a client of a generated service: every rpc by its name, over a channel of grpcio."""

    def stub(channel, service):
        rpcs = {}
        for method in service.methods:
            kinds = ("stream" if is_many else "unary" for is_many in _streaming(method))
            call = getattr(channel, "_".join(kinds))
            rpcs[method.name] = call(
                f"/{service.full_name}/{method.name}",
                request_serializer=_class_of(method.input_type).SerializeToString,
                response_deserializer=_class_of(method.output_type).FromString,
            )
        return SimpleNamespace(**rpcs)

    return stub


def _streaming(method):
    """Whether a rpc takes, and answers, many messages."""
    proto = descriptor_pb2.MethodDescriptorProto()
    method.CopyToProto(proto)
    return proto.client_streaming, proto.server_streaming


def _class_of(descriptor):
    return message_factory.GetMessageClass(descriptor)


class Publisher:
    """Publishes numbered records over stock nats-py, ``window`` at a time, each until it is acked.

    Args:
        url: of a nats-server, or of the broker's own listener.
        name: part of every record and message id.
        subject: where to publish.
        window: how many are under way; with 1, the order of the log is the order of numbers.
        padding: records get 0 to 6 times so many bytes.
        timeout_s: how long to wait for an ack.
    """

    def __init__(self, url, name, subject, *, window=1, padding=100, timeout_s=0.3):
        self.url = url
        self.name = name
        self.subject = subject
        self.window = window
        self.padding = padding
        self.timeout_s = timeout_s
        self.acked = {}
        """Number → offset."""
        self.open = []
        """Numbers sent and not acked yet."""
        self.sent = 0
        self.rejections = defaultdict(int)
        """Error description → how often."""
        self.is_stopping = False

    async def run(self):
        """Publish until told to stop, over one connection after the other."""
        while not self.is_stopping:
            try:
                client = await nats.connect(
                    self.url, allow_reconnect=False, connect_timeout=1, error_cb=_ignore
                )
            except (nats.errors.Error, OSError, TimeoutError):
                await asyncio.sleep(0.02)
                continue
            try:
                await self._publish(client)
            finally:
                with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                    await asyncio.wait_for(client.close(), 5)

    async def _publish(self, client):
        """Publish until the connection is lost; unacknowledged records come first, in order."""
        stream = client.jetstream()
        while not client.is_closed and not (self.is_stopping and not self.open):
            while len(self.open) < self.window and not self.is_stopping:
                self.open.append(self.sent)
                self.sent += 1
            acked = await asyncio.gather(*(self._publish_one(stream, n) for n in self.open))
            self.open = [n for n, done in zip(self.open, acked, strict=True) if not done]
            if self.open:
                await asyncio.sleep(0.02)

    async def _publish_one(self, stream, number):
        """Publish once; whether it was acked."""
        headers = {"Nats-Msg-Id": f"{self.name}-{number}"}
        payload = f"{self.name} {number} ".encode() + bytes(number % 7 * self.padding)
        try:
            ack = await stream.publish(
                self.subject, payload, timeout=self.timeout_s, headers=headers
            )
        except APIError as error:
            self.rejections[error.description] += 1
            return False
        except (nats.errors.Error, OSError):
            self.rejections["no answer"] += 1
            return False
        self.acked[number] = ack.seq - 1
        return True


@pytest.fixture
def forgiving():
    """Forgive nats-py the sockets it leaves open when a reconnect fails half-way.

    For tests marked with ``filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")``.
    """
    yield
    gc.collect()


async def _ignore(_):
    """Lost connections are expected here."""


def read_log(address, stream):
    """Every record of a broker's copy: partition → list of (offset, subject, value)."""
    found = defaultdict(list)
    columns = ["offset", "subject", "value"]
    with ReplicaReader(address) as replica:
        for number in replica.ends(stream):
            for batch in replica.read(stream, partition=number, columns=columns):
                found[number] += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return dict(found)


def judge(log, publishers):
    """Every acked record at its place and once, nothing that was never sent, dense, in order."""
    known = {each.name: each for each in publishers}
    numbers = defaultdict(list)
    places = {}
    for records in log.values():
        assert [offset for offset, _, _ in records] == list(range(len(records))), "dense offsets"
        for offset, subject, value in records:
            name, number, padding = value.split(b" ", 2)
            name, number = name.decode(), int(number)
            assert name in known, "sent by one of ours"
            assert 0 <= number < known[name].sent, "sent at all"
            assert padding == bytes(number % 7 * known[name].padding), "unaltered"
            assert subject == known[name].subject
            numbers[name].append(number)
            places[name, number] = offset
    for each in publishers:
        stored = numbers[each.name]
        assert len(stored) == len(set(stored)), f"{each.name}: each once"
        assert set(each.acked) <= set(stored), f"{each.name}: all that was acked"
        if each.window == 1:
            assert stored == sorted(stored), f"{each.name}: in order"
        for number, offset in each.acked.items():
            assert places[each.name, number] == offset, "where the ack said"


class Reader:
    """Follows a broker's copy of a stream through kills; records what it saw at each offset."""

    def __init__(self, address, stream):
        self.address = address
        self.stream = stream
        self.seen = {}
        self.next = defaultdict(int)
        self.is_stopping = False

    def run(self):
        """Read until told to stop; to be run in a thread."""
        while not self.is_stopping:
            try:
                with ReplicaReader(self.address, timeout_s=1.0) as replica:
                    self._follow(replica)
            except StrandlineError:
                time.sleep(0.02)

    def _follow(self, replica):
        while not self.is_stopping:
            for partition, end in replica.ends(self.stream).items():
                assert end >= self.next[partition], "the high watermark never goes back"
                self._take(replica, partition)
            replica.wait_for(self.stream, self.next, timeout_s=0.5)

    def _take(self, replica, partition):
        columns, start = ["offset", "value"], self.next[partition]
        for batch in replica.read(self.stream, partition=partition, start=start, columns=columns):
            for offset, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                assert offset == self.next[partition], "dense"
                self.seen[partition, offset] = value
                self.next[partition] = offset + 1

    def judge(self, log):
        """Every record that was ever served is still there, unchanged."""
        final = {(p, offset): value for p, records in log.items() for offset, _, value in records}
        for place, value in self.seen.items():
            assert final[place] == value, "one value per offset, for ever"


until = partial(until_async, seconds=90)


@contextlib.asynccontextmanager
async def running(*workers):
    """Publishers and readers at work; they have finished when the block ends."""
    tasks = [
        asyncio.create_task(
            each.run() if asyncio.iscoroutinefunction(each.run) else asyncio.to_thread(each.run)
        )
        for each in workers
    ]
    try:
        yield
        for each in workers:
            each.is_stopping = True
        await asyncio.wait_for(asyncio.gather(*tasks), 120)
    finally:
        for each, task in zip(workers, tasks, strict=True):
            each.is_stopping = True
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def progress(publishers):
    """Wait until each of them has had an ack for something new."""
    before = [len(each.acked) for each in publishers]
    await until(lambda: all(len(p.acked) > b for p, b in zip(publishers, before, strict=True)))


@pytest.fixture
def environment_of():
    """Variables of a broker of ``cluster``, by its number; for modules to override."""
    return lambda number: {}


@pytest.fixture
def more_arguments():
    """Further arguments of the brokers of ``cluster``; for modules to override."""
    return ()


@pytest.fixture
def cluster(tmp_path, environment_of, more_arguments):
    """Three brokers as processes, by number."""
    with three_brokers(tmp_path, environment_of=environment_of, more=more_arguments) as servers:
        yield servers


def persist(attempt, *, seconds=90):
    """Retry until it works: a broker may be starting, or not know it yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except (StrandlineError, AssertionError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


@pytest.fixture
def kit():
    """Helpers, since tests are no package."""
    return SimpleNamespace(
        Publisher=Publisher,
        Reader=Reader,
        child_of=child_of,
        is_running=is_running,
        judge=judge,
        persist=persist,
        progress=progress,
        read_log=read_log,
        running=running,
        until=until,
    )
