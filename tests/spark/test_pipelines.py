"""The patterns, each run twice with new records between: output is the function of input."""

import json
import threading
from functools import partial

import pyarrow as pa
import pytest

from strandline.client.reader.compacted_view import compacted_view
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRequestError,
    StrandlineError,
)
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.queries import wait_for_end
from strandline.spark.pipelines.run import run_pipeline, start_pipeline
from strandline.spark.pipelines.sources import copied_offsets, source_of
from tests.kit.waiting import until as wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def run(spark, log, tmp_path):
    """A function that runs a pipeline to its end, with a checkpoint of its own by default."""

    def run(kind, checkpoint="checkpoint", **config):
        values = {"kind": kind, "server": log.server, "checkpoint": str(tmp_path / checkpoint)}
        run_pipeline(spark, decode_pipeline(values | config))

    return run


def rows(log, stream, partition=None):
    """Every record of a stream as a dictionary, headers too, partition by partition."""
    found = []
    for info in log.client.stream_info(stream).partitions:
        if partition in (None, info.partition):
            table = log.client.read(stream, partition=info.partition).read_all()
            found += [
                row | {"partition": info.partition, "headers": dict(row["headers"] or ())}
                for row in table.to_pylist()
            ]
    return found


def values(log, stream, partition=None):
    """The values of a stream, in order."""
    return [row["value"] for row in rows(log, stream, partition)]


def created_anew(log, stream):
    """A longer stream of the same name in the place of one."""
    log.client.delete_stream(stream)
    log.client.create_stream(stream, partitions=2)
    log.append(stream, range(400))


def test_a_copy_is_the_stream_again(run, log):
    """Partition by partition, in order, at a position that survives a lost checkpoint."""
    source, target = log.new_stream(100), log.new_stream() + "-copy"
    run("copy", stream=source, into=target)
    log.append(source, range(100, 130))
    run("copy", "another-checkpoint", stream=source, into=target)
    run("copy", "another-checkpoint", stream=source, into=target)
    for partition in (0, 1):
        assert values(log, target, partition) == values(log, source, partition)
        assert [source_of(row["headers"]) for row in rows(log, target, partition)] == [
            (source, partition, offset) for offset in range(65)
        ]
    copied = copied_offsets(log.client, log.client.stream_info(source), into=target)
    assert copied == {0: 65, 1: 65}
    noted = log.client.groups.committed_offsets(f"copy {source} into {target}")
    assert noted == {(source, 0): 65, (source, 1): 65}
    created_anew(log, source)
    with pytest.raises(InvalidRequestError, match=r"recreated.*write to another stream"):
        run("copy", "a-third-checkpoint", stream=source, into=target)


def test_a_transform_filters_multiplies_and_splits(run, log):
    """SQL decides the output of a record, and the stream of each row."""
    source, even, odd = log.new_stream(40), log.new_stream(), log.new_stream()
    sql = (
        "SELECT value, key, IF(CAST(value AS STRING)::INT % 2 = 0, NULL, '" + odd + "') stream "
        "FROM records LATERAL VIEW explode(array(1, 2)) t AS i WHERE CAST(value AS STRING) != '7'"
    )
    run("transform", stream=source, sql=sql, into=even)
    assert sorted(map(int, values(log, even))) == sorted(2 * list(range(0, 40, 2)))
    assert sorted(map(int, values(log, odd))) == sorted(2 * [n for n in range(1, 40, 2) if n != 7])


def test_an_aggregate_continues_from_its_changelog(run, log, tmp_path):
    """States are those of all records, also on a machine that has the changelog alone."""
    source, target = log.new_stream(50), log.new_stream() + "-state"
    config = {
        "stream": source,
        "into": target,
        "key": "CAST(key AS STRING)",
        "columns": {"n": "count()", "total": "sum(CAST(CAST(value AS STRING) AS BIGINT))"},
    }
    run("aggregate", **config)
    log.append(source, range(50, 80))
    run("aggregate", **config)
    log.append(source, range(80, 100))
    run("aggregate", "another-machine", **config)
    table = compacted_view(log.client, target).to_pylist()
    found = {row["key"]: json.loads(row["value"])["values"] for row in table}
    numbers = {k: [n for n in range(100) if n % 7 == k] for k in range(7)}
    assert found == {
        b"k%d" % k: {"n": len(mine), "total": sum(mine)} for k, mine in numbers.items()
    }
    assert len(values(log, target)) <= 3 * 7
    # RocksDB's changelog, not whole snapshots of the state, is what each batch adds.
    assert list((tmp_path / "checkpoint" / "state").rglob("*.changelog"))
    created_anew(log, source)
    with pytest.raises(InvalidRequestError, match=r"recreated.*write to another stream"):
        run("aggregate", "a-third-machine", **config)


