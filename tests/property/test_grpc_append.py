"""Append over gRPC: the short way and the general one give the same answers for the same bytes."""

import asyncio
import itertools
import math
from types import SimpleNamespace

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamReset, TrailersReceived
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.broker.access import Access
from strandline.config import BrokerConfig, LimitsConfig
from strandline.errors import DiskFullError, NotLeaderError, UnavailableError
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.servers.grpc.beam.append import AppendStream
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.connection import GrpcConnection
from strandline.servers.grpc.grpc_messages import framed
from strandline.servers.grpc.listener import GrpcListener
from strandline.servers.grpc.methods import Direct
from strandline.telemetry import Telemetry
from strandline.types import Offset, PartitionName

NAME = PartitionName("beam", 0)
LIMITS = LimitsConfig(record_bytes=1000)
CALLS = (1, 3, 5)
HEADERS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"a"),
    (b":path", b"/logspec.Log/Append"),
    (b"content-type", b"application/grpc"),
]
OUTCOMES = {
    "full": DiskFullError("full"),
    "moved": NotLeaderError("remote_error"),
    "failed": UnavailableError("retry"),
}

USUAL = 30
"""How much more often than each other thing: most of those end a call."""


def mostly(usual, *others):
    """One of these, mostly the first."""
    return st.sampled_from([usual] * USUAL + [*others])


size = mostly(5, 0, 125, 126, 127, 128, 129, 130, 999, 1000, 1001)
request = st.fixed_dictionaries(
    {
        "do": st.just("request"),
        "call": st.sampled_from(CALLS),
        "sizes": size.map(lambda each: [each]) | mostly([5], [], [1, 2], [3] * 40),
        "ahead": mostly(0, 1, -1),
        "form": mostly("plain", "long size", "more fields", "cut", "longer"),
        "frames": mostly("one", "two", "inside", "padded", "with next", "ends"),
    }
)
turn = st.fixed_dictionaries({"do": st.just("turn"), "ends": mostly("acked", *OUTCOMES)})
changes = [
    st.fixed_dictionaries({"do": st.just("refuse")}),
    st.fixed_dictionaries({"do": st.just("lead"), "is_on": st.sampled_from([True, True, False])}),
    st.fixed_dictionaries({"do": st.just("let"), "call": st.sampled_from(CALLS)}),
    st.fixed_dictionaries({"do": mostly("let", "reset"), "call": st.sampled_from(CALLS)}),
]
action = st.sampled_from([request] * 12 + [turn] * 4 + changes).flatmap(lambda each: each)
script = st.lists(action, min_size=20, max_size=50)


class Partition:
    """Accepts or rejects records at once, and answers on command."""

    config = SimpleNamespace(subject="beam")

    def __init__(self):
        self.stored = []
        self.waiting = []
        self.is_refusing = False

    def append(self, value, *, subject, ack_sink=None, token=None):
        assert subject == "beam"
        self._accept([value], ack_sink, token=token, offset=len(self.stored))

    def append_arrow(self, batch, *, ack_sink, token):
        values = batch.column(0).to_pylist()
        self._accept(values, ack_sink, token=token, offset=len(self.stored))

    def _accept(self, values, ack_sink, *, token, offset):
        if self.is_refusing:
            self.is_refusing = False
            if ack_sink is not None:
                ack_sink.rejected(token, UnavailableError("too much waits"))
            return
        self.stored += values
        if ack_sink is not None:
            self.waiting.append((ack_sink, token, Offset(offset)))

    def answer(self, outcome):
        waiting, self.waiting = self.waiting, []
        for ack_sink, token, offset in waiting:
            if outcome in OUTCOMES:
                ack_sink.rejected(token, OUTCOMES[outcome])
            else:
                ack_sink.acked(token, NAME, offset, duplicate=False)


class GeneralCall(Call):
    """A call that queues every answer."""

    __slots__ = ()

    def answer(self, data):
        self.send_framed(data)


class GeneralOnly(AppendStream):
    """Takes and answers everything the general way."""

    def __init__(self, call, *args, **kwargs):
        super().__init__(call, *args, **kwargs)
        call.__class__ = GeneralCall

    def take_whole(self, buffer, start, end):
        return False


