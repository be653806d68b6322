"""Several streams in one read: readers called directly, at a real broker, without a JVM."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

import strandline
from pyspark_strandline import DefaultSource
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.spark.connection import forget_client
from strandline.spark.options import parse_read_options, parse_table_options
from strandline.spark.tables.gaps import GapExplainer
from strandline.testing import Server

UNLIMITED = ReadMinRows(1)


@pytest.fixture
def log():
    """A broker with the streams ``orders-eu`` (two partitions), ``orders-us`` and ``clicks``."""
    with Server() as url, strandline.connect(url) as client:
        for name, partitions in (("orders-eu", 2), ("orders-us", 1), ("clicks", 1)):
            client.create_stream(name, partitions=partitions)
        yield Log(str(url), client)
        forget_client(str(url))


class Log:
    """A broker, and readers of its streams."""

    def __init__(self, url, client):
        self.url = url
        self.client = client

    def append(self, stream, *values, partition=0):
        for value in values:
            self.client.append(stream, value.encode(), partition=partition)

    def source(self, **options):
        return DefaultSource(
            CaseInsensitiveDict({"server": self.url, "longPollMs": "0", **options})
        )

    def batch(self, **options):
        made = self.source(**options)
        return rows(made.reader(schema=made.schema()), None)

    def follow(self, **options):
        made = self.source(**options)
        return made.streamReader(schema=made.schema())


def rows(reader, offsets):
    """Everything of a micro-batch or batch read as (stream, partition, value)."""
    planned = reader.partitions(*offsets) if offsets else reader.partitions()
    return sorted(
        (row["stream"], row["partition"], row["value"].decode())
        for task in planned
        for batch in reader.read(task)
        for row in batch.to_pylist()
    )


def kept(offsets):
    """Offsets after a round trip through Spark's checkpoint."""
    return json.loads(json.dumps(offsets))


def test_a_list_and_a_pattern_read_several_streams(log):
    """Each row names its stream; other streams are left out."""
    log.append("orders-eu", "a", partition=1)
    log.append("orders-us", "b")
    log.append("clicks", "c")
    assert log.batch(stream="orders-us, clicks") == [("clicks", 0, "c"), ("orders-us", 0, "b")]
    found = [("orders-eu", 1, "a"), ("orders-us", 0, "b")]
    assert log.batch(streamPattern="orders-*") == found
    assert log.batch(streamPattern="orders-[eu]?", subject="orders-us") == [("orders-us", 0, "b")]


def test_a_pattern_leaves_the_broker_s_own_streams_out(log):
    """A query that commits its progress to one would feed itself; named, they are readable."""
    log.append("clicks", "c")
    log.client.groups.commit("readers", {("clicks", 0): 1})
    assert "__groups" in [each.name for each in log.client.list_streams()]
    assert log.batch(streamPattern="*") == [("clicks", 0, "c")]
    named = log.source(stream="__groups")
    [task] = named.reader(schema=named.schema()).partitions()
    assert sum(batch.num_rows for batch in named.reader(schema=named.schema()).read(task))
    with pytest.raises(UnknownStreamError, match="__g"):
        log.batch(streamPattern="__g*")


def test_a_stream_column_only_where_several_are_read(log):
    """A copy of one stream has none: a sink would take it for the stream to write to."""
    names = log.source(stream="clicks").schema().fieldNames()
    assert names == ["partition", "offset", "timestamp", "subject", "key", "value", "headers"]
    for several in ({"stream": "clicks,orders-eu"}, {"streamPattern": "clicks"}):
        assert log.source(**several).schema().fieldNames() == ["stream", *names]
    asked = log.source(stream="clicks").reader(schema=StructType().add("stream", "string"))
    log.append("clicks", "c")
    [task] = asked.partitions()
    assert [batch.to_pylist() for batch in asked.read(task)] == [[{"stream": "clicks"}]]


def test_offsets_name_stream_and_partition(log):
    """A micro-batch's end goes through a checkpoint; it may start and end other reads."""
    log.append("orders-eu", "a", "b", partition=1)
    log.append("orders-us", "c")
    query = log.follow(streamPattern="orders-*")
    start = kept(query.initialOffset())
    end = kept(query.latestOffset(start, UNLIMITED))
    assert rows(query, (start, end)) == [
        ("orders-eu", 1, "a"),
        ("orders-eu", 1, "b"),
        ("orders-us", 0, "c"),
    ]
    places = {key: end[key] for key in end if "/" in key}
    assert places == {"orders-eu/0": 0, "orders-eu/1": 2, "orders-us/0": 1}
    log.append("orders-us", "d")
    assert log.batch(streamPattern="orders-*", startingOffsets=json.dumps(end)) == [
        ("orders-us", 0, "d")
    ]
    assert len(log.batch(streamPattern="orders-*", endingOffsets=json.dumps(end))) == 3
    some = json.dumps({"orders-eu/1": 1, "orders-us/0": "latest"})
    assert log.batch(streamPattern="orders-*", startingOffsets=some) == [("orders-eu", 1, "b")]


