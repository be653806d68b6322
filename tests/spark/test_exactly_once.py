"""The sink that publishes each batch once, on a real broker: replays, zombies, several streams."""

import pytest
from pyspark.errors import PySparkException

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def write(frame, log, **options):
    """Write a batch DataFrame."""
    writer = frame.write.format("strandline").options(server=log.server, **options)
    writer.mode("append").save()


def values(log, stream):
    """Return what a reader sees."""
    return sorted(value for *_, value in log.records(stream))


def test_a_job_is_published_once_and_older_ones_are_rejected(spark, log):
    """Run again under its transaction id a job is acknowledged; with other rows, or with a number
    below the last, it is refused and nothing of it is seen.
    """
    a, b = log.new_stream(), log.new_stream()
    rows = spark.range(20).selectExpr(
        "CAST(id AS STRING) value", f"IF(id < 5, '{a}', '{b}') stream"
    )
    for _ in range(2):
        write(rows, log, txnId=f"job-{a}", batchId=3)
    assert values(log, a) == sorted(b"%d" % n for n in range(5))
    assert values(log, b) == sorted(b"%d" % n for n in range(5, 20))
    with pytest.raises(PySparkException, match="fingerprint"):
        write(rows.limit(19), log, txnId=f"job-{a}", batchId=3)
    with pytest.raises(PySparkException, match="batch"):
        write(rows, log, txnId=f"job-{a}", batchId=2)
    write(
        rows.limit(5).selectExpr("concat(value, '!') value"),
        log,
        txnId=f"job-{a}",
        batchId=4,
        stream=a,
    )
    assert len(values(log, a)) == 10
    assert len(values(log, b)) == 15


def test_a_failed_job_leaves_nothing_to_see(spark, log):
    """Rows of tasks that succeeded are not visible when another task failed."""
    stream = log.new_stream()
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(id AS STRING) value", "IF(id = 99, raise_error('the query fails'), 1) AS fails"
    )
    with pytest.raises(PySparkException, match="the query fails"):
        write(rows.where("fails = 1").select("value"), log, stream=stream)
    assert values(log, stream) == []


def test_a_restored_checkpoint_is_rejected(stream_reader, log, tmp_path):
    """A query whose checkpoint was lost may not publish under the transaction id of the old one."""
    source, target = log.new_stream(30), log.new_stream()

    def run(checkpoint):
        query = (
            stream_reader(source)
            .load()
            .select("value", "key")
            .writeStream.format("strandline")
            .options(server=log.server, stream=target, txnId=f"query-{target}")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("checkpoint")
    log.append(source, range(30, 40))
    run("checkpoint")
    with pytest.raises(PySparkException, match="batch"):
        run("another")
    assert values(log, target) == values(log, source)
