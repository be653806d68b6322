"""Where a copy goes on: found in the copy itself, however large it is, on a real broker."""

import pyarrow as pa
import pytest

import strandline
from strandline.errors import InvalidRequestError
from strandline.record.schema import HEADERS_TYPE
from strandline.spark.headers import SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM
from strandline.spark.pipelines.sources import _WINDOW_RECORDS, copied_offsets
from strandline.testing import Server


@pytest.fixture(scope="module")
def client():
    with Server() as url, strandline.connect(url) as made:
        yield made


def put(client, into, partition, offsets, *, of="source"):
    """Append copies of the records at these offsets of a stream; None: records without a source."""
    headers = [
        None
        if offset is None
        else [
            (SOURCE_STREAM, of.encode()),
            (SOURCE_PARTITION, b"%d" % partition),
            (SOURCE_OFFSET, b"%d" % offset),
        ]
        for offset in offsets
    ]
    table = pa.table({"value": ["v"] * len(headers), "headers": pa.array(headers, HEADERS_TYPE)})
    client.append_batch(into, table, partition=partition)


def test_a_copy_continues_behind_its_newest_record(client):
    """In windows from its end: it may be many windows long, and end with records of others."""
    source = client.create_stream("source", partitions=5)
    client.create_stream("copy", partitions=5)
    many = 3 * _WINDOW_RECORDS + 7
    put(client, "copy", 0, range(many))
    put(client, "copy", 1, range(10))
    put(client, "copy", 1, [None] * many)
    put(client, "copy", 2, range(5))
    put(client, "copy", 2, range(many), of="another")
    put(client, "copy", 3, [*range(20, 40), *range(_WINDOW_RECORDS - 20)], of="another")
    put(client, "copy", 3, [17])
    client.delete_records("copy", 100, partition=0)
    assert copied_offsets(client, source, into="copy") == {0: many, 1: 10, 2: 5, 3: 18}


def test_the_newest_of_a_window_counts(client):
    """Whatever comes behind it in the same window."""
    source = client.create_stream("source2")
    client.create_stream("copy2")
    put(client, "copy2", 0, [7, 8, 3, 4], of="source2")
    put(client, "copy2", 0, [None] * 3)
    assert copied_offsets(client, source, into="copy2") == {0: 9}


def test_a_copy_of_an_older_stream_is_rejected(client):
    """Its offsets mean nothing in the stream that has the name now."""
    client.create_stream("source3")
    client.create_stream("copy3")
    put(client, "copy3", 0, range(3), of="source3")
    client.delete_stream("source3")
    source = client.create_stream("source3")
    with pytest.raises(InvalidRequestError, match="recreated"):
        copied_offsets(client, source, into="copy3")