def test_a_new_stream_is_read_from_its_beginning(log):
    """Also if its first records were deleted before; a replay of the batch reads the same."""
    query = log.follow(streamPattern="orders-*", startingOffsets="latest")
    start = kept(query.initialOffset())
    log.client.create_stream("orders-jp", segment_bytes=1 << 20)
    for _ in range(3):
        log.client.append_batch("orders-jp", values(700_000))
    log.client.delete_records("orders-jp", 2)
    first = log.client.offsets("orders-jp", "earliest")[0]
    assert first > 0, "nothing was deleted: the case is not reached"
    end = kept(query.latestOffset(start, UNLIMITED))
    ranges = [task.range for task in query.partitions(start, end)]
    assert [(r.partition, r.start, r.stop) for r in ranges] == [(("orders-jp", 0), first, 3)]
    log.append("orders-jp", "d")
    resumed = log.follow(streamPattern="orders-*", startingOffsets="latest")
    again = resumed.partitions(resumed.initialOffset(), end)
    assert [task.range for task in again] == ranges
    after = kept(resumed.latestOffset(end, UNLIMITED))
    assert rows(resumed, (end, after)) == [("orders-jp", 0, "d")]


def values(size):
    import pyarrow as pa

    return pa.table({"value": pa.array([b"x" * size])})


def test_limits_are_shared_by_all_streams(log):
    """``maxRecordsPerTrigger`` counts the records of all of them together."""
    log.append("orders-us", *"abcdef")
    log.append("clicks", *"gh")
    query = log.follow(stream="orders-us,clicks", maxRecordsPerTrigger="4")
    start = kept(query.initialOffset())
    end = kept(query.latestOffset(start, ReadMaxRows(4)))
    assert [stream for stream, _, _ in rows(query, (start, end))] == ["clicks"] + 3 * ["orders-us"]


def test_a_recreated_or_deleted_stream_is_rejected(log):
    """The offsets of the others stay valid, and the error says how to go on with them."""
    query = log.follow(streamPattern="orders-*")
    end = kept(query.latestOffset(kept(query.initialOffset()), UNLIMITED))
    log.client.delete_stream("orders-us")
    for change in (lambda: None, lambda: log.client.create_stream("orders-us")):
        change()
        with pytest.raises(DataLossError, match=r"stream orders-us.*as startingOffsets$"):
            query.latestOffset(end, UNLIMITED)
        with pytest.raises(DataLossError, match="orders-us"):
            query.partitions(end, end)
        with pytest.raises(DataLossError, match="orders-us"):
            log.batch(streamPattern="orders-*", startingOffsets=json.dumps(end))


def test_a_query_of_one_stream_goes_on_with_several(log):
    """Its old checkpoint keeps its form and place; a query of fewer streams is rejected."""
    log.append("orders-us", "a")
    one = log.follow(stream="orders-us")
    end = kept(one.latestOffset(kept(one.initialOffset()), UNLIMITED))
    assert end["0"] == 1
    log.append("orders-us", "b")
    log.append("clicks", "c")
    both = log.follow(stream="orders-us,clicks")
    more = kept(both.latestOffset(end, UNLIMITED))
    assert rows(both, (end, more)) == [("clicks", 0, "c"), ("orders-us", 0, "b")]
    with pytest.raises(DataLossError, match="reads stream clicks, too"):
        one.latestOffset(more, UNLIMITED)


def test_a_waiting_query_is_woken_by_any_stream(log):
    """An idle query does not wait for its first stream alone."""
    query = log.follow(stream="orders-us,clicks", longPollMs="20000", group="a copy")
    start = kept(query.initialOffset())
    log.append("clicks", "c")
    end = kept(query.latestOffset(start, UNLIMITED))
    import threading

    later = threading.Timer(0.3, lambda: log.append("clicks", "d"))
    later.start()
    try:
        last = query.latestOffset(end, UNLIMITED)
    finally:
        later.join()
    assert last["clicks/0"] == 2
    assert log.client.groups.committed_offsets("a copy") == {
        ("clicks", 0): 1,
        ("orders-us", 0): 0,
    }


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"stream": "a,,b"}, "empty name"),
        ({"stream": "a,b,a"}, "twice"),
        ({"stream": "a", "streamPattern": "a*"}, "not both"),
        ({}, "streamPattern"),
        ({"stream": "a,b", "startingOffsets": '{"0": 1}'}, "orders/0"),
        ({"stream": "a", "startingOffsets": '{"b/0": 1}'}, "must be earliest"),
    ],
)
def test_options_that_select_nothing_clear_are_rejected(options, hint):
    """Each error says what to write instead."""
    with pytest.raises(InvalidConfigError, match=hint):
        parse_read_options({"server": "s", **options}, streaming=None)


