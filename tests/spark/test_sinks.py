"""Writing from Spark: appends to a stream, and the exactly-once table."""

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from strandline.spark.demo.standalone import children_of
from strandline.spark.table import committed_offsets, read_table, table_summary
from strandline.spark.tables.source import load_table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_batch_append_keeps_every_column(spark, log):
    """Values, keys, subjects and headers of rows are those of the records."""
    stream = log.new_stream(partitions=1, subject="out.>")
    frame = spark.sql(
        "SELECT concat('v', id) value, CAST(concat('k', id) AS BINARY) key, "
        "IF(id % 2 = 0, concat('out.', id), NULL) subject, "
        "map('h', CAST(id AS STRING)) h FROM range(100)"
    )
    frame = frame.selectExpr("value", "key", "subject", "transform_values(h, (k, v) -> "
                             "CAST(v AS BINARY)) headers")  # fmt: skip
    frame.write.format("strandline").options(
        server=log.server, stream=stream, subject="out.rest"
    ).mode("append").save()
    rows = log.client.read(stream).read_all().to_pylist()
    assert sorted(row["value"] for row in rows) == sorted(b"v%d" % n for n in range(100))
    [row] = [row for row in rows if row["value"] == b"v42"]
    assert (row["key"], row["subject"], row["headers"]) == (b"k42", "out.42", [("h", b"42")])
    assert {row["subject"] for row in rows if int(row["value"][1:]) % 2} == {"out.rest"}


def test_what_was_read_can_be_written_elsewhere(batch_reader, log):
    """The columns of a read are those of a write; place and time are the broker's."""
    source, target = log.new_stream(50), log.new_stream()
    batch_reader(source).load().write.format("strandline").options(
        server=log.server, stream=target
    ).mode("append").save()
    assert sorted(v for *_, v in log.records(target)) == sorted(v for *_, v in log.records(source))


def test_a_message_id_makes_a_repeat_harmless(spark, log):
    """A job that is run twice with message ids appends its rows once."""
    stream = log.new_stream(partitions=1)
    frame = spark.range(20).selectExpr("CAST(id AS STRING) value", "concat('m', id) message_id")
    for _ in range(2):
        frame.write.format("strandline").options(
            server=log.server, stream=stream, delivery="atLeastOnce"
        ).mode("append").save()
    assert len(log.records(stream)) == 20


@pytest.mark.parametrize(
    ("columns", "mode", "message"),
    [
        (["id"], "append", "need a column 'value'"),
        (["CAST(id AS STRING) value", "id"], "append", "unknown column 'id'"),
        (["id AS value"], "append", "is bigint, not binary or string"),
        (["CAST(id AS STRING) value"], "overwrite", "only appending"),
    ],
)
def test_rows_that_are_no_records_are_rejected(spark, log, columns, mode, message):
    """Missing, unknown or wrong columns and overwriting are errors with a remedy."""
    with pytest.raises(PySparkException, match=message):
        spark.range(3).selectExpr(*columns).write.format("strandline").options(
            server=log.server, stream=log.new_stream()
        ).mode(mode).save()