def test_columns_of_an_aggregate_stay_what_they_are(run, log):
    """Those of other functions, and more or fewer, would be made of a part of the records; their
    names are free.
    """
    source, target = log.new_stream(20), log.new_stream() + "-state"
    names = {"offset": "count()", "partition": "max(offset)", "group": "last(offset)"}
    config = {"stream": source, "into": target, "key": "'all'", "columns": names}
    with pytest.raises(InvalidConfigError, match="CAST"):
        run("aggregate", **config | {"columns": {"offset": "sum(value)"}})
    run("aggregate", **config)
    [row] = compacted_view(log.client, target).to_pylist()
    assert json.loads(row["value"])["values"] == {"offset": 20, "partition": 9, "group": 9}
    log.append(source, range(20, 40))
    run("aggregate", **config)
    for columns, message in (
        (names | {"group": "sum(offset)"}, r"'group' is sum\(offset\), but was last\(offset\)"),
        (names | {"more": "count()"}, r"'more' is count\(\), but was none"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            run("aggregate", **config | {"columns": columns})
    with pytest.raises(InvalidConfigError, match="key is key, but was 'all'"):
        run("aggregate", **config | {"key": "key"})
    with pytest.raises(InvalidConfigError, match=r"columns are n, but the states in .* have group"):
        run("aggregate", "another", **config | {"columns": {"n": "count()"}})
    with pytest.raises(InvalidConfigError, match="made with another key, or other functions"):
        run("aggregate", "another-2", **config | {"columns": names | {"group": "sum(offset)"}})


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("sum(CAST(value AS STRING))", r"sum\(\) takes .*, got string; CAST"),
        ("sum(CAST(CAST(value AS STRING) AS DECIMAL(9,2)))", r"got decimal\(9,2\)"),
        ("max(timestamp)", "got timestamp"),
    ],
)
def test_an_aggregate_whose_state_would_not_come_back_is_rejected(run, log, column, message):
    """A sum of texts, and states of decimals and times, are rejected."""
    source, target = log.new_stream(10), log.new_stream() + "-state"
    with pytest.raises(InvalidConfigError, match=f"column 'total': .*{message}"):
        run("aggregate", stream=source, into=target, key="key", columns={"total": column})


def test_a_checkpoint_of_another_output_is_rejected(run, log):
    """Another or recreated stream would only get later records."""
    source, target = log.new_stream(40), log.new_stream() + "-copy"
    run("copy", stream=source, into=target)
    with pytest.raises(InvalidConfigError, match=f"written to {target}@.*new checkpoint"):
        run("copy", stream=source, into=f"{target}-2")
    log.client.delete_stream(target)
    with pytest.raises(InvalidConfigError, match=f"written to {target}@.*new checkpoint"):
        run("copy", stream=source, into=target)
    run("copy", "another-checkpoint", stream=source, into=target)
    assert values(log, target) == values(log, source)


def test_a_pipeline_continues_without_lost_records_if_told(run, log):
    """Also a copy that lost its checkpoint, whose output says a place that is gone."""
    source = log.new_stream(20, partitions=1, segment_bytes=1 << 20)
    target = f"{source}-copy"
    run("copy", stream=source, into=target)
    log.append(source, range(20, 4020), partitions=1, size=1000)
    log.client.delete_records(source, 3000)
    for checkpoint in ("checkpoint", "another-checkpoint"):
        with pytest.raises(DataLossError, match=r"deleted before.*set fail_on_data_loss: false"):
            run("copy", checkpoint, stream=source, into=target)
    run("copy", "a-third", stream=source, into=target, fail_on_data_loss=False)
    assert values(log, target)[20:] == values(log, source)


def test_what_spark_cannot_start_is_told_in_one_line(run, log, tmp_path):
    """An impossible checkpoint, without a Java trace; an impossible setting does not reach it."""
    source, target = log.new_stream(10), log.new_stream()
    (tmp_path / "file").touch()
    with pytest.raises(StrandlineError, match=r"^Spark cannot start .*/file") as told:
        run("copy", "file", stream=source, into=target)
    assert "\n" not in told.value.message
    with pytest.raises(InvalidConfigError, match="interval_ms"):
        run("copy", stream=source, into=target, trigger="continuous", interval_ms=-5)


