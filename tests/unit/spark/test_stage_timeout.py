"""How long staged rows wait to be published: the option reaches the broker, which keeps to it."""

import time

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import strandline
from strandline.errors import StrandlineError
from strandline.spark.options import parse_write_options
from strandline.spark.writer import _Appender
from strandline.testing import Server

SCHEMA = StructType([StructField("value", StringType())])
ROWS = pa.RecordBatch.from_pydict({"value": ["a", "b"]})
PATIENCE_S = 60


@pytest.fixture(scope="module")
def url():
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("s")
        yield url


def values(url):
    with strandline.connect(url) as client:
        return client.read("s", columns=["value"]).read_all().column("value").to_pylist()


def test_staged_rows_are_discarded_when_their_time_is_over(url):
    """They can no longer be published; those of a stage with more time can."""
    options = {"server": url, "stream": "s", "delivery": "exactlyOnce", "retryTimeoutMs": "0"}
    short = _Appender(parse_write_options(options | {"stageTimeoutMs": "300"}), SCHEMA)
    long = _Appender(parse_write_options(options | {"stageTimeoutMs": "600000"}), SCHEMA)
    kept = long.stage(iter([ROWS]), txn_id="long", batch=0)
    gone = short.stage(iter([ROWS]), txn_id="short", batch=0)
    deadline_s = time.monotonic() + PATIENCE_S
    with strandline.connect(url) as client:
        # Two beginnings with two rows each, and the end of the one.
        while client.stream_info("s").partitions[0].log_end_offset < 7:
            assert time.monotonic() < deadline_s, "the rows that are over time are kept"
            time.sleep(0.05)
    with pytest.raises(StrandlineError):
        short.publish([gone])
    long.publish([kept])
    assert values(url) == [b"a", b"b"]


def test_staged_rows_have_an_hour(url):
    """Unless the option says otherwise."""
    assert parse_write_options({"server": url, "stream": "s"}).stage_timeout_ms == 3_600_000
