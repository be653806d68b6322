"""The newest record of each key: a changelog as a table."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.client.reader.compacted_view import compact_batches, compacted_view
from strandline.testing import Server

SCHEMA = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
RECORDS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"key"])),
        st.one_of(st.none(), st.binary(max_size=3)),
    )
)


def batches_of(records, rows):
    """Return the records as batches of this many rows."""
    for first in range(0, len(records), rows):
        some = records[first : first + rows]
        offsets = pa.array(range(first, first + len(some)), pa.int64())
        keys, values = (pa.array(column, pa.binary()) for column in zip(*some, strict=True))
        yield pa.RecordBatch.from_arrays([offsets, keys, values], schema=SCHEMA)


@given(RECORDS, st.integers(1, 7), st.integers(1, 200))
def test_of_each_key_the_last_record_stays_in_order(records, rows, fold_bytes):
    """However records come in batches, and however often they are folded on the way."""
    last = {key: at for at, (key, _) in enumerate(records) if key is not None}
    found = compact_batches(batches_of(records, rows), SCHEMA, fold_bytes=fold_bytes)
    assert found.to_pylist() == [
        {"offset": at, "key": key, "value": records[at][1]}
        for key, at in sorted(last.items(), key=lambda item: item[1])
    ]


@pytest.fixture(scope="module")
def client():
    """A client of a broker in this process."""
    with Server() as url, strandline.connect(url) as connected:
        yield connected


def test_a_stream_becomes_a_table_of_what_is_alive(client):
    """Every partition counts; tombstones and records without a key are left out."""
    client.create_stream("totals", partitions=3)
    with client.producer("totals") as producer:
        for number in range(60):
            producer.append(b"%d" % number, key=b"k%d" % (number % 7))
        producer.append(None, key=b"k3")
        producer.append(b"no key")
    found = compacted_view(client, "totals").to_pylist()
    newest = {b"k%d" % (number % 7): b"%d" % number for number in range(60)}
    del newest[b"k3"]
    assert {row["key"]: row["value"] for row in found} == newest
    assert len(found) == len(newest)


def test_the_columns_asked_for_come_in_their_order(client):
    """Also without key and value, which the table is made by."""
    client.create_stream("few")
    with client.producer("few") as producer:
        for value in (b"1", b"2"):
            producer.append(value, key=b"k")
    found = compacted_view(client, "few", columns=["offset", "subject"])
    assert found.column_names == ["offset", "subject"]
    assert found.column("offset").to_pylist() == [1]