def test_a_merge_has_one_order_for_all(run, log):
    """Every record once, each stream in its own order; the log of the order alone says the same."""
    a, b = log.new_stream(30, partitions=1), log.new_stream(20, partitions=1)
    merged, order = log.new_stream(partitions=1), log.new_stream(partitions=1)
    run("merge", streams=[a, b], into=merged)
    log.append(a, range(30, 40), partitions=1)
    run("merge", streams=[a, b], into=merged)
    run("merge", "order", streams=[a, b], into=order, values=False)
    sources = [source_of(row["headers"]) for row in rows(log, merged)]
    for stream, count in ((a, 40), (b, 20)):
        assert [offset for name, _, offset in sources if name == stream] == list(range(count))
    assert set(values(log, order)) == {None}
    assert sorted(source_of(row["headers"]) for row in rows(log, order)) == sorted(sources)


def test_repartitioned_and_cleaned_a_stream_is_pristine(run, log):
    """By its new key, each record says where it was; duplicates and such headers can go."""
    source = log.new_stream(60)
    keyed, pristine = log.new_stream() + "-keyed", log.new_stream() + "-clean"
    key = "CAST(CAST(value AS STRING) AS INT) % 3"
    run("repartition", stream=source, into=keyed, key=key, partitions=2)
    placed = {row["key"]: row["partition"] for row in rows(log, keyed)}
    assert set(placed) == {b"0", b"1", b"2"}
    assert sorted(map(int, values(log, keyed))) == list(range(60))
    assert all(placed[b"%d" % (int(r["value"]) % 3)] == r["partition"] for r in rows(log, keyed))
    # What an at-least-once writer would do: the end of each partition once more.
    for partition in (0, 1):
        last = log.client.read(keyed, partition=partition).read_all().slice(5)
        again = last.select(["value", "key", "headers"])
        log.client.append_batch(keyed, again, partition=partition)
    run("clean", "clean", stream=keyed, into=pristine)
    for partition in (0, 1):
        expected = list(dict.fromkeys(values(log, keyed, partition)))
        assert values(log, pristine, partition) == expected
    assert all(row["headers"] == {} for row in rows(log, pristine))


def test_every_batch_is_reported_also_after_an_idle_time(spark, log, tmp_path):
    """A continuous pipeline tells each micro-batch once, in order, and how far it is behind; what
    is behind a pipeline that has ended is in the broker's metrics.
    """
    source, told = log.new_stream(40, partitions=1), []
    config = {"kind": "copy", "server": log.server, "checkpoint": str(tmp_path / "checkpoint")}
    config |= {"stream": source, "into": f"{source}-copy", "trigger": "continuous"}
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    [query] = start_pipeline(spark, decode_pipeline(config | {"batch_records_max": 10}))
    options = {"server": log.server, "report": told.append}
    watching = threading.Thread(target=wait_for_end, args=([query],), kwargs=options)
    watching.start()
    try:
        until(lambda: sum(line["records"] for line in told) == 40)
        until(lambda: query.lastProgress["numInputRows"] == 0)
        log.append(source, range(40, 50), partitions=1)
        until(lambda: sum(line["records"] for line in told) == 50)
        until(lambda: lag_in_metrics(log, query.name) == 0)
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        query.stop()
        watching.join(60)
    assert [(line["batch"], line["records"]) for line in told] == [(n, 10) for n in range(5)]
    assert [line["lag"] for line in told] == [{f"{source}/0": n} for n in (30, 20, 10, 0, 0)]
    assert "oldest_unread_ms" in told[-1]
    log.append(source, range(50, 57), partitions=1)
    assert lag_in_metrics(log, query.name) == 7
    assert lag_in_metrics(log, query.name, "oldest_unread_seconds") > 0


def lag_in_metrics(log, group, name="lag_records"):
    """Return a pipeline's backlog from the broker's metrics; None if there is none."""
    return log.metric(f'strandline_group_{name}{{group="{group}",')


until = partial(wait_until, seconds=120)


def test_the_newest_record_of_each_key_is_a_table(log):
    """Later records and tombstones win; records without a key are left out."""
    stream = log.new_stream(partitions=1)
    table = pa.table(
        {
            "key": pa.array([b"a", b"b", None, b"a", b"c", b"b"], pa.binary()),
            "value": pa.array([b"1", b"2", b"3", b"4", b"5", None], pa.binary()),
        }
    )
    log.client.append_batch(stream, table)
    found = compacted_view(log.client, stream, columns=["key", "value", "offset"])
    assert found.to_pylist() == [
        {"key": b"a", "value": b"4", "offset": 3},
        {"key": b"c", "value": b"5", "offset": 4},
    ]
