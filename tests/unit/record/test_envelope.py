"""Liftbridge envelopes: valid ones are read, everything else is a plain message."""

import pytest

from strandline.record.envelope import (
    HEADERS_MAX,
    MAGIC,
    AckError,
    AckPolicy,
    EnvelopeAck,
    EnvelopeMessage,
    decode_ack,
    decode_message,
    encode_ack,
    encode_message,
)

FULL = EnvelopeMessage(
    offset=7,
    key=b"k",
    value=b"v\x00",
    timestamp_ns=1_700_000_000_000_000_000,
    stream="S",
    partition=3,
    subject="a.b",
    reply_subject="_INBOX.r",
    headers=[("h", b"1"), ("ü", b"\xff")],
    ack_inbox="inbox.1",
    correlation_id="c",
    ack_policy=AckPolicy.ALL,
)


@pytest.mark.parametrize("with_crc", [False, True])
def test_message_round_trip(with_crc):
    """Every field survives, with and without a checksum."""
    assert decode_message(encode_message(FULL, with_crc=with_crc)) == FULL


def test_message_bytes_are_the_specified_ones():
    """The bytes of a small envelope, written out by hand."""
    encoded = encode_message(EnvelopeMessage(key=b"k", value=b"v", ack_inbox="i", ack_policy=2))
    assert encoded.hex() == "b90e43b400080000" + "12016b" + "1a0176" + "520169" + "6002"


def test_ack_bytes_are_the_specified_ones():
    """The bytes of a small ack, written out by hand."""
    encoded = encode_ack(
        EnvelopeAck(stream="S", offset=300, ack_inbox="i", error=AckError.TOO_LARGE)
    )
    assert encoded.hex() == "b90e43b400080001" + "0a0153" + "20ac02" + "2a0169" + "5003"


def test_ack_round_trip():
    """Every field of an ack survives."""
    ack = EnvelopeAck(
        stream="S",
        partition_subject="a.*",
        message_subject="a.b",
        offset=-1,
        ack_inbox="i",
        correlation_id="c",
        ack_policy=1,
        reception_timestamp_ns=1,
        commit_timestamp_ns=2,
        error=1,
    )
    assert decode_ack(encode_ack(ack)) == ack


def test_an_empty_message_is_an_envelope():
    """Eight bytes of header and nothing else is a message with all defaults."""
    assert decode_message(encode_message(EnvelopeMessage())) == EnvelopeMessage()


def envelope(*, version=0, length=8, flags=0, kind=0, rest=b""):
    """An envelope put together by hand."""
    return MAGIC + bytes((version, length, flags, kind)) + rest


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"plain",
        MAGIC,
        MAGIC + bytes(3),
        envelope(version=1),
        envelope(length=255),  # the byte that panics the Go server
        envelope(length=0),
        envelope(length=12, rest=bytes(4)),  # 12 without the checksum flag
        envelope(length=8, flags=1, rest=bytes(4)),  # the flag without 12
        envelope(length=12, flags=1),  # no room for the checksum
        envelope(length=12, flags=1, rest=bytes(4) + b"\x12\x01k"),  # a wrong checksum
        envelope(kind=1),
        envelope(kind=2),
        envelope(rest=b"\x12\xff"),  # cut-short protobuf
        envelope(rest=b"\x52\x01\xff"),  # an ack inbox that is not UTF-8
    ],
)
def test_what_is_not_a_valid_envelope_is_plain(payload):
    """Any defect makes a plain message of it, never an error."""
    assert decode_message(payload) is None


def test_too_many_headers_make_a_message_plain():
    """The number of headers is capped."""
    headers = [(str(number), b"") for number in range(HEADERS_MAX + 1)]
    assert decode_message(encode_message(EnvelopeMessage(headers=headers[:-1]))) is not None
    assert decode_message(encode_message(EnvelopeMessage(headers=headers))) is None


def test_acks_and_messages_are_not_confused():
    """The type byte distinguishes them."""
    assert decode_ack(encode_message(FULL)) is None
    assert decode_message(encode_ack(EnvelopeAck(stream="S"))) is None


def test_bytes_agree_with_protobuf():
    """Google's protobuf reads our bytes, and we read its."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    kinds = {"int64": 3, "int32": 5, "string": 9, "bytes": 12}
    fields = (
        "offset int64,key bytes,value bytes,timestamp int64,stream string,partition int32,"
        "subject string,replySubject string,headers map,ackInbox string,correlationId string,"
        "ackPolicy int32"
    )
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="Message")
    entry = message.nested_type.add(name="HeadersEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=12, label=1)
    for number, item in enumerate(fields.split(","), 1):
        name, kind = item.split()
        if kind == "map":
            message.field.add(
                name=name, number=number, type=11, label=3, type_name=".t.Message.HeadersEntry"
            )
        else:
            message.field.add(name=name, number=number, type=kinds[kind], label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    cls = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Message"))
    theirs = cls(
        offset=7, key=b"k", value=b"v\x00", timestamp=FULL.timestamp_ns, stream="S", partition=3,
        subject="a.b", replySubject="_INBOX.r", headers=dict(FULL.headers), ackInbox="inbox.1",
        correlationId="c", ackPolicy=1,
    )  # fmt: skip
    assert cls.FromString(encode_message(FULL)[8:]) == theirs
    ours = decode_message(envelope(rest=theirs.SerializeToString()))
    assert sorted(ours.headers) == sorted(FULL.headers)
    assert cls.FromString(encode_message(ours)[8:]) == theirs
