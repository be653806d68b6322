"""Spark's readers and writers called directly, without a JVM; the broker is a few numbers."""

import json
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructField, StructType

from pyspark_strandline import DefaultSource as StreamFormat
from pyspark_strandline_table import DefaultSource as TableFormat
from strandline.errors import DataLossError, InvalidConfigError, InvalidRequestError
from strandline.spark import batch_reader, stream_reader
from strandline.spark.batch_reader import RangePartition
from strandline.spark.options import parse_write_options
from strandline.spark.planning import OffsetRange, PartitionExtent, StreamExtent
from strandline.spark.rows import check_columns
from strandline.spark.source import COLUMNS
from strandline.spark.table import read_table
from strandline.spark.tables.io import StagedFiles
from strandline.spark.tables.stage import StagedRows

WRITE = parse_write_options({"server": "s:1", "stream": "x"})
UNLIMITED = ReadMinRows(1)
"""What Spark hands a query without limits that goes on, or has ``availableNow``."""
ONCE = ReadAllAvailable()
"""What it hands one with ``once``, and no other."""


class Broker:
    """The broker's answers to readers; tests change them as they run."""

    def __init__(self, monkeypatch):
        self.extents = {0: (0, 100), 1: (0, 50)}
        self.identity = "x@1"
        self.waits = []
        for module in (batch_reader, stream_reader):
            monkeypatch.setattr(module, "stream_state", lambda options: self.state())
        monkeypatch.setattr(
            stream_reader, "wait_for_records", lambda options, beyond: self.waits.append(beyond)
        )

    def state(self):
        partitions = tuple(
            PartitionExtent(p, start, end, 10 * (end - start))
            for p, (start, end) in self.extents.items()
        )
        return StreamExtent(self.identity, partitions)


@pytest.fixture
def broker(monkeypatch):
    """Two partitions with 100 and 50 records of 10 bytes."""
    return Broker(monkeypatch)


def source(**options):
    return StreamFormat(CaseInsensitiveDict({"server": "s", "stream": "x", **options}))


def reader(**options):
    made = source(**options)
    return made.streamReader(schema=made.schema())


def encoded(first, second, identity="x@1"):
    return {"0": first, "1": second, "stream": identity}


def test_what_spark_pickles_survives(broker):
    """Sources, readers, partitions and messages travel between Spark's processes."""
    made = source()
    for thing in (
        made,
        made.reader(schema=made.schema()),
        reader(),
        StagedFiles(
            "q",
            3,
            StagedRows(files=[], deletes=[], ranges={}),
            None,
            values=None,
            version=0,
            names=None,
        ),
    ):
        assert type(pickle.loads(pickle.dumps(thing))) is type(thing)
    partition = RangePartition(OffsetRange(1, 2, 3), "x@1")
    assert pickle.loads(pickle.dumps(partition)).range == OffsetRange(1, 2, 3)


def test_the_formats_have_their_names():
    """Spark finds both by these names."""
    assert (StreamFormat.name(), TableFormat.name()) == ("strandline", "strandline-table")


def test_a_first_batch_that_is_repeated_begins_where_it_began(broker):
    """A query that is killed in it asks for its first offsets again, and records have come."""
    before, every = reader(startingOffsets="latest"), UNLIMITED
    start = before.initialOffset()
    broker.extents = {0: (0, 120), 1: (0, 60)}
    end = json.loads(json.dumps(before.latestOffset(start, every)))
    broker.extents = {0: (0, 150), 1: (0, 60)}
    after = reader(startingOffsets="latest")
    planned = after.partitions(after.initialOffset(), end)
    assert [each.range for each in planned] == [OffsetRange(0, 100, 120), OffsetRange(1, 50, 60)]
    assert after.latestOffset(end, every) == encoded(150, 60)
    broker.extents[0] = (0, 120)
    assert after.latestOffset(end, every) == end, "nothing new is nothing else either"


def test_a_query_starts_where_it_is_told(broker):
    """The first offsets name every partition and the stream."""
    assert reader().initialOffset() == encoded(0, 0)
    assert reader(startingOffsets="latest").initialOffset() == encoded(100, 50)


