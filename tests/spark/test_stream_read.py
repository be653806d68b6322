"""Streaming reads through Spark: limits, filters, triggers, restarts, lag, losses, retries."""

import contextlib
import json
import threading
import time
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException

from strandline.spark.table import read_table, table_summary

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SENT = "strandline_read_records_total "


def encoded(progress, name):
    """Return the offsets of a progress report as written."""
    value = progress["sources"][0][name]
    return json.loads(value) if isinstance(value, str) else value


def offsets_of(progress, name):
    """Offsets of a progress report, by partition."""
    return {int(key): n for key, n in encoded(progress, name).items() if key.isdecimal()}


def lags(progress):
    """By how many records each partition's end was ahead of a batch, when it was over."""
    latest, end = (offsets_of(progress, name) for name in ("latestOffset", "endOffset"))
    return {partition: latest[partition] - end[partition] for partition in latest}


@pytest.fixture
def run(tmp_path):
    """Runs a streaming read to the present end; returns the query."""

    def run(frame, *, checkpoint="c", table="t", trigger="availableNow"):
        query = (
            frame.writeStream.format("strandline-table")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**{trigger: True})
            .start(str(tmp_path / table))
        )
        try:
            query.awaitTermination(120)
            assert not query.isActive
        finally:
            query.stop()
        return query

    return run


@pytest.fixture
def following(tmp_path):
    """Runs a following streaming read into the table ``t``; a context that gives the query."""

    @contextlib.contextmanager
    def following(frame, **options):
        writer = frame.writeStream.format("strandline-table").options(**options)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "t"))
        try:
            yield query
        finally:
            query.stop()

    return following


def wait_until(query, reached, timeout_s=90):
    """Poll until something is so of the query's last progress."""
    deadline = time.monotonic() + timeout_s
    while not (query.lastProgress and reached(query.lastProgress)):
        assert query.exception() is None
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def wait_until_at(query, offset):
    """Poll until the query has read all partitions, taken together, up to here."""
    wait_until(query, lambda last: sum(offsets_of(last, "endOffset").values()) == offset)


def test_available_now_reads_in_limited_batches_and_continues(
    stream_reader, log, landed, run, tmp_path
):
    """Each batch keeps to maxRecordsPerTrigger, and a second run reads only new records."""
    stream = log.new_stream(1000)
    frame = stream_reader(stream, maxRecordsPerTrigger=300).load()
    first = run(frame)
    counts = [progress["numInputRows"] for progress in first.recentProgress]
    assert [count for count in counts if count] == [300, 300, 300, 100]
    log.append(stream, range(1000, 1100))
    second = run(frame)
    assert sum(progress["numInputRows"] for progress in second.recentProgress) == 100
    assert landed(tmp_path / "t") == log.records(stream)


def test_once_takes_what_there_is(stream_reader, log, landed, run, tmp_path):
    """However much minBytesPerTrigger asks for: no later batch of the run would take it."""
    stream = log.new_stream(10)
    frame = stream_reader(stream, minBytesPerTrigger=1 << 30).load()
    run(frame, trigger="once")
    assert landed(tmp_path / "t") == log.records(stream)
    log.append(stream, range(10, 20))
    run(frame, trigger="once")
    assert landed(tmp_path / "t") == log.records(stream)


def test_a_byte_limit_makes_smaller_batches(stream_reader, log, landed, run, tmp_path):
    """maxBytesPerTrigger limits a batch by the average size of records."""
    stream = log.new_stream(1000, size=1000)
    query = run(stream_reader(stream, maxBytesPerTrigger=300_000).load())
    counts = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert max(counts) < 320
    assert landed(tmp_path / "t") == log.records(stream)


def test_a_running_query_follows_and_reports_its_lag(stream_reader, log, following):
    """New records arrive in new batches; progress shows to the record what each batch left behind,
    and its offsets have their partitions in order, which Spark compares as text.
    """
    stream = log.new_stream(110, partitions=11)
    with following(stream_reader(stream, maxRecordsPerTrigger=44).load()) as query:
        wait_until_at(query, 110)
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        assert [progress["numInputRows"] for progress in batches] == [44, 44, 22]
        assert [lags(progress) for progress in batches] == [
            dict.fromkeys(range(11), left) for left in (6, 2, 0)
        ]
        for name in ("startOffset", "endOffset", "latestOffset"):
            assert list(encoded(batches[-1], name)) == [*map(str, range(11)), "stream"]
        log.append(stream, range(110, 130), partitions=11)
        wait_until_at(query, 130)
        assert lags(query.lastProgress) == dict.fromkeys(range(11), 0)
        idle = query.lastProgress["batchId"]
        time.sleep(1.5)
        assert query.lastProgress["batchId"] <= idle + 1


def test_records_that_no_filter_lets_through_are_passed_by(
    stream_reader, log, landed, following, tmp_path
):
    """A time, a subject and keys choose the records of a stream, on the broker; batches without any
    of them, and an end of the stream without any, do not hold the query up.
    """
    stream = log.new_stream(partitions=1, subject="a.>")

    def append(numbers):
        """Subject ``a.<n % 4>``, key ``k<n % 3>``."""
        for n in numbers:
            log.client.append(stream, b"%d" % n, subject=f"a.{n % 4}", key=f"k{n % 3}")

    append(range(20))
    between = datetime.now(UTC)
    append(range(20, 60))
    chosen = [n for n in range(20, 60) if n % 4 == 1 and n % 3 != 2]
    filters = {"subject": "a.1", "keys": '["k0", "k1"]', "startingTimestamp": between.isoformat()}
    frame = stream_reader(stream, maxRecordsPerTrigger=8, **filters).load()
    sent = log.metric(SENT)
    with following(frame, denseOffsets="false") as query:
        wait_until_at(query, 60)
        ends = range(28, 61, 8)
        assert [offsets_of(each, "endOffset") for each in query.recentProgress] == [
            {0: end} for end in ends
        ]
        assert [each["numInputRows"] for each in query.recentProgress] == [
            sum(end - 8 <= n < end for n in chosen) for end in ends
        ]
        append([60, 62, 63, 64])
        wait_until_at(query, 64)
        append([69])
        wait_until_at(query, 65)
    assert log.metric(SENT) - sent == len(chosen) + 1
    found = [(offset, int(value)) for _, offset, value in landed(tmp_path / "t")]
    assert found == [*zip(chosen, chosen, strict=True), (64, 69)]