def test_a_streaming_append_delivers_everything(stream_reader, log, tmp_path):
    """A pipeline from stream to stream hands every record on."""
    source, target = log.new_stream(500), log.new_stream()
    query = (
        stream_reader(source, maxRecordsPerTrigger=200)
        .load()
        .select("value", "key")
        .writeStream.format("strandline")
        .options(server=log.server, stream=target, checkpointLocation=str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert sorted(v for *_, v in log.records(target)) == sorted(v for *_, v in log.records(source))


def test_batch_jobs_continue_a_table(batch_reader, log, landed, tmp_path):
    """Incremental jobs take their start from the table, and a repeated one is rejected."""
    stream, table = log.new_stream(100), str(tmp_path / "t")

    def job(start):
        frame = batch_reader(stream, startingOffsets=start).load()
        frame.write.format("strandline-table").mode("append").save(table)

    job(committed_offsets(table))
    log.append(stream, range(100, 150))
    job(committed_offsets(table))
    assert landed(table) == log.records(stream)
    with pytest.raises(PySparkException, match="committed already"):
        job("earliest")
    log.append(stream, range(150, 200))
    with pytest.raises(PySparkException, match="5 offsets are missing"):
        job('{"0": 80, "1": 80}')
    assert len(landed(table)) == 150


def test_a_transaction_id_makes_a_job_repeatable(batch_reader, log, landed, tmp_path):
    """A job that is run again under its txnId is acknowledged and changes nothing."""
    stream, table = log.new_stream(100), str(tmp_path / "t")
    for _ in range(2):
        batch_reader(stream).load().write.format("strandline-table").option(
            "txnId", "2013-01-01"
        ).mode("append").save(table)
    assert landed(table) == log.records(stream)
    assert table_summary(table).commits == 1


def test_a_table_is_read_back_by_every_reader(spark, batch_reader, log, tmp_path):
    """The format, Spark's own Parquet reader and pyarrow agree."""
    stream, table = log.new_stream(1000), str(tmp_path / "t")
    batch_reader(stream).load().write.format("strandline-table").mode("append").save(table)
    expected = sorted(v for *_, v in log.records(stream))
    by_format = spark.read.format("strandline-table").load(table)
    for frame in (by_format, load_table(spark, table), spark.read.parquet(table)):
        assert sorted(bytes(row.value) for row in frame.select("value").collect()) == expected
        assert frame.where("offset >= 490").count() == 20
        assert frame.where("timestamp > '2020-01-01'").count() == 1000
    assert read_table(table).count_rows() == 1000


def test_an_empty_frame_makes_a_table_without_rows(spark, batch_reader, log, tmp_path):
    """Every reader finds the columns and no rows."""
    stream, table = log.new_stream(1), str(tmp_path / "t")
    frame = batch_reader(stream).load().where("offset < 0")
    frame.write.format("strandline-table").mode("append").save(table)
    for found in (spark.read.format("strandline-table").load(table), load_table(spark, table)):
        assert found.columns == frame.columns
        assert found.count() == 0
    assert read_table(table).count_rows() == 0


def test_a_filtering_query_needs_to_say_so(stream_reader, log, landed, tmp_path):
    """A query that skips records is rejected unless denseOffsets is off."""
    stream = log.new_stream(100)
    frame = stream_reader(stream).load().where("offset % 2 = 0")

    def run(dense, place):
        query = (
            frame.writeStream.format("strandline-table")
            .options(checkpointLocation=str(tmp_path / f"c{place}"), denseOffsets=dense)
            .trigger(availableNow=True)
            .start(str(tmp_path / place))
        )
        query.awaitTermination(120)

    with pytest.raises(PySparkException, match="denseOffsets=false"):
        run("true", "a")
    run("false", "b")
    assert landed(tmp_path / "b") == [r for r in log.records(stream) if r[1] % 2 == 0]


def test_a_lost_checkpoint_cannot_double_records(stream_reader, log, landed, tmp_path):
    """Without its checkpoint a query is rejected, and continues from the table's own offsets."""
    stream, table = log.new_stream(100), str(tmp_path / "t")

    def run(checkpoint, **options):
        query = (
            stream_reader(stream, **options)
            .load()
            .writeStream.format("strandline-table")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start(table)
        )
        query.awaitTermination(120)

    run("c1")
    log.append(stream, range(100, 160))
    with pytest.raises(PySparkException, match="committed_offsets"):
        run("c2")
    run("c3", startingOffsets=committed_offsets(table))
    assert landed(table) == log.records(stream)


def task_workers(spark):
    """Python processes that run this session's tasks; other tests' sessions keep theirs."""
    children, found = children_of(), []
    for daemon in children[spark.sparkContext._gateway.proc.pid]:
        with contextlib.suppress(OSError):  # it has ended
            if b"pyspark.daemon\0pyspark.worker\0" in Path(f"/proc/{daemon}/cmdline").read_bytes():
                found += children[daemon]
    return found


def test_task_workers_killed_at_random_change_nothing(spark, stream_reader, log, landed, tmp_path):
    """kill -9 of Python workers in the middle of batches: Spark repeats tasks, rows stay single."""
    stream = log.new_stream(1200, size=200)
    random.seed(7)
    stop = threading.Event()
    killed = []

    def kill_some():
        """One worker in each batch at most, at a random moment, however slow the machine is."""
        seen = None
        while not stop.wait(0.1):
            progress = query.lastProgress
            if progress is not None and progress["batchId"] != seen:
                seen = progress["batchId"]
                stop.wait(random.uniform(0, 0.4))
                for pid in random.sample(workers := task_workers(spark), min(1, len(workers))):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill_some)
    query = (
        stream_reader(stream, maxRecordsPerTrigger=200, maxRecordsPerPartition=50)
        .load()
        .writeStream.format("strandline-table")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "t"))
    )
    killer.start()
    try:
        query.awaitTermination(500)
    finally:
        stop.set()
        killer.join()
        query.stop()
    assert len(killed) >= 3
    assert landed(tmp_path / "t") == log.records(stream)


