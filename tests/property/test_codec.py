"""The codec against Python lists: decoding inverts encoding, and corruption is always found."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptBatchError
from strandline.record.batch import check_batch
from strandline.record.codec import (
    Stamp,
    decode_batches,
    decode_record,
    encode_arrow,
    encode_records,
)
from strandline.record.schema import RECORD_SCHEMA

subjects = st.sampled_from(["a", "flights.JFK.AA", "flights.EWR.UA", "ünïcode.subject"])
headers = st.none() | st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=9)), max_size=3)
records = st.tuples(
    st.none() | st.binary(max_size=40),
    subjects,
    st.none() | st.binary(max_size=10),
    headers,
)
compressions = st.sampled_from(["none", "zstd", "lz4"])


def encode(rows, stamp):
    values, names, keys, heads = (list(column) for column in zip(*rows, strict=True))
    return encode_records(
        values,
        names,
        stamp,
        keys=keys if any(key is not None for key in keys) else None,
        headers=heads if any(heads) else None,
    )


def decode(buffer):
    batches = list(decode_batches(bytes(buffer)))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == RECORD_SCHEMA
    return [row for batch in batches for row in batch.to_pylist()]


def expected(rows, base_offset):
    return [
        {"offset": base_offset + i, "value": v, "subject": s, "key": k, "headers": h or None}
        for i, (v, s, k, h) in enumerate(rows)
    ]


def without_time(rows):
    return [{name: row[name] for name in row if name != "timestamp"} for row in rows]


@given(st.lists(st.lists(records, min_size=1, max_size=12), min_size=1, max_size=5), compressions)
def test_records_survive_a_round_trip(chunks, compression):
    """Batches of any records decode to the same records, merged or not."""
    buffer, wanted, offset = bytearray(), [], 0
    for rows in chunks:
        buffer += encode(rows, Stamp(offset, 3, 1_000, compression))
        wanted += expected(rows, offset)
        offset += len(rows)
    assert without_time(decode(buffer)) == wanted


@given(
    st.lists(st.lists(records, min_size=1, max_size=12), min_size=1, max_size=5),
    compressions,
    st.sets(st.integers(0, 11)),
)
def test_one_record_is_decoded_as_among_all(chunks, compression, removed):
    """At any offset, also in a batch with gaps; where there is none, nothing is found."""
    buffer, offset = bytearray(), 0
    for rows in chunks:
        [whole] = decode_batches(bytes(encode(rows, Stamp(offset, 3, 1_000 + offset))))
        kept = [place for place in range(len(rows)) if place not in removed] or [0]
        buffer += encode_arrow(
            whole.take(kept),
            Stamp(offset, 3, 1_000 + offset, compression),
            default_subject="",
            offset_deltas=kept,
            last_offset_delta=len(rows) - 1,
        )
        offset += len(rows)
    wanted = {row["offset"]: row for row in decode(buffer)}
    for each in range(-1, offset + 1):
        found, row = decode_record(pa.py_buffer(bytes(buffer)), each), wanted.get(each)
        if row is None:
            assert found is None
            continue
        assert found[1:] == tuple(row[name] for name in ("subject", "key", "value", "headers"))
        assert found.timestamp_ns == row["timestamp"].value


@given(st.lists(st.binary(max_size=64), min_size=1, max_size=60))
def test_a_trickle_of_single_records_is_gathered(values):
    """Many one-record batches decode to one Arrow batch with every record in order."""
    buffer = bytearray()
    for offset, value in enumerate(values):
        buffer += encode_records([value], [f"s.{offset % 3}"], Stamp(offset, 0, offset + 5))
    batches = list(decode_batches(bytes(buffer)))
    assert len(batches) == 1
    rows = batches[0].to_pylist()
    assert [row["value"] for row in rows] == values
    assert [row["offset"] for row in rows] == list(range(len(values)))
    assert [row["subject"] for row in rows] == [f"s.{i % 3}" for i in range(len(values))]
    assert batches[0].column(1).cast(pa.int64()).to_pylist() == [i + 5 for i in range(len(values))]


@given(st.lists(records, min_size=1, max_size=20), st.integers(0, 10), st.integers(1, 10))
def test_slices_of_arrow_batches_encode(rows, start, length):
    """An Arrow batch, or any slice of one, encodes to exactly its rows."""
    whole = next(iter(decode_batches(bytes(encode(rows, Stamp(0, 0, 1))))))
    piece = whole.slice(start, length)
    if piece.num_rows == 0:
        return
    buffer = encode_arrow(piece, Stamp(100, 0, 1), default_subject="d")
    wanted = expected(rows[start : start + length], 100)
    assert without_time(decode(buffer)) == wanted


@given(st.lists(records, min_size=1, max_size=6), compressions, st.data())
def test_any_corruption_is_found(rows, compression, data):
    """A batch with any one byte changed never passes its check."""
    buffer = encode(rows, Stamp(0, 0, 1, compression))
    position = data.draw(st.integers(0, len(buffer) - 1))
    buffer[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatchError):
        check_batch(buffer)


@given(st.binary(max_size=400), compressions)
def test_decoding_any_bytes_is_safe(noise, compression):
    """Decoding a batch whose columns are noise raises the typed error or yields valid Arrow."""
    good = bytearray(
        encode([(b"value", "subject", b"k", [("a", b"b")])], Stamp(0, 0, 1, compression))
    )
    start = 72
    good[start : start + len(noise)] = noise[: len(good) - start]
    try:
        for batch in decode_batches(bytes(good)):
            batch.validate()
    except CorruptBatchError:
        pass
