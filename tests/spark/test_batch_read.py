"""Batch reads of a stream through Spark."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException

from strandline.client.reader.local import RECORDS_FEW

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

THROUGH_THE_BROKER = {"maxRecordsPerPartition": RECORDS_FEW}
"""So few records at a time are not looked for in the files of a broker on the same machine."""


def numbers(frame):
    """The records' numbers, in order."""
    return sorted(int(bytes(row.value).split(b".")[0]) for row in frame.select("value").collect())


def sent_for(log, read):
    """Return the records and bytes that the broker sends for a read, and its result."""
    names = ("strandline_read_records_total ", "strandline_read_bytes_total ")
    before = [log.metric(name) for name in names]
    found = read()
    return [log.metric(name) - n for name, n in zip(names, before, strict=True)], found


def test_a_batch_read_gives_every_record(batch_reader, log):
    """All columns of all records arrive, in Spark's types."""
    stream = log.new_stream(1000)
    log.client.append(stream, b"1000", partition=0, headers=[("a", b"1"), ("b", b"2"), ("a", b"3")])
    rows = batch_reader(stream).load().collect()
    assert len(rows) == 1001
    assert {(r.partition, r.offset, bytes(r.value)) for r in rows} == set(log.records(stream))
    [last] = [row for row in rows if row.value == b"1000"]
    assert {name: bytes(value) for name, value in last.headers.items()} == {"a": b"1", "b": b"2"}
    assert last.key is None
    assert last.subject == stream
    now = datetime.now(UTC).replace(tzinfo=None)
    assert abs(now - last.timestamp) < timedelta(minutes=5)


def test_the_schema_is_the_list_of_columns(batch_reader, log):
    """Any columns in any order; only they leave the broker."""
    stream = log.new_stream(1000, size=1000)
    reader = batch_reader(stream, **THROUGH_THE_BROKER)
    frame = reader.schema("value BINARY, partition INT").load()
    assert frame.columns == ["value", "partition"]
    (records, size), found = sent_for(log, lambda: numbers(frame))
    assert (records, found) == (1000, list(range(1000)))
    assert size > 1_000_000
    few = reader.schema("partition INT, key BINARY").load()
    (records, size), rows = sent_for(log, few.collect)
    assert (records, len(rows)) == (1000, 1000)
    assert size < 30_000


def test_values_are_decoded_by_the_schema_of_the_stream(batch_reader, stream_reader, log, spark):
    """In a batch, in SQL, and in a micro-batch; a read of one's own columns selects from them."""
    stream = log.new_stream(partitions=1)
    log.client.schemas.set(stream, "id BIGINT NOT NULL, at TIMESTAMP, tags ARRAY<STRING>")
    for number in range(20):
        value = {"id": number, "at": "2026-11-27T12:00:00Z", "tags": ["a", str(number)]}
        log.client.append(stream, json.dumps(value).encode())
    log.client.append(stream, b"no JSON")
    good = batch_reader(stream, valueFormat="json", mode="DROPMALFORMED").load()
    good.createOrReplaceTempView("decoded")
    assert spark.sql("SELECT sum(id), max(tags[1]) FROM decoded").first()[:] == (190, "9")
    every = batch_reader(stream, valueFormat="json", mode="PERMISSIVE").load()
    [bad] = every.where("_error IS NOT NULL").collect()
    assert (bad["_offset"], bad.id) == (20, None)
    some = batch_reader(stream, valueFormat="json", mode="DROPMALFORMED")
    assert some.schema("id BIGINT, _offset BIGINT").load().count() == 20
    with pytest.raises(PySparkException, match="offset 20 is not json"):
        batch_reader(stream, valueFormat="json").load().collect()
    followed = stream_reader(stream, valueFormat="json", mode="PERMISSIVE").load()
    query = followed.writeStream.format("memory").queryName("decoded_values")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    found = spark.sql("SELECT count(*), count(id) FROM decoded_values").first()
    assert found[:] == (21, 20)


@pytest.mark.parametrize(
    ("schema", "message"),
    [("colour STRING", "no column 'colour'"), ("value STRING", "cast it after loading")],
)
def test_other_columns_and_types_are_rejected(batch_reader, log, schema, message):
    """An unknown column or another type is an error with a remedy."""
    stream = log.new_stream(1)
    with pytest.raises(PySparkException, match=message):
        batch_reader(stream).schema(schema).load().collect()