def land(frame, directory, **options):
    """Everything that is there into the table ``directory``, and its values."""
    writer = frame.writeStream.format("strandline-table").options(**options)
    writer = writer.option("checkpointLocation", f"{directory}-checkpoint")
    query = writer.trigger(availableNow=True).start(str(directory))
    query.awaitTermination(240)
    return sorted(read_table(str(directory)).to_table().column("value").to_pylist())


def test_what_the_exactly_once_sink_wrote_is_loaded_with_the_defaults(
    spark, log, stream_reader, tmp_path
):
    """A transaction's markers, and what it aborted, have offsets and are no records; a filter's
    gaps are refused as before, and so are all if nobody says which stream is read.
    """
    stream = log.new_stream(partitions=1)
    for ends_well in (True, False, True):
        with contextlib.suppress(KeyError), log.client.transaction(f"t-{stream}") as transaction:
            transaction.append(stream, b"kept" if ends_well else b"aborted")
            if not ends_well:
                raise KeyError
    log.append(stream, range(3), partitions=1)
    every = [b"0", b"1", b"2", b"kept", b"kept"]
    assert land(stream_reader(stream).load(), tmp_path / "all") == every
    some = stream_reader(stream).load().where("value <> X'31'")
    with pytest.raises(PySparkException, match="the stream has 5 records there, the batch 4"):
        land(some, tmp_path / "some")
    bare = stream_reader(stream).schema("partition INT, offset BIGINT, value BINARY").load()
    with pytest.raises(PySparkException, match="give the options server and stream"):
        land(bare, tmp_path / "bare")
    bare = stream_reader(stream).schema("partition INT, offset BIGINT, value BINARY").load()
    assert land(bare, tmp_path / "told", server=log.server, stream=stream) == every


def test_options_that_are_not_ours_are_rejected(spark, log, stream_reader, batch_reader, tmp_path):
    """Where a read is loaded, or used if its schema was given; never with an error of Spark's own.
    Tables of Spark's catalog, which lose their options, are refused with what to write.
    """
    stream = log.new_stream(1, partitions=1)
    for reader in (batch_reader, stream_reader):
        with pytest.raises(PySparkException, match=r"unknown option 'assign'.*'stream'"):
            reader(stream, assign="1").load()
    bare = stream_reader(stream, assign="1").schema("value BINARY").load()
    with pytest.raises(PySparkException, match="unknown option 'assign'") as told:
        land(bare, tmp_path / "t")
    assert "UnboundLocalError" not in str(told.value)
    options = f"OPTIONS (server '{log.server}', stream '{stream}')"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused USING strandline {options}")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING strandline {options}")
    assert spark.table("seen").count() == 1
