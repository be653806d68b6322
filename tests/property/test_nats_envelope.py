"""Liftbridge envelopes and their protobuf under any bytes."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from strandline.record.envelope import (
    MAGIC,
    EnvelopeAck,
    EnvelopeMessage,
    decode_ack,
    decode_message,
    encode_ack,
    encode_message,
)
from strandline.record.protobuf_wire import Scalar, WireError, put_varint, read_fields, read_varint

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
int64s = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
headers = st.dictionaries(texts, st.binary(max_size=9), max_size=4).map(lambda d: list(d.items()))
messages = st.builds(
    EnvelopeMessage,
    offset=int64s,
    key=st.binary(max_size=9),
    value=st.binary(max_size=60),
    timestamp_ns=int64s,
    stream=texts,
    partition=st.integers(min_value=0, max_value=1 << 31),
    subject=texts,
    reply_subject=texts,
    headers=headers,
    ack_inbox=texts,
    correlation_id=texts,
    ack_policy=st.integers(min_value=0, max_value=5),
)
acks = st.builds(
    EnvelopeAck,
    stream=texts,
    partition_subject=texts,
    message_subject=texts,
    offset=int64s,
    ack_inbox=texts,
    correlation_id=texts,
    ack_policy=st.integers(min_value=0, max_value=5),
    reception_timestamp_ns=int64s,
    commit_timestamp_ns=int64s,
    error=st.integers(min_value=0, max_value=5),
)


@given(messages, st.booleans())
def test_messages_round_trip(message, with_crc):
    """Every message comes back as it was."""
    assert decode_message(encode_message(message, with_crc=with_crc)) == message


@given(acks)
def test_acks_round_trip(ack):
    """Every ack comes back as it was."""
    assert decode_ack(encode_ack(ack)) == ack


@given(st.binary(max_size=80).map(lambda rest: MAGIC + rest) | st.binary(max_size=80))
def test_any_bytes_are_an_envelope_or_plain(payload):
    """Arbitrary bytes decode to a message or to None, never to an exception."""
    for decode in (decode_message, decode_ack):
        found = decode(payload)
        assert found is None or payload.startswith(MAGIC)


@given(st.binary(max_size=60), st.integers(0, 255))
def test_any_body_behind_a_valid_header(body, flags):
    """A valid header in front of arbitrary bytes is no reason to fail."""
    decode_message(MAGIC + bytes((0, 8, flags, 0)) + body)
    decode_message(MAGIC + bytes((0, 12, flags | 1, 0)) + body)


@given(messages, st.data())
def test_a_flipped_bit_under_a_checksum_is_noticed(message, data):
    """With a CRC, a corrupt payload is never taken for the message."""
    payload = bytearray(encode_message(message, with_crc=True))
    bit = data.draw(st.integers(min_value=64, max_value=len(payload) * 8 - 1))
    payload[bit // 8] ^= 1 << bit % 8
    assert decode_message(bytes(payload)) is None


@given(messages, st.integers(min_value=0, max_value=200))
def test_truncated_envelopes_never_raise(message, kept):
    """Any prefix decodes or is plain."""
    decode_message(encode_message(message)[:kept])


@given(st.binary(max_size=60), st.integers(0, 3))
def test_any_bytes_are_fields_or_a_wire_error(data, entries_max):
    """The protobuf reader raises only one error, and keeps its limit."""
    fields = {1: ("i", Scalar.INT), 2: ("b", Scalar.BYTES), 3: ("e", Scalar.ENTRIES)}
    with contextlib.suppress(WireError):
        found = read_fields(data, fields, entries_max=entries_max)
        assert len(found.get("e", ())) <= entries_max


@given(int64s)
def test_varints_round_trip(value):
    """Every 64-bit number survives, in at most ten bytes."""
    out = bytearray()
    put_varint(out, value)
    assert len(out) <= 10
    assert read_varint(bytes(out), 0) == (value & (1 << 64) - 1, len(out))
