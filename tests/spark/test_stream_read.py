"""Streaming reads through Spark: limits, triggers, restarts, lag, lost records, retries."""

import json
import threading
import time

import pytest
from pyspark.errors import PySparkException

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def offsets_of(progress, name):
    """Offsets of a progress report, by partition."""
    value = progress["sources"][0][name]
    decoded = json.loads(value) if isinstance(value, str) else value
    return {int(key): offset for key, offset in decoded.items() if key.isdecimal()}


@pytest.fixture
def run(tmp_path):
    """Runs a streaming read to the end of what is there; returns the query."""

    def available_now(frame, *, checkpoint="c", table="t"):
        query = (
            frame.writeStream.format("strandline-table")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start(str(tmp_path / table))
        )
        try:
            query.awaitTermination(120)
            assert not query.isActive
        finally:
            query.stop()
        return query

    return available_now


def wait_until(reached, timeout_s=90):
    """Poll until something is so."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_available_now_reads_in_limited_batches_and_goes_on(
    stream_reader, log, landed, run, tmp_path
):
    """Each batch keeps to maxRecordsPerTrigger, and a second run reads only what is new."""
    stream = log.new_stream(1000)
    frame = stream_reader(stream, maxRecordsPerTrigger=300).load()
    first = run(frame)
    counts = [progress["numInputRows"] for progress in first.recentProgress]
    assert [count for count in counts if count] == [300, 300, 300, 100]
    log.append(stream, range(1000, 1100))
    second = run(frame)
    assert sum(progress["numInputRows"] for progress in second.recentProgress) == 100
    assert landed(tmp_path / "t") == log.records(stream)


def test_a_byte_limit_makes_smaller_batches(stream_reader, log, landed, run, tmp_path):
    """maxBytesPerTrigger limits a batch by the average size of records."""
    stream = log.new_stream(1000, size=1000)
    query = run(stream_reader(stream, maxBytesPerTrigger=300_000).load())
    counts = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert max(counts) < 320
    assert landed(tmp_path / "t") == log.records(stream)


def test_a_running_query_follows_and_reports_its_lag(stream_reader, log, tmp_path):
    """New records arrive in new batches, and progress shows where the stream ends."""
    stream = log.new_stream(10)
    query = (
        stream_reader(stream)
        .load()
        .writeStream.format("strandline-table")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start(str(tmp_path / "t"))
    )
    try:
        wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 0)
        log.append(stream, range(10, 30))
        wait_until(lambda: sum(offsets_of(query.lastProgress, "endOffset").values()) == 30)
        assert offsets_of(query.lastProgress, "latestOffset") == {0: 15, 1: 15}
        idle = query.lastProgress["batchId"]
        time.sleep(1.5)
        assert query.lastProgress["batchId"] <= idle + 1
    finally:
        query.stop()


def test_the_long_poll_wakes_at_once(stream_reader, log, tmp_path):
    """With a poll of 60 seconds a record appended meanwhile is read long before its end."""
    stream = log.new_stream(2)
    query = (
        stream_reader(stream, longPollMs=60_000)
        .load()
        .writeStream.format("strandline-table")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start(str(tmp_path / "t"))
    )
    try:
        wait_until(lambda: query.lastProgress is not None)
        time.sleep(1)
        began = time.monotonic()
        log.append(stream, [2])
        wait_until(lambda: sum(offsets_of(query.lastProgress, "endOffset").values()) == 3)
        assert time.monotonic() - began < 50
    finally:
        query.stop()


def test_a_stream_created_anew_is_not_continued(stream_reader, log, run):
    """A checkpoint of a deleted stream is refused although name and offsets would fit."""
    stream = log.new_stream(10)
    frame = stream_reader(stream).load()
    run(frame)
    log.client.delete_stream(stream)
    log.client.create_stream(stream, partitions=2)
    log.append(stream, range(20))
    with pytest.raises(PySparkException, match="start with a new checkpoint"):
        run(frame)


def test_records_lost_before_they_were_read_fail_the_query(stream_reader, log, run):
    """Truncation beyond the checkpoint stops the query instead of leaving a silent hole."""
    stream = log.new_stream(10, segment_bytes=1 << 20)
    frame = stream_reader(stream).load()
    run(frame)
    log.append(stream, range(10, 4010), size=1000)
    log.client.truncate_before(stream, 1500, partition=0)
    with pytest.raises(PySparkException, match="deleted before they were read"):
        run(frame)


def test_a_broker_that_restarts_is_waited_for(stream_reader, log, landed, tmp_path):
    """kill -9 of the broker under a running query: the query goes on, nothing lost or doubled."""
    stream = log.new_stream(2000)
    query = (
        stream_reader(stream, maxRecordsPerTrigger=200)
        .load()
        .writeStream.format("strandline-table")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start(str(tmp_path / "t"))
    )
    try:
        wait_until(lambda: query.lastProgress is not None)
        log.broker.kill()
        killer = threading.Timer(1.0, log.broker.start)
        killer.start()
        killer.join()
        log.append(stream, range(2000, 3000))
        wait_until(
            lambda: (
                query.exception() is not None
                or sum(offsets_of(query.lastProgress, "endOffset").values()) == 3000
            )
        )
        assert query.exception() is None
    finally:
        query.stop()
    assert landed(tmp_path / "t") == log.records(stream)
