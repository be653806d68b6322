"""Other libraries' data frames against a real broker: reads can be appended and computed."""

import pyarrow as pa
import pytest

import strandline
from strandline.errors import InvalidRecordError
from strandline.record.schema import HEADERS_TYPE
from strandline.testing import Server

HEADERS = [[("h", b"\xff"), ("h", b"")], None, [("g", b"1")]]
KEPT = ["subject", "key", "value", "headers"]


@pytest.fixture(scope="module")
def client():
    """A client of a broker with the records ``a`` and the empty stream ``b``."""
    with Server() as url, strandline.connect(url) as made:
        made.create_stream("a", subject="a.*")
        made.create_stream("b", subject="a.>")
        for number, headers in enumerate(HEADERS):
            made.append("a", b"v", key=b"k%d" % number, subject="a.x", headers=headers)
        yield made


def _polars(table: pa.Table) -> object:
    return pytest.importorskip("polars").from_arrow(table)


def _pandas(table: pa.Table) -> object:
    frame = pytest.importorskip("pandas") and table.to_pandas()
    return frame[frame["value"] == b"v"]


@pytest.mark.parametrize("frame_of", [_polars, _pandas])
def test_a_frame_that_was_read_is_appended_unchanged(client, frame_of):
    """Subjects, keys, values and headers arrive in another stream as they were in the first."""
    read = client.read("a").read_all()
    [stored] = client.append_batch("b", frame_of(read)).ranges
    copy = client.read("b", start=stored.offset).read_all()
    assert copy.select(KEPT).to_pylist() == read.select(KEPT).to_pylist()


def test_what_a_read_gives_lies_where_arrow_computes_with_it(client, capfd):
    """Arrow warns on standard error of each buffer at an odd address, as gRPC leaves them."""
    for count in range(1, len(HEADERS) + 1):
        table = client.read("a", stop=count).read_all()
        assert table.group_by("key").aggregate([("value", "count")]).num_rows == count
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("headers", [{"h": None}, [("g", b"1"), ("h", None)]])
def test_a_header_without_a_value_is_not_stored_as_an_empty_one(client, headers):
    """Every way to append rejects it with the header's name."""
    before = client.stream_info("b").partitions[0].high_watermark
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    table = pa.table({"value": ["v"], "headers": pa.array([pairs], HEADERS_TYPE)})
    with pytest.raises(InvalidRecordError, match="header 'h' has no value"):
        client.append("b", b"v", headers=headers)
    with pytest.raises(InvalidRecordError, match="header 'h' has no value"):
        client.append_batch("b", table)
    assert client.stream_info("b").partitions[0].high_watermark == before