def test_partitions_that_are_added_are_read_from_their_beginning(broker):
    """A query whose checkpoint lacks them continues, and its replays read the same."""
    query = reader(longPollMs="1000")
    begin = json.loads(json.dumps(query.latestOffset(encoded(0, 0), UNLIMITED)))
    broker.extents |= {2: (0, 0), 3: (0, 0)}
    assert query.latestOffset(begin, UNLIMITED) == begin, "they are empty: nothing is new"
    assert broker.waits[-1] == {0: 100, 1: 50, 2: 0, 3: 0}, "it waits for theirs, too"
    broker.extents |= {2: (0, 7), 3: (0, 3)}
    end = json.loads(json.dumps(query.latestOffset(begin, UNLIMITED)))
    assert end == {"0": 100, "1": 50, "2": 7, "3": 3, "stream": "x@1"}
    planned = [each.range for each in reader().partitions(begin, end)]
    assert planned == [OffsetRange(2, 0, 7), OffsetRange(3, 0, 3)]
    limited = reader(maxRecordsPerTrigger="5").latestOffset(begin, ReadMaxRows(5))
    assert (limited["2"], limited["3"]) == (3, 2), "one each, the rest in proportion"
    sized = reader(maxBytesPerTrigger="50").latestOffset(begin, UNLIMITED)
    assert sized["2"] + sized["3"] == 5


def test_a_broker_that_has_not_heard_of_an_added_partition_takes_nothing_back(broker):
    """Else a query would read the partition again."""
    read = encoded(100, 50) | {"2": 7}
    assert reader().latestOffset(read, UNLIMITED) == read
    broker.extents[0] = (0, 120)
    assert reader().latestOffset(read, UNLIMITED) == encoded(120, 50) | {"2": 7}


def test_records_that_were_deleted_from_an_added_partition_are_a_loss(broker):
    """They were never read."""
    broker.extents[2] = (4, 7)
    with pytest.raises(DataLossError, match="partition 2"):
        reader().latestOffset(encoded(100, 50), UNLIMITED)
    skipping = reader(failOnDataLoss="false")
    assert skipping.latestOffset(encoded(100, 50), UNLIMITED)["2"] == 7


def test_an_available_now_run_leaves_partitions_that_come_meanwhile(broker):
    """It ends where the stream ended when it began; the next run reads them."""
    query = reader()
    query.prepareForTriggerAvailableNow()
    broker.extents[2] = (0, 7)
    end = query.latestOffset(encoded(0, 0), UNLIMITED)
    assert (end["0"], end["1"], end.get("2", 0)) == (100, 50, 0)
    again = reader()
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(end, UNLIMITED)["2"] == 7


def test_a_batch_is_limited_by_records_and_bytes(broker):
    """The limit of the engine and the byte option both hold; take-all ignores the options."""
    limited = reader(maxRecordsPerTrigger="30", maxBytesPerTrigger="150")
    assert limited.getDefaultReadLimit() == ReadMaxRows(30)
    assert limited.latestOffset(encoded(0, 0), ReadMaxRows(30)) == encoded(10, 5)
    assert limited.latestOffset(encoded(0, 0), ONCE) == encoded(100, 50)
    by_bytes = reader(maxBytesPerTrigger="300")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(300)
    assert by_bytes.latestOffset(encoded(0, 0), ReadMaxBytes(300)) == encoded(20, 10)
    assert reader().getDefaultReadLimit() == UNLIMITED


def test_available_now_stops_at_what_was_there(broker):
    """Records that come after the start of the run are left to the next one, and nothing waits."""
    run = reader()
    run.prepareForTriggerAvailableNow()
    broker.extents = {0: (0, 500), 1: (0, 500)}
    assert run.latestOffset(encoded(0, 0), UNLIMITED) == encoded(100, 50)
    assert run.latestOffset(encoded(100, 50), UNLIMITED) == encoded(100, 50)
    # A replayed batch may have been planned beyond this run's target: never back.
    assert run.latestOffset(encoded(200, 60), UNLIMITED) == encoded(200, 60)
    assert broker.waits == []


def test_a_slow_stream_gathers_records(broker, monkeypatch):
    """Until enough bytes wait, or the delay is over, no batch is made; availableNow never waits."""
    now = [100.0]
    monkeypatch.setattr(stream_reader.time, "monotonic", lambda: now[0])
    slow = reader(minBytesPerTrigger="2000", maxTriggerDelayMs="60000", longPollMs="0")
    start = encoded(0, 0)
    assert slow.latestOffset(start, UNLIMITED) == start
    now[0] += 59
    assert slow.latestOffset(start, UNLIMITED) == start
    now[0] += 1
    assert slow.latestOffset(start, UNLIMITED) == encoded(100, 50)
    assert slow.latestOffset(start, UNLIMITED) == start, "a new wait begins"
    broker.extents[0] = (0, 150)
    assert slow.latestOffset(start, UNLIMITED) == encoded(150, 50)
    run = reader(minBytesPerTrigger="1000000", longPollMs="0")
    run.prepareForTriggerAvailableNow()
    assert run.latestOffset(start, UNLIMITED) == encoded(150, 50)


