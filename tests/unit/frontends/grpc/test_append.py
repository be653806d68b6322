"""Replies to Append that are written by hand say what protobuf would."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.frontends.grpc._generated import logspec_pb2 as pb
from strandline.frontends.grpc.beam.append import one_index, varint
from strandline.frontends.grpc.framing import framed

NUMBERS = st.integers(1, (1 << 64) - 1)


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