def test_what_does_not_exist_is_rejected(log):
    """A pattern without streams is a misspelt one, most likely."""
    with pytest.raises(UnknownStreamError, match=r"order_\*.*clicks, orders-eu, orders-us"):
        log.batch(streamPattern="order_*")
    with pytest.raises(UnknownStreamError, match="nothing"):
        log.batch(stream="clicks,nothing")
    with pytest.raises(UnknownPartitionError, match="clicks/7, but the stream has clicks/0"):
        log.batch(streamPattern="clicks", startingOffsets='{"clicks/7": 1}')


def test_a_table_takes_rows_of_several_streams_that_say_which(log):
    """Without the column ``stream`` offsets mean nothing; without ``offset`` there are none."""
    table = parse_table_options({"path": "/t"})
    schema = log.source(streamPattern="orders-*").schema()
    assert GapExplainer(table, schema).has_several
    nameless = StructType([field for field in schema if field.name != "stream"])
    with pytest.raises(InvalidConfigError, match="withColumnRenamed"):
        GapExplainer(table, nameless)
    plain = StructType().add("stream", "string").add("partition", "integer").add("offset", "long")
    assert GapExplainer(table, plain).has_several
    named = parse_table_options({"path": "/t", "stream": "clicks"})
    assert not GapExplainer(named, plain).has_several
    GapExplainer(table, StructType([field for field in schema if field.name != "offset"]))
    assert not GapExplainer(table, log.source(stream="clicks").schema()).has_several


def at(stored_ns):
    """A time as an option takes it, cut to the microsecond before a record was stored."""
    return (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=stored_ns // 1000)
    ).isoformat()


def test_times_select_by_partition(log):
    """Starts and ends by time, for all partitions or one by one; an end is exclusive."""
    for value in "ab":
        for stream, partition in (("orders-eu", 0), ("orders-eu", 1), ("orders-us", 0)):
            log.append(stream, f"{value}{partition}", partition=partition)
    second = log.client.read("orders-us").read_all().column("timestamp")[1].value
    both = {"streamPattern": "orders-*"}
    assert log.batch(**both, startingTimestamp=at(second)) == [("orders-us", 0, "b0")]
    since = {"orders-us/0": at(second), "orders-eu/1": "2000-01-01", "orders-eu/0": "2100-01-01"}
    assert log.batch(**both, startingTimestamp=json.dumps(since)) == [
        ("orders-eu", 1, "a1"),
        ("orders-eu", 1, "b1"),
        ("orders-us", 0, "b0"),
    ]
    until = {"orders-us/0": at(second), "orders-eu/0": 1000}
    assert log.batch(**both, endingTimestamp=json.dumps(until)) == [
        ("orders-eu", 1, "a1"),
        ("orders-eu", 1, "b1"),
        ("orders-us", 0, "a0"),
    ]
    assert log.batch(**both, endingTimestamp="2000-01-01", startingOffsets="latest") == []
    assert len(log.batch(**both, endingTimestamp="2100-01-01")) == 6
    with pytest.raises(UnknownPartitionError, match="startingTimestamp names partition clicks/0"):
        log.batch(**both, startingTimestamp='{"clicks/0": 1}')


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"endingTimestamp": "soon"}, "'endingTimestamp' must be"),
        ({"startingTimestamp": '{"0": true}'}, "JSON such as"),
        ({"startingTimestamp": "{}"}, "JSON such as"),
        ({"startingTimestamp": '{"0": "soon"}'}, "'startingTimestamp' must be"),
        ({"endingTimestamp": "2000-01-01", "endingOffsets": "latest"}, "not both"),
        ({"endingTimestamp": "2000-01-01", "startingTimestamp": "2001-01-01"}, "is before"),
    ],
)
def test_unclear_times_are_rejected(options, hint):
    """Naming the option, and what it takes."""
    with pytest.raises(InvalidConfigError, match=hint):
        parse_read_options({"server": "s", "stream": "x", **options}, streaming=None)


def test_a_streaming_read_has_no_end_by_time(log):
    """As it has none by offsets."""
    with pytest.raises(InvalidConfigError, match="availableNow"):
        log.follow(stream="clicks", endingTimestamp="2000-01-01").initialOffset()
