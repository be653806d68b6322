"""Append's handwritten encoding equals protobuf's, and replies keep their order."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import LimitsConfig
from strandline.errors import UnavailableError
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.servers.grpc.beam.append import DUE_MAX, AppendStream, one_index, varint
from strandline.servers.grpc.grpc_messages import PREFIX_BYTES, framed
from strandline.servers.grpc.status import GrpcStatus

NUMBERS = st.integers(1, (1 << 64) - 1)


def request(sequence, *proposals):
    """A request as it comes."""
    return framed(pb.AppendRequest(sequence=sequence, proposals=proposals).SerializeToString())


class Call:
    """A call and its partition, as a stream of requests sees them."""

    def __init__(self):
        self.config = SimpleNamespace(subject="beam")
        self.status = None
        self.input_ended = False
        self.held_bytes = 0
        self.sent = []
        self.stored = []
        self.write_error = None
        self.is_leading = True
        self.stream = AppendStream(
            self,
            self,
            LimitsConfig(),
            proposal_bytes_max=8 << 20,
            is_leading=lambda _: self.is_leading,
            redirect=lambda: pb.Redirect(host="there"),
        )

    def send_framed(self, data):
        if self.status is None:
            self.sent.append(pb.AppendReply.FromString(data[PREFIX_BYTES:]) if data else None)

    answer = send_framed

    def finish(self, status, text=""):
        self.status = self.status or (status, text)

    def append(self, value, *, subject, ack_sink, token):
        assert (subject, ack_sink) == ("beam", self.stream)
        if self.write_error is None:
            self.stored.append((token, value))
        else:
            ack_sink.rejected(token, self.write_error)

    def take(self, data):
        """As a connection: the short way, or else the general one."""
        if not self.stream.take_whole(b"before" + data + b"after", 6, 6 + len(data)):
            self.stream.take([data[PREFIX_BYTES:]])

    def ack_all(self):
        stored, self.stored = self.stored, []
        for offset, (token, _) in enumerate(stored):
            self.stream.acked(token, None, offset, duplicate=False)


@pytest.fixture
def call():
    return Call()


@given(st.integers(0, (1 << 64) - 2), st.integers(0, 16_000))
def test_a_request_of_one_proposal_is_read_as_protobuf_reads_it(before, size):
    """Whatever its sequence and size."""
    call, value = Call(), b"v" * size
    call.stream._sequence = call.stream._answered = before
    data = request(before + 1, value)
    assert call.stream.take_whole(b"before" + data, 6, 6 + len(data))
    assert call.stored == [(before + 1, value)]


@pytest.mark.parametrize("cut", range(1, 14))
def test_what_is_no_whole_request_is_left(call, cut):
    """Too short, too long, another sequence, or with no proposal: nothing was done."""
    data = request(1, b"value")
    assert len(data) == 14
    for other in (data[:-cut], data + bytes(cut), request(1 + cut, b"value"), request(1)):
        assert not call.stream.take_whole(other + data, 0, len(other))
    assert not call.stored


def test_a_rejection_waits_for_the_answers_before_it(call):
    """And ends the stream behind them."""
    call.take(request(1, b"a"))
    call.write_error = UnavailableError("too much waits")
    call.take(request(2, b"b"))
    assert (call.sent, call.status) == ([], None)
    call.ack_all()
    assert [reply.ok.sequence for reply in call.sent if reply] == [1]
    assert call.status == (GrpcStatus.UNAVAILABLE, "too much waits")


def test_nothing_is_appended_behind_a_redirect(call):
    """Not even if this broker leads again before it could be sent."""
    call.take(request(1, b"a"))
    call.is_leading = False
    call.take(request(2, b"b"))
    call.is_leading = True
    call.take(request(3, b"c"))
    assert [value for _, value in call.stored] == [b"a"]
    call.ack_all()
    assert [reply.WhichOneof("reply") for reply in call.sent] == ["ok", "redirect"]
    assert call.status == (GrpcStatus.OK, "")


def test_the_stream_ends_with_the_last_answer(call):
    """If no more requests come."""
    call.take(request(1, b"a"))
    call.input_ended = True
    call.stream.end_input()
    assert call.status is None
    call.ack_all()
    assert call.status == (GrpcStatus.OK, "")


def test_so_many_may_be_in_progress(call):
    """The request that is the last goes the general way, which holds the sender up."""
    for sequence in range(1, DUE_MAX):
        data = request(sequence, b"v")
        assert call.stream.take_whole(data, 0, len(data))
    data = request(DUE_MAX, b"v")
    assert not call.stream.take_whole(data, 0, len(data))
    call.take(data)
    assert call.stream.is_full
    call.ack_all()
    assert len(call.sent) == DUE_MAX
    assert not call.stream.is_full


@given(NUMBERS, NUMBERS)
def test_the_frequent_reply_is_what_protobuf_writes(sequence, index):
    """Byte for byte, for any sequence and index."""
    reply = pb.AppendReply(ok=pb.AppendReply.OK(sequence=sequence, indexes=[index]))
    assert one_index(sequence, index) == framed(reply.SerializeToString())


def test_numbers_grow_by_seven_bits():
    """The borders between lengths."""
    assert [len(varint(n)) for n in (0, 127, 128, 16_383, 16_384, (1 << 64) - 1)] == [
        1,
        1,
        2,
        2,
        3,
        10,
    ]