def test_the_long_poll_wakes_at_once(stream_reader, log, following):
    """With a poll of 60 seconds a record appended meanwhile is read long before its end."""
    stream = log.new_stream(2)
    with following(stream_reader(stream, longPollMs=60_000).load()) as query:
        wait_until_at(query, 2)
        time.sleep(1)
        began = time.monotonic()
        log.append(stream, [2])
        wait_until_at(query, 3)
        assert time.monotonic() - began < 50


def test_a_stream_recreated_is_not_continued(stream_reader, log, run):
    """A checkpoint of a deleted stream is rejected although name and offsets would fit."""
    stream = log.new_stream(10)
    frame = stream_reader(stream).load()
    run(frame)
    log.client.delete_stream(stream)
    log.client.create_stream(stream, partitions=2)
    log.append(stream, range(20))
    with pytest.raises(PySparkException, match="start with a new checkpoint"):
        run(frame)


def test_a_batch_planned_on_a_deleted_stream_is_not_read_from_a_new_one(
    stream_reader, log, run, tmp_path
):
    """A query that failed in its first micro-batch plans nothing before it repeats that batch."""
    stream = log.new_stream(10)
    frame = stream_reader(stream).load()
    with pytest.raises(PySparkException, match="not each offset once"):
        run(frame.where("offset != 3"))
    log.client.delete_stream(stream)
    log.client.create_stream(stream, partitions=2)
    log.append(stream, range(20))
    with pytest.raises(PySparkException, match="start with a new checkpoint"):
        run(frame)
    assert table_summary(str(tmp_path / "t")).rows == 0


def test_a_first_batch_that_failed_begins_where_it_began(stream_reader, log, tmp_path):
    """Not at the newest record: Spark stores no start of a query's first batch."""
    stream = log.new_stream(10)
    frame = stream_reader(stream, startingOffsets="latest", minBytesPerTrigger=1).load()

    def start(rows):
        writer = rows.writeStream.format("strandline-table")
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        return writer.start(str(tmp_path / "t"))

    failing = start(frame.where("offset % 2 = 0"))
    wait_until(failing, lambda progress: progress["batchId"] >= 0)
    log.append(stream, range(10, 20))
    with pytest.raises(PySparkException, match="not each offset once"):
        failing.awaitTermination(90)
    log.append(stream, range(20, 30))
    query = start(frame)
    wait_until_at(query, 30)
    query.stop()
    assert table_summary(str(tmp_path / "t")).rows == 20


def test_records_lost_before_they_were_read_fail_the_query(stream_reader, log, run):
    """Truncation beyond the checkpoint stops the query instead of leaving a silent hole."""
    stream = log.new_stream(10, segment_bytes=1 << 20)
    frame = stream_reader(stream).load()
    run(frame)
    log.append(stream, range(10, 4010), size=1000)
    log.client.delete_records(stream, 1500, partition=0)
    with pytest.raises(PySparkException, match="deleted before they were read"):
        run(frame)


def test_a_broker_that_restarts_is_waited_for(stream_reader, log, landed, following, tmp_path):
    """After kill -9 of the broker the query continues, nothing lost or doubled."""
    stream = log.new_stream(2000)
    with following(stream_reader(stream, maxRecordsPerTrigger=200).load()) as query:
        wait_until(query, lambda _: True)
        log.broker.kill()
        killer = threading.Timer(1.0, log.broker.start)
        killer.start()
        killer.join()
        log.append(stream, range(2000, 3000))
        wait_until_at(query, 3000)
    assert landed(tmp_path / "t") == log.records(stream)


def test_a_pattern_finds_streams_between_micro_batches(log, stream_reader, run, tmp_path):
    """Each record of every stream arrives once, over restarts; its row names the stream."""
    for name, numbers in (("many-a", range(4)), ("many-b", range(10, 13))):
        log.client.create_stream(name, partitions=2)
        log.append(name, numbers)
    pattern = {"streamPattern": "many-*", "maxRecordsPerTrigger": "3"}

    def load():
        frame = stream_reader("", **pattern).load()
        return run(frame.withColumnRenamed("offset", "source_offset"))

    query = load()
    assert len(query.recentProgress) >= 3, "7 records, 3 at most in a batch"
    assert encoded(query.lastProgress, "endOffset")["many-a/1"] == 2
    log.client.create_stream("many-c")
    log.append("many-c", range(20, 22), partitions=1)
    log.append("many-a", range(4, 6))
    load()
    found = read_table(str(tmp_path / "t")).to_table(columns=["stream", "value"]).to_pylist()
    assert sorted((row["stream"], int(row["value"])) for row in found) == [
        *(("many-a", n) for n in range(6)),
        *(("many-b", n) for n in range(10, 13)),
        *(("many-c", n) for n in range(20, 22)),
    ]
