"""Hand-encoded messages are what protobuf decodes."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc._generated import logspec_pb2
from strandline.servers.grpc.beam.entries import REPLY_BYTES_MAX, entries_of, replies
from strandline.servers.grpc.grpc_messages import Deframer
from strandline.servers.grpc.liftbridge.messages import COLUMNS, MessageEncoder
from strandline.types import PartitionName

HEADERS = st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3)
RECORDS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=300)),
        st.sampled_from(["a", "b.c", "\u00fc"]),
        st.one_of(st.none(), st.binary(max_size=5)),
        HEADERS,
    ),
    min_size=1,
    max_size=20,
)


def arrow(records, base_offset, timestamp_ns):
    """The records as a reader gets them."""
    values, subjects, keys, headers = map(list, zip(*records, strict=True))
    batch = encode_records(
        values,
        subjects,
        Stamp(base_offset, 0, timestamp_ns),
        keys=keys,
        headers=[list(each.items()) for each in headers],
    )
    return list(decode_batches(pa.py_buffer(bytes(batch)), columns=COLUMNS))


@given(RECORDS, st.integers(0, 1 << 50), st.integers(1, (1 << 63) - 1), st.integers(0, 3))
def test_every_record_becomes_the_same_message(records, base_offset, timestamp_ns, number):
    """Offsets of any size, null values, keys, headers, several subjects."""
    encoder = MessageEncoder(PartitionName("s", number))
    data = encoder.encode(arrow(records, base_offset, timestamp_ns))
    found = [pb.Message.FromString(each) for each in Deframer(1 << 20).feed(data)]
    expected = [
        pb.Message(
            offset=base_offset + n,
            key=key or b"",
            value=value or b"",
            timestamp=timestamp_ns,
            stream="s",
            partition=number,
            subject=subject,
            replySubject=headers.get("reply", b"").decode(errors="replace"),
            headers={**headers, "subject": subject.encode(), "reply": headers.get("reply", b"")},
        )
        for n, (value, subject, key, headers) in enumerate(records)
    ]
    assert found == expected


def test_one_encoder_serves_batch_after_batch():
    """Encodings cached for one batch are correct for the next."""
    encoder = MessageEncoder(PartitionName("s", 0))
    offsets = []
    for base in (0, 120, 16_380, 2_097_150):
        data = encoder.encode(arrow([(b"v", "a", None, {})] * 20, base, base + 1))
        messages = [pb.Message.FromString(each) for each in Deframer(1 << 20).feed(data)]
        assert {message.timestamp for message in messages} == {base + 1}
        offsets += [message.offset - base for message in messages]
    assert offsets == list(range(20)) * 4


def entry_batch(offsets, values):
    return pa.record_batch(
        [pa.array(offsets, pa.int64()), pa.array(values, pa.binary())], ["offset", "value"]
    )


def test_gaps_and_null_values_are_skips():
    """Every index comes, from the place asked for on."""
    found = entries_of([entry_batch([2, 5], [b"a", None]), entry_batch([6], [b"b"])], 1)
    assert [(e.index, e.skip, e.data) for e in found] == [
        (2, True, b""),
        (3, False, b"a"),
        (4, True, b""),
        (5, True, b""),
        (6, True, b""),
        (7, False, b"b"),
    ]


@pytest.mark.parametrize("sizes", [[10] * 20_000, [REPLY_BYTES_MAX * 2, 1, 1], []])
def test_replies_are_bounded(sizes):
    """By bytes and by entries; a single large entry goes alone."""
    given_entries = [
        logspec_pb2.Entry(index=n + 1, data=bytes(size)) for n, size in enumerate(sizes)
    ]
    found = list(replies(iter(given_entries)))
    assert [e for reply in found for e in reply.ok.entries] == given_entries
    for reply in found:
        entries = reply.ok.entries
        assert len(entries) == 1 or sum(len(e.data) for e in entries) <= REPLY_BYTES_MAX