class Wire(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.is_closed = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


class Session:
    """A client of one connection, driven by a script.

    Args:
        kind: of stream that takes the requests.
        window: of a call; what goes to the client.
        cuts: how many bytes come at a time.
    """

    def __init__(self, kind, window, cuts):
        self.partition = Partition()
        self.is_leading = True
        methods = {b"/logspec.Log/Append": Direct(lambda call: self._open(kind, call))}
        self._shared = GrpcListener(methods, Telemetry(), Access(BrokerConfig(), None)).shared
        # Both ways are compared within one round of the loop, which may take long.
        self._shared.budget = SimpleNamespace(slice_end=lambda: math.inf)
        self._server = GrpcConnection(self._shared)
        self._wire = Wire()
        self._server.connection_made(self._wire)
        self._client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._client.initiate_connection()
        self._client.update_settings({4: window})
        self._cuts = itertools.cycle(cuts)
        self._sequences = dict.fromkeys(CALLS, 0)
        self._open_calls = set(CALLS)
        self._before = dict.fromkeys(CALLS, b"")
        self._heard = dict.fromkeys(CALLS, b"")
        self.heard = []
        """What had been heard when each turn ended."""
        for call in CALLS:
            self._client.send_headers(call, HEADERS)

    def _open(self, kind, call):
        return kind(
            call,
            self.partition,
            LIMITS,
            proposal_bytes_max=LIMITS.record_bytes,
            is_leading=lambda _: self.is_leading,
            redirect=lambda: pb.Redirect(host="there"),
        )

    def run(self, actions):
        """Run the script and receive all answers."""
        for action in actions:
            arguments = dict(action)
            getattr(self, arguments.pop("do"))(**arguments)
        for call in CALLS:
            self.let(call)
        self.turn("acked")
        return self.heard, self.partition.stored, self._wire.is_closed

    def request(self, call, sizes, *, ahead, form, frames):
        """Send one request, in some form."""
        if call not in self._open_calls:
            return
        self._sequences[call] += 1
        sequence = max(0, self._sequences[call] + ahead)
        proposals = [bytes((each % 256,)) * each for each in sizes]
        if frames == "inside":  # its second frame alone would be a request, too
            proposals = [message(sequence, [b"inner"], "plain")]
        data = self._before.pop(call) + message(sequence, proposals, form)
        self._before[call] = b""
        if frames == "with next":
            self._before[call] = data
        elif frames in ("two", "inside"):
            cut = len(data) // 2 if frames == "two" else len(data) - len(proposals[0])
            self._client.send_data(call, data[:cut])
            self._client.send_data(call, data[cut:])
        else:
            pad = 7 if frames == "padded" else None
            self._client.send_data(call, data, end_stream=frames == "ends", pad_length=pad)
        if frames == "ends":
            self._open_calls.discard(call)

    def reset(self, call):
        """Take a call back."""
        if call in self._open_calls:
            self._client.reset_stream(call)
            self._open_calls.discard(call)

    def let(self, call):
        """Let the server send more."""
        if call in self._open_calls:
            self._client.increment_flow_control_window(100, call)

    def refuse(self):
        """Reject the next record."""
        self._talk()
        self.partition.is_refusing = True

    def lead(self, is_on):
        """Lead the partition from now on, or not."""
        self._talk()
        self.is_leading = is_on

    def turn(self, ends):
        """End a group commit, and notify the client."""
        self._talk()
        self.partition.answer(ends)
        self._shared.send_answers()
        self._listen()

    def _talk(self):
        data = self._client.data_to_send()
        while data and not self._wire.is_closed:
            count = next(self._cuts)
            self._server.data_received(data[:count])
            data = data[count:]

    def _listen(self):
        data, self._wire.written = self._wire.written, b""
        for event in self._client.receive_data(data):
            if isinstance(event, DataReceived):
                self._heard[event.stream_id] += event.data
            elif isinstance(event, TrailersReceived):
                self._heard[event.stream_id] += repr(event.headers).encode()
            elif isinstance(event, StreamReset):
                self._open_calls.discard(event.stream_id)
        self.heard.append(dict(self._heard))


def message(sequence, proposals, form):
    """A request, as protobuf writes it or as it may be written too."""
    data = pb.AppendRequest(sequence=sequence, proposals=proposals).SerializeToString()
    if form == "long size" and len(proposals) == 1 and sequence:
        size = len(proposals[0])
        head = pb.AppendRequest(sequence=sequence).SerializeToString()
        data = head + bytes((0x12, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, 0)) + proposals[0]
    elif form == "more fields":
        data += b"\x78\x01"
    elif form == "cut":
        data = data[:-1]
    elif form == "longer":
        data += b"\x12"
    return framed(data)


@settings(max_examples=150)
@given(script, st.sampled_from([0, 5, 20, 65_535]), st.lists(st.integers(1, 3000), min_size=1))
def test_both_ways_give_the_same_answers(actions, window, cuts):
    """However requests are encoded, framed and split, and whatever their outcome."""

    async def answers(kind, cuts):
        return Session(kind, window, cuts).run(actions)

    expected = asyncio.run(answers(GeneralOnly, [1 << 20]))
    assert asyncio.run(answers(AppendStream, cuts)) == expected
