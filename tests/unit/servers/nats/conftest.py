"""A broker that stores nothing, for the tests of the NATS front end."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.broker.coordinators.consumers import ConsumerStore
from strandline.broker.routing import RouteTable
from strandline.broker.write_path.admission import Admission
from strandline.clock import ManualClock
from strandline.config import BrokerConfig, LimitsConfig, NatsConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.listener import IngestListener
from strandline.telemetry import Telemetry
from strandline.types import Offset, PartitionName
from tests.kit.waiting import until_async


class FakePartition:
    """Keeps records in a list; answers at the end of a group commit."""

    def __init__(self, broker, name):
        self.broker = broker
        self.name = name
        self.is_led, self.write_error = True, None
        self.records = []
        self.chunks = []

    def append(self, value, *, subject, ack_sink=None, token=None, **rest):
        """Keep the record, or reject it as a test has set."""
        record = SimpleNamespace(value=value, subject=subject, **rest)
        if self.broker.write_error is not None:
            if ack_sink is not None:
                ack_sink.rejected(token, self.broker.write_error)
            return
        self.records.append(record)
        if ack_sink is not None:
            self.broker.waiting.append((ack_sink, token, self.name, len(self.records) - 1))
        self.broker.admission.pending_bytes += len(value or b"")
        self.broker.wake()

    def append_many(self, values, *, subjects, ack_sink, tokens):
        """Keep the records, and that they came with one call."""
        self.chunks.append(len(values))
        names = subjects if len(subjects) == len(values) else subjects * len(values)
        for value, subject, token in zip(values, names, tokens, strict=True):
            sink = None if token is None else ack_sink
            self.append(value, subject=subject, ack_sink=sink, token=token)


class FakeStream:
    """Settings and partitions."""

    def __init__(self, config, partitions):
        self.config = config
        self.partitions = partitions


class FakeBroker:
    """A minimal broker; group commits run by themselves unless ``frozen``."""

    def __init__(self):
        self.clock = ManualClock()
        self.telemetry = Telemetry()
        self.admission = Admission(LimitsConfig(), clock=self.clock, wake=lambda: None)
        self.write_error = None
        self.is_controller = self.has_lease = True
        self.consumers = ConsumerStore(None)
        self.image = MetadataImage()
        self.frozen = False
        self.waiting = []
        self._streams = {}
        self._answered_callbacks = []
        self.read_here = []
        self._stream_callbacks = []
        self.routes = RouteTable()
        self._scheduled = False

    def add(self, name, subject, **settings):
        """Create a stream."""
        config = StreamConfig(name=name, subject=subject, **settings)
        partitions = [
            FakePartition(self, PartitionName(name, number)) for number in range(config.partitions)
        ]
        self._streams[name] = FakeStream(config, partitions)
        self.announce(name)
        return partitions

    def drop(self, name):
        """Delete a stream."""
        del self._streams[name]
        self.announce(name)

    def announce(self, *names):
        """Announce changed streams, or changed leaders."""
        for name in names:
            self.routes.replace(name, self._streams.get(name))
        for callback in self._stream_callbacks:
            callback(names)

    def streams(self):
        return list(self._streams.values())

    def on_stream_created(self, callback):
        pass

    def on_creating_stream(self, check):
        pass

    def on_image(self, callback):
        pass

    def on_leading(self, callback):
        pass

    def on_streams_changed(self, callback):
        self._stream_callbacks.append(callback)

    def reads(self, ack_sink):
        self.read_here.append(ack_sink)

    def on_answered(self, callback):
        self._answered_callbacks.append(callback)

    async def quiesce(self):
        while self.waiting:  # noqa: ASYNC110 - as the real broker does
            await asyncio.sleep(0)

    def wake(self):
        """Run a group commit soon."""
        if not self._scheduled and not self.frozen:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self):
        """Answer everything."""
        self._scheduled = False
        waiting, self.waiting = self.waiting, []
        self.admission.pending_bytes = 0
        for ack_sink, token, name, offset in waiting:
            ack_sink.acked(token, name, Offset(offset), duplicate=False)
        for callback in self._answered_callbacks:
            callback()

    def thaw(self):
        """Run group commits again."""
        self.frozen = False
        self.wake()


class RecordingSink:
    """Keeps the answers that a publisher would get."""

    is_alone = False
    answers_leaderless = False

    def __init__(self):
        self.delivered = []
        self.acks = []
        self.rejections = []

    def acked(self, token, partition, offset, *, duplicate):
        self.acks.append((token, partition, offset, duplicate))

    def rejected(self, token, error):
        self.rejections.append((token, error))

    def deliver(self, to, payload):
        self.delivered.append((to, payload))


class RawClient:
    """A socket that speaks the protocol by hand."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def line(self):
        """The next line without its end; empty at the end of the connection."""
        async with asyncio.timeout(60):
            return (await self.reader.readline()).rstrip(b"\r\n")

    async def message(self):
        """The next MSG or HMSG: its words and its whole body."""
        words = (await self.line()).split()
        async with asyncio.timeout(60):
            body = await self.reader.readexactly(int(words[-1]) + 2)
        return words, body[:-2]

    async def close(self):
        self.writer.close()


@pytest.fixture
def broker():
    """A fake broker."""
    return FakeBroker()


@pytest.fixture
def until():
    """A function that waits for something to become true."""

    return until_async


@pytest.fixture
def sink():
    """A publisher's ear."""
    return RecordingSink()


@pytest.fixture
async def ingest(broker):
    """A function that starts a listener on the fake broker; stopped afterwards."""
    started = []

    async def start(**limits):
        config = BrokerConfig(
            nats=NatsConfig(ingest_port=0),
            limits=limits.pop("limits", None) or BrokerConfig().limits,
        )
        routes = broker.routes
        shared = MessageIngest(
            broker.clock,
            routes,
            broker.admission,
            backpressure=Backpressure(config.limits.pending_bytes),
        )
        broker.on_answered(shared.send_answers)
        listener = IngestListener(broker, config, routes=routes, ingest=shared)
        await listener.start()
        started.append(listener)
        return listener

    yield start
    broker.thaw()
    for listener in started:
        await listener.stop()


@pytest.fixture
async def client():
    """A function that opens a raw connection to a port, past INFO."""
    clients = []

    async def connect(port, *, options=b'{"verbose":false,"headers":true,"no_responders":true}'):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        raw = RawClient(reader, writer)
        clients.append(raw)
        assert (await raw.line()).startswith(b"INFO {")
        if options is not None:
            await raw.send(b"CONNECT %b\r\n" % options)
        return raw

    yield connect
    for raw in clients:
        await raw.close()