def test_a_query_that_runs_once_leaves_nothing(broker):
    """It takes all records, however few, without waiting, since it has no second batch."""
    run = reader(minBytesPerTrigger="1000000")
    assert run.getDefaultReadLimit() == UNLIMITED, "or nothing would tell it from others"
    assert run.latestOffset(encoded(0, 0), ONCE) == encoded(100, 50)
    assert run.latestOffset(encoded(100, 50), ONCE) == encoded(100, 50)
    assert broker.waits == []


def test_a_running_query_waits_for_records(broker):
    """At the end it waits on the broker, unless longPollMs is 0."""
    reader().latestOffset(encoded(100, 50), UNLIMITED)
    assert broker.waits == [{0: 100, 1: 50}]
    reader().latestOffset(encoded(99, 50), UNLIMITED)
    assert len(broker.waits) == 1
    reader(longPollMs="0").latestOffset(encoded(100, 50), UNLIMITED)
    assert len(broker.waits) == 1


def test_lost_records_and_other_streams_are_rejected(broker):
    """Truncation, a shorter log and another stream of the name end the query."""
    broker.extents[0] = (20, 100)
    with pytest.raises(DataLossError, match="deleted before they were read"):
        reader().latestOffset(encoded(10, 0), UNLIMITED)
    assert reader(failOnDataLoss="false").latestOffset(encoded(10, 0), UNLIMITED) == encoded(
        100, 50
    )
    broker.identity = "x@2"
    with pytest.raises(DataLossError, match="x@2"):
        reader(failOnDataLoss="false").latestOffset(encoded(50, 0), UNLIMITED)


def test_tasks_follow_from_offsets_alone(broker):
    """The same start and end give the same tasks, whatever the broker has become."""
    first = reader(maxRecordsPerPartition="40").partitions(encoded(0, 0), encoded(100, 50))
    broker.extents = {}
    again = reader(maxRecordsPerPartition="40").partitions(encoded(0, 0), encoded(100, 50))
    assert [p.range for p in first] == [p.range for p in again]
    assert len(first) == 5
    assert reader().partitions(encoded(5, 5), encoded(5, 5)) == []


def test_a_planned_batch_of_another_stream_is_rejected(broker):
    """A restarted query begins with the micro-batch it had planned, the very first one with an
    initial offset of now: that is refused where it is another stream's.
    """
    planned = encoded(100, 50)
    broker.identity = "x@2"
    for start in (encoded(0, 0), reader().initialOffset()):
        with pytest.raises(DataLossError, match=r"x@2.*new table or output"):
            reader().partitions(start, planned)


def test_a_checkpoint_is_for_one_output(broker):
    """Another output would get only what comes from now on, so it is refused, with news or without;
    a checkpoint from before outputs were noted goes on, and notes it.
    """
    end = json.loads(json.dumps(reader(output="a").latestOffset(encoded(0, 0), UNLIMITED)))
    assert end["output"] == "a"
    for refused in (
        lambda query: query.latestOffset(end, UNLIMITED),
        lambda query: query.partitions(query.initialOffset(), end),
    ):
        refused(reader(output="a"))
        refused(reader())
        with pytest.raises(InvalidConfigError, match=r"written to a, but .* b,.*new checkpoint"):
            refused(reader(output="b"))


def test_tasks_know_the_stream_that_they_were_planned_on(broker):
    """They return no records of a stream that was recreated since."""
    made = source()
    snapshot, query = made.reader(schema=made.schema()), reader()
    for tasks in (snapshot.partitions(), query.partitions(encoded(0, 0), encoded(100, 50))):
        assert [pickle.loads(pickle.dumps(task)).identity for task in tasks] == ["x@1", "x@1"]


def test_lag_is_reported(broker):
    """The latest offsets are the high watermarks."""
    assert reader().reportLatestOffset() == encoded(100, 50)


def test_a_batch_read_is_planned_from_its_options(broker):
    """Starts, ends and splits; an empty read is an empty list."""
    made = source(startingOffsets='{"0": 90}', endingOffsets='{"1": 0}', minPartitions="2")
    planned = made.reader(schema=made.schema())
    assert [p.range for p in planned.partitions()] == [
        OffsetRange(0, 90, 95),
        OffsetRange(0, 95, 100),
    ]
    empty = source(startingOffsets="latest")
    nothing = empty.reader(schema=empty.schema())
    assert nothing.partitions() == []
    from pyspark.sql.datasource import InputPartition

    assert list(nothing.read(InputPartition(None))) == []