def test_reads_are_split_as_asked(batch_reader, log):
    """minPartitions and maxRecordsPerPartition decide the number of Spark partitions."""
    stream = log.new_stream(1000)
    assert batch_reader(stream).load().rdd.getNumPartitions() == 2
    assert batch_reader(stream, minPartitions=5).load().rdd.getNumPartitions() >= 5
    split = batch_reader(stream, maxRecordsPerPartition=100).load()
    assert split.rdd.getNumPartitions() == 10
    assert numbers(split) == list(range(1000))


def test_offsets_and_times_bound_the_read(batch_reader, log):
    """Starts and ends by JSON, by word and by time."""
    stream = log.new_stream(100)
    between = datetime.now(UTC)
    log.append(stream, range(100, 120))
    part = batch_reader(stream, startingOffsets='{"0": 48}', endingOffsets='{"0": 50, "1": 1}')
    assert numbers(part.load()) == [1, 96, 98]
    since = batch_reader(stream, startingTimestamp=between.isoformat()).load()
    assert numbers(since) == list(range(100, 120))
    assert batch_reader(stream, startingOffsets="latest").load().count() == 0


def test_filters_run_on_the_broker(batch_reader, log):
    """Only records of the subject and the keys leave the broker."""
    stream = log.new_stream(partitions=2, subject="a.>")
    for n in range(20):
        log.client.append(stream, b"%d" % n, subject=f"a.{n % 4}", key=f"k{n % 3}")
    reader = batch_reader(stream, subject="a.1", **THROUGH_THE_BROKER)
    (records, _), found = sent_for(log, lambda: numbers(reader.load()))
    assert (records, found) == (5, [1, 5, 9, 13, 17])
    both = reader.option("keys", '["k0", "k1"]').load()
    (records, _), found = sent_for(log, lambda: numbers(both))
    assert (records, found) == (3, [1, 9, 13])


def test_a_data_frame_is_a_snapshot(batch_reader, log):
    """Records appended after the first action are visible only after another load."""
    stream = log.new_stream(10)
    frame = batch_reader(stream).load()
    assert frame.count() == 10
    log.append(stream, range(10, 20))
    assert frame.count() == 10
    assert batch_reader(stream).load().count() == 20


def test_filters_of_one_use_do_not_leak_into_another(batch_reader, log):
    """One DataFrame used with different conditions gives each its own rows."""
    stream = log.new_stream(10)
    frame = batch_reader(stream).load()
    parts = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert parts.count() == 10
    assert frame.count() == 10


def test_an_empty_stream_has_no_rows(batch_reader, log):
    """Nothing to read is no error."""
    assert batch_reader(log.new_stream()).load().count() == 0


def test_sql_reads_a_view(spark, log):
    """The format works from SQL alone, without registration."""
    stream = log.new_stream(30)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING strandline "
        f"OPTIONS (server '{log.server}', stream '{stream}')"
    )
    assert spark.sql("SELECT count(*) n FROM v WHERE partition = 1").first().n == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"0": 999}'}, "committed records end at 5"),
        ({"startingOffsets": '{"9": 0}'}, "names partition 9"),
        ({"stream": "nosuch"}, "nosuch"),
        ({"server": "127.0.0.1:1", "retryTimeoutMs": "100"}, "127.0.0.1:1"),
    ],
)
def test_impossible_reads_say_what_is_wrong(batch_reader, log, options, message):
    """The last line of Spark's error names the option, the offset, the stream or the address."""
    stream = log.new_stream(10)
    with pytest.raises(PySparkException, match=message):
        batch_reader(stream).options(**options).load().collect()


def test_lost_records_fail_the_read_unless_allowed(batch_reader, log):
    """Records below the log start are data loss by default, and skipped on request."""
    stream = log.new_stream(4000, size=1000, segment_bytes=1 << 20)
    log.client.delete_records(stream, 1500, partition=0)
    [first, _] = log.client.stream_info(stream).partitions
    assert 0 < first.log_start_offset <= 1500
    start = json.dumps({"0": 0})
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        batch_reader(stream, startingOffsets=start).load().collect()
    forgiving = batch_reader(stream, startingOffsets=start, failOnDataLoss="false")
    assert forgiving.load().count() == 4000 - first.log_start_offset
