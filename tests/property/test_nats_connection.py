"""A publisher's connection under any bytes: it answers or closes, and never raises."""

import asyncio
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.routing import RouteTable, stream_bindings
from strandline.broker.write_path.admission import Admission
from strandline.clock import ManualClock
from strandline.config import BrokerConfig, LimitsConfig, StreamConfig
from strandline.errors import DiskFullError
from strandline.record.envelope import EnvelopeMessage, encode_message
from strandline.servers.nats.backpressure import ROUND, Backpressure
from strandline.servers.nats.connection import PublisherConnection, PublisherState
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.protocol import Failure, Parser, Violation
from strandline.telemetry import Telemetry
from strandline.types import Offset, PartitionName


class Partition:
    """Answers at once, alternating between an ack, a duplicate and an error."""

    def __init__(self, name):
        self.name = name
        self.appended = 0
        self.is_led, self.write_error = True, None

    def append(self, value, *, subject, ack_sink=None, token=None, **_):
        assert value is None or isinstance(value, bytes)
        assert isinstance(subject, str)
        self.appended += 1
        if ack_sink is None:
            return
        if self.appended % 3 == 0:
            ack_sink.rejected(token, DiskFullError("full"))
        else:
            duplicate = self.appended % 3 == 1
            ack_sink.acked(token, self.name, Offset(self.appended), duplicate=duplicate)

    def append_many(self, values, *, subjects, ack_sink, tokens):
        assert len(subjects) in (1, len(values))
        assert len(tokens) == len(values)
        tokens = list(tokens)
        for number, value in enumerate(values):
            name, token = subjects[number % len(subjects)], tokens[number]
            if token is not None and number % 2:
                ack_sink.acked_many((token, None, token), self.name, Offset(self.appended))
                token = None
            sink = None if token is None else ack_sink
            self.append(value, subject=name, ack_sink=sink, token=token)


def make_connection():
    """A connection on a listener without a socket, with two streams."""
    streams = [
        SimpleNamespace(config=config, partitions=[Partition(PartitionName(config.name, 0))])
        for config in (
            StreamConfig(name="S", subject="a"),
            StreamConfig(name="T", subject=">", partition_by="key"),
        )
    ]
    broker = SimpleNamespace(
        clock=ManualClock(),
        telemetry=Telemetry(),
        admission=Admission(LimitsConfig(), clock=ManualClock(), wake=lambda: None),
        reads=lambda _: None,
    )
    routes = RouteTable([each for stream in streams for each in stream_bindings_of(stream)])
    config = BrokerConfig(limits=LimitsConfig(record_bytes=1000, pending_bytes=10_000))
    ingest = MessageIngest(
        broker.clock, routes, broker.admission, backpressure=Backpressure(10_000)
    )
    shared = PublisherState(broker, config, routes=routes, ingest=ingest)
    return PublisherConnection(shared)


def stream_bindings_of(stream):
    """Bindings need a hashable stream."""
    return stream_bindings(Hashable(stream))


class Hashable:
    """A stream that can be a dictionary's key."""

    def __init__(self, stream):
        self.config = stream.config
        self.partitions = stream.partitions


class Transport:
    """Collects the written bytes."""

    def __init__(self):
        self.output = bytearray()
        self.closed = False

    def set_write_buffer_limits(self, high):
        pass

    def write(self, data):
        assert not self.closed
        self.output += data

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def pause_reading(self):
        pass

    resume_reading = pause_reading


envelope = encode_message(EnvelopeMessage(key=b"k", value=b"v", ack_inbox="_INBOX.i.1"))
pieces = st.sampled_from(
    [
        b"SUB _INBOX.i.* 1\r\n", b"SUB _INBOX.> 2\r\n", b"SUB _INBOX.i.1 3\r\n", b"SUB > 4\r\n",
        b"UNSUB 1\r\n", b"UNSUB 3 1\r\n", b"CONNECT {}\r\n",
        b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n',
        b"PUB a _INBOX.i.1 2\r\nhi\r\n", b"PUB a..b _INBOX.i.1 0\r\n\r\n",
        b"PUB $x _INBOX.i.2 0\r\n\r\n", b"PUB a 0\r\n\r\n", b"HPUB a _INBOX.i.1 0 2\r\nhi\r\n",
        b"HPUB a _INBOX.i.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", b"PUB a \xff\xfe 0\r\n\r\n",
        b"HPUB a _INBOX.i.1 4 4\r\nJUNK\r\n", b"PUB \xff _INBOX.i.1 0\r\n\r\n",
        b"HPUB a _INBOX.i.1 38 38\r\nNATS/1.0\r\nNats-Expected-Stream:Z\r\n\r\n\r\n",
        b"PUB a _INBOX.i.1 %d\r\n%b\r\n" % (len(envelope), envelope), b"PING\r\n", b"PONG\r\n",
        b"PUB a 70000\r\n", b"SUB a..b 9\r\n", b"WHAT\r\n",
    ]
) | st.binary(max_size=10)  # fmt: skip


@given(st.lists(pieces, max_size=25), st.integers(1, 50))
def test_any_conversation_ends_in_replies_or_an_error(conversation, size):
    """Whatever a client says, in whatever chunks, it gets well-formed replies or -ERR and close."""
    asyncio.run(converse(conversation, size))


async def converse(conversation, size):
    """Send bytes to a connection, and check its answers."""
    connection, transport = make_connection(), Transport()
    connection.connection_made(transport)
    data = b"".join(conversation)
    for start in range(0, len(data), size):
        if transport.closed:
            break
        connection.data_received(data[start : start + size])
        while connection.is_held(ROUND) and not transport.closed:  # noqa: ASYNC110  loop rounds
            await asyncio.sleep(0)
        for peer in connection._shared.ingest.unflushed:
            peer.flush()
        connection._shared.ingest.unflushed.clear()
    events = Parser(1 << 20, from_client=False).feed(bytes(transport.output))
    assert not any(isinstance(event, Violation) for event in events)
    if transport.closed:
        assert isinstance(events[-1], Failure)
    connection.connection_lost(None)
    assert connection._shared.buffered_bytes == 0