def test_a_time_beyond_the_end_reads_nothing(broker, monkeypatch):
    """Where records came after the ends were asked for, it lies beyond them, which is no error."""
    monkeypatch.setattr(
        batch_reader, "offsets_at_times", lambda options, times_ns, partitions: {0: 103, 1: 40}
    )
    made = source(startingTimestamp="2100-01-01")
    planned = made.reader(schema=made.schema()).partitions()
    assert [p.range for p in planned] == [OffsetRange(1, 40, 50)]


def schema_of(*fields):
    return StructType([StructField(name, COLUMNS[kind]) for name, kind in fields])


def test_columns_that_may_be_null_are_not_declared_otherwise():
    """Else Spark would answer a search for nulls with no row."""
    for name in ("key", "value", "headers"):
        schema = StructType([StructField(name, COLUMNS[name], nullable=False)])
        with pytest.raises(InvalidConfigError, match=f"'{name}' may be null"):
            source().reader(schema=schema)
        with pytest.raises(InvalidConfigError, match=f"'{name}' may be null"):
            source().streamReader(schema=schema).initialOffset()
    offsets = StructType([StructField("offset", COLUMNS["offset"], nullable=False)])
    assert source().reader(schema=offsets).target.names == ["offset"]


def test_a_rejected_streaming_read_says_so_whatever_is_called_first():
    """Spark loses an error that is raised while it makes the reader, and fails with its own."""
    made = source(longPollMs="soon")
    reader = made.streamReader(schema=source().schema())
    copy = pickle.loads(pickle.dumps(reader))
    for call in (
        copy.initialOffset,
        lambda: copy.latestOffset({}, None),
        lambda: copy.partitions({}, {}),
        lambda: copy.read(None),
    ):
        with pytest.raises(InvalidConfigError, match="'longPollMs'"):
            call()
    with pytest.raises(InvalidConfigError, match="'longPollMs'"):
        made.schema()


def test_only_rows_that_are_records_can_be_appended():
    """A value is needed; types and names are checked before anything runs."""
    check_columns(schema_of(("value", "value"), ("key", "subject"), ("offset", "offset")), WRITE)
    for fields, message in (
        ([("key", "key")], "need a column 'value'"),
        ([("value", "offset")], "is bigint"),
        ([("value", "value"), ("colour", "key")], "unknown column 'colour'"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            check_columns(schema_of(*fields), WRITE)


def test_replacing_is_rejected():
    """Neither format overwrites."""
    schema = schema_of(("value", "value"))
    for made in (source(), TableFormat(CaseInsensitiveDict({"path": "t"}))):
        for method in (made.writer, made.streamWriter):
            with pytest.raises(InvalidConfigError, match="only appending"):
                method(schema, True)


def test_a_batch_job_may_write_several_batches(tmp_path):
    """Under one transaction each batch number commits once, as in foreachBatch; none goes back."""
    schema = schema_of(("value", "value"))

    def write(batch, value):
        options = {"path": str(tmp_path), "txnId": "totals", "batchId": str(batch)}
        writer = TableFormat(CaseInsensitiveDict(options)).writer(schema, False)
        rows = pa.record_batch({"value": pa.array([value], pa.binary())})
        writer.commit([writer.write(iter([rows]))])

    for batch in (0, 1, 1, 2):
        write(batch, b"%d" % batch)
    assert read_table(str(tmp_path)).to_table().column("value").to_pylist() == [b"0", b"1", b"2"]
    with pytest.raises(InvalidRequestError, match="after batch 2 was committed"):
        write(1, b"1")


def test_a_batch_job_commits_once(tmp_path):
    """Write, commit and a repeated commit, as Spark's processes call them."""
    table = TableFormat(CaseInsensitiveDict({"path": str(tmp_path), "txnId": "day"}))
    schema = schema_of(("partition", "partition"), ("offset", "offset"))
    rows = pa.record_batch(
        {"partition": pa.array([0, 0], pa.int32()), "offset": pa.array([0, 1], pa.int64())}
    )
    for _ in range(2):
        writer = table.writer(schema, False)
        messages = [writer.write(iter([rows])), writer.write(iter([]))]
        committer = pickle.loads(pickle.dumps(writer))
        committer.commit(pickle.loads(pickle.dumps(messages)))
        committer.abort(messages)
    assert read_table(str(tmp_path)).count_rows() == 2
    assert table.schema().simpleString() == "struct<partition:int,offset:bigint>"
