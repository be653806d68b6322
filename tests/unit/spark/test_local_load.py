"""``engine: local``: loads by this process, without Java, each record once."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyspark import SparkContext
from pyspark.sql.pandas.types import from_arrow_schema
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.cli.documents import schema_of
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidRequestError,
)
from strandline.spark.connection import forget_client
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.pipelines.run import start_pipeline
from strandline.spark.pipelines.status import load_status
from strandline.spark.table import table_summary
from strandline.spark.tables.store import LocalDirectory
from strandline.testing import Server
from strandline.values.columns import parse_columns
from tests.kit.json_schemas import check_document
from tests.kit.local_loads import FORMATS, LocalLoad, sql_catalog
from tests.kit.waiting import until


@pytest.fixture
def log(tmp_path):
    """A broker with the streams ``orders`` of two partitions and ``bad``."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2)
        client.create_stream("bad")
        yield LocalLoad(str(url), client, tmp_path, dead_letters="bad")
        forget_client(str(url))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_local_load_takes_each_record_once(log, table_format):
    """Run after run only what is new is added; a lost checkpoint changes nothing; Java is not
    started.
    """
    before = SparkContext._gateway  # other tests of this process may have started it
    log.use(table_format)
    log.append(range(100), bad={7, 8})
    [first] = log.run()
    assert (first["batch"], first["records"], first["lag"]) == (
        0,
        100,
        {"orders/0": 0, "orders/1": 0},
    )
    assert log.run() == []
    log.append(range(100, 150), bad={101})
    log.run(checkpoint=str(log.directory / "another"))
    assert log.ids() == [n for n in range(150) if n not in (7, 8, 101)]
    assert log.letters() == [b"oops 101", b"oops 7", b"oops 8"]
    assert SparkContext._gateway is before
    name = f"load orders into {log.config['into'].replace('{stream}', 'orders')}"
    assert log.client.groups.committed_offsets(name) == {("orders", 0): 75, ("orders", 1): 75}


def test_batches_are_bounded_and_end_where_the_stream_ended(log):
    """``batch_bytes_max`` limits one, and ``available_now`` ends at the end it found."""
    log.append(range(1000))
    lines = log.run(batch_bytes_max=10_000)
    assert len(lines) > 2
    assert sum(line["records"] for line in lines) == 1000
    assert lines[0]["oldest_unread_ms"].keys() == {"orders/0", "orders/1"}
    assert log.ids() == list(range(1000))


def test_a_start_at_the_latest_is_kept_over_restarts(log):
    """A load that was stopped before its first record misses none of those that came since."""
    log.append(range(10))
    assert log.run(starting_offsets="latest") == []
    log.append(range(10, 14))
    log.run(starting_offsets="latest")
    assert log.ids() == [10, 11, 12, 13]


def test_records_that_are_not_there_do_not_hold_a_load_up(log):
    """Offsets of aborted transactions alone make a batch without rows, which is not repeated."""
    log.append(range(4))
    log.run()
    for _ in range(2):
        with log.client.transaction("t") as transaction:
            transaction.append("orders", b"{}", partition=0)
            transaction.abort()
    log.run()
    assert log.run() == []
    log.append(range(4, 8))
    log.run()
    assert log.ids() == list(range(8))


def test_a_continuous_load_follows_until_it_is_stopped(log):
    """New records are committed as they come."""
    stop = threading.Event()
    config = decode_pipeline(log.config | {"trigger": "continuous"})
    failures = []

    def load():
        try:
            run_local(config, stop=stop)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for start in range(0, 30, 10):
            log.append(range(start, start + 10))
            until(lambda n=start: log.state()[1].state and len(log.ids()) == n + 10)
    finally:
        stop.set()
        thread.join(60)
    assert not failures
    assert not thread.is_alive()


def test_a_killed_load_takes_each_record_once(log):
    """Killed at random moments by SIGKILL: rows and dead letters are there once."""

    def append(number):
        new = range(400 * number, 400 * number + 400)
        log.append(new, bad={n for n in new if n % 50 == 0})

    log.killed(3, append)
    log.run()
    assert log.ids() == [n for n in range(1200) if n % 50]
    assert log.letters() == sorted(b"oops %d" % n for n in range(0, 1200, 50))


def test_a_batch_that_was_planned_is_repeated_as_planned(log, monkeypatch):
    """After a crash between dead letters and commit, newer records wait for the next batch."""
    from strandline.spark.tables import io as table_io

    log.append(range(10), bad={3})
    with monkeypatch.context() as patch:

        def crash(*args, **kwargs):
            raise KeyboardInterrupt

        patch.setattr(table_io, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            log.run()
    assert log.letters() == [b"oops 3"]
    log.append(range(10, 20), bad={12})
    assert [line["records"] for line in log.run()] == [10, 10]
    assert log.letters() == [b"oops 12", b"oops 3"]
    assert len(log.ids()) == 18


def test_what_would_lose_or_double_records_is_rejected(log):
    """A deleted table, a recreated stream, a corrupt plan, and records that are gone."""
    log.append(range(10))
    log.run()
    log.append(range(10, 20))
    log.run()
    table = log.directory / "orders"
    table.rename(log.directory / "moved")
    log.append(range(20, 30))
    with pytest.raises(InvalidRequestError, match="the table was deleted"):
        log.run()
    shutil.rmtree(table)  # its directories were made
    (log.directory / "moved").rename(table)
    plan = log.directory / "checkpoint" / "orders.local.json"
    kept = plan.read_bytes()
    plan.write_bytes(kept[:20])
    with pytest.raises(InvalidRecordError, match="delete it"):
        log.run()
    plan.write_bytes(kept)
    log.client.delete_stream("orders")
    log.client.create_stream("orders", partitions=2)
    with pytest.raises(InvalidRequestError, match="holds records of stream orders@"):
        log.run()
    with pytest.raises(InvalidConfigError, match=r"another incarnation of the stream \(orders@"):
        log.run(into=str(log.directory / "new"))


def test_lost_records_end_a_load(log):
    """Unless ``fail_on_data_loss`` is off."""
    log.client.create_stream("big", segment_bytes=1 << 20)
    for _ in range(4):
        log.client.append_batch("big", pa.table({"value": [b'{"id": 1}' + b" " * 700_000]}))
    load = {"streams": ["big"], "batch_bytes_max": 1}
    raised = []

    def drop(line):
        if line["batch"] == 0:
            log.client.delete_records("big", 3)
            raised.append(log.client.offsets("big", "earliest")[0])

    with pytest.raises(DataLossError, match="deleted before they were read"):
        run_local(decode_pipeline(log.config | load), report=drop)
    assert raised[0] > 1, "nothing was deleted"
    [group] = [each.group for each in log.client.groups.list()]
    assert "deleted before they were read" in log.client.groups.info(group).metadata
    run_local(decode_pipeline(log.config | load | {"fail_on_data_loss": False}))
    assert log.client.groups.info(group).metadata == ""
    assert table_summary(str(log.directory / "big")).offsets == {0: 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starting_offsets": "later"}, "'starting_offsets' must be earliest, latest or JSON"),
        ({"dead_letters": None}, "name a stream for such values with 'dead_letters'"),
        ({"format": "delta"}, "plain Parquet files; leave format out, or"),
    ],
)
def test_an_error_names_the_key_of_the_file(log, changes, message):
    """Not the option that the key becomes, which the file does not have."""
    log.append(range(10), bad={3})
    if "format" in changes:
        log.run()
    with pytest.raises(InvalidRequestError) as raised:
        log.run(**changes)
    assert message in str(raised.value)
    assert "option" not in str(raised.value)


@pytest.mark.parametrize("command", ["run", "status"])
def test_the_broker_is_the_file_s_or_the_variable_s(log, monkeypatch, command):
    """As for every other command; what the file says wins."""
    log.append(range(10))
    server = log.config.pop("server")
    monkeypatch.setenv("STRANDLINE_SERVER", server)
    result = run_by_command(log, command)
    assert result.exit_code == 0, result.output
    log.config["server"] = server
    monkeypatch.setenv("STRANDLINE_SERVER", "127.0.0.1:1")
    result = run_by_command(log, command)
    assert result.exit_code == 0, result.output


def test_a_wait_for_the_broker_is_announced_and_can_be_ended(tmp_path):
    """A line says at once who does not answer; SIGTERM ends the load with code 0."""
    config = {"kind": "load", "engine": "local", "streams": ["a"], "into": "t", "checkpoint": "c"}
    file = tmp_path / "load.yaml"
    file.write_text(yaml.safe_dump(config))
    source = str(Path(strandline.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-m", "strandline.cli", "pipeline", "run", str(file)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": source, "STRANDLINE_SERVER": "127.0.0.1:1"},
    ) as process:
        first = process.stderr.readline()
        assert "no Strandline broker answers at 127.0.0.1:1" in first
        assert "retrying for 60 s" in first
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait() == 0, rest
    assert "run it again to continue" in rest
    assert "error" not in rest.replace("last error", "")


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_full_disk_is_named(log, table_format, monkeypatch):
    """The error is ``disk_full`` and names the place; the next run goes on, without garbage."""
    log.use(table_format)
    log.append(range(10))

    def on_a_full_disk(directory, prefix):
        path = directory.staging / f"part-{prefix}.parquet"
        path.symlink_to("/dev/full")
        return path

    with monkeypatch.context() as patch:
        patch.setattr(LocalDirectory, "new_staged_path", on_a_full_disk)
        result = run_by_command(log)
    assert result.exit_code == 1
    assert "No space left on device (disk_full)" in result.stderr
    staging = log.state()[0].directory.staging
    assert f"cannot use {staging}" in result.stderr
    assert list(staging.iterdir()) == []
    log.run()
    assert log.ids() == list(range(10))


@pytest.mark.parametrize(
    ("code", "name"),
    [("ENOSPC", "disk_full"), ("EIO", "unavailable"), ("EACCES", "invalid_config")],
)
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_failed_write_names_its_file(log, monkeypatch, call, code, name):
    """Of a plan, a data file or a manifest: the system's errors of a write have no file name."""
    log.append(range(10))

    def fail(*_):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        result = run_by_command(log)
    assert result.exit_code == 1
    assert result.stderr.rstrip().endswith(f"({name})")
    assert str(log.directory) in result.stderr
    log.run()
    assert log.ids() == list(range(10))


def run_by_command(log, command="run"):
    return CliRunner().invoke(app, ["pipeline", command, str(log.file())])


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_status_of_a_load_is_that_of_its_table(log, table_format):
    """Before the first commit, behind, and at the end; as printed, and as its schema says."""
    log.use(table_format)
    log.append(range(10))
    [before] = load_status(decode_pipeline(log.config))
    assert (before.commits, before.files, before.committed_at_ms) == (0, 0, None)
    assert before.lag == {"orders/0": 5, "orders/1": 5}
    log.run()
    log.append([10])
    file = log.file()
    result = CliRunner().invoke(app, ["pipeline", "status", str(file), "--output", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    check_document(found, schema_of("pipeline status"))
    assert (found["commits"], found["rows"], found["stream"]) == (1, 10, "orders")
    assert found["files"] >= 1
    assert found["bytes"] > 0
    assert abs(found["committed_at_ms"] - time.time() * 1000) < 120_000
    assert found["offsets"] == {"orders/0": 5, "orders/1": 5}
    assert found["lag"] == {"orders/0": 1, "orders/1": 0}
    assert found["oldest_unread_ms"].keys() == {"orders/0"}
    text = CliRunner().invoke(app, ["pipeline", "status", str(file)]).stdout
    assert "s ago" in text


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_status_of_a_load_that_run_rejects_is_the_same_error(log, table_format):
    """A recreated stream, its checkpoint, another's table, another format, several streams for a
    table of one, and a schema of values that are not decoded.
    """
    log.use(table_format)
    log.append(range(10))
    log.run()
    other = "delta" if table_format == "parquet" else "parquet"
    changes = [
        {"values": "raw"},
        {"streams": ["bad"], "into": log.config["into"].replace("{stream}", "orders")},
        {"streams": ["orders", "bad"], "into": log.config["into"].replace("{stream}", "orders")},
        {"dead_letters": "none"},
        {"format": "iceberg", "into": "no-name", "catalog": sql_catalog(log.directory)},
    ]
    if table_format != "iceberg":
        changes.append({"format": other})
    for each in changes:
        assert_rejected_alike(log, each | {"checkpoint": str(log.directory / "c")})
    log.client.delete_stream("orders")
    log.client.create_stream("orders", partitions=2)
    assert_rejected_alike(log, {})
    into = "lake.new" if table_format == "iceberg" else str(log.directory / "new")
    assert_rejected_alike(log, {"into": into})


def assert_rejected_alike(log, changes):
    changes = {"dead_letters": None} | changes
    with pytest.raises(InvalidRequestError) as by_run:
        log.run(**changes)
    with pytest.raises(InvalidRequestError) as by_status:
        load_status(decode_pipeline(log.config | changes))
    assert (by_status.value.code, str(by_status.value)) == (
        by_run.value.code,
        str(by_run.value),
    )


def test_the_status_of_another_pipeline_is_its_group(tmp_path):
    """The error says where it is."""
    file = tmp_path / "copy.yaml"
    file.write_text("kind: copy\nstream: a\ninto: b\ncheckpoint: c\n")
    result = CliRunner().invoke(app, ["pipeline", "status", str(file)])
    assert result.exit_code == 1
    assert "strandline group info" in result.output


def test_a_local_load_needs_no_session(log):
    """And given one, the error says how it is run."""
    with pytest.raises(InvalidConfigError, match="run_local"):
        start_pipeline(None, decode_pipeline(log.config))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("id BIGINT", {"id": "bigint"}),
        ("a int, `b c` string NOT NULL", {"a": "int", "b c": "string"}),
        ("a: DOUBLE, d DECIMAL(5,2), e DECIMAL", None),
        (
            "s STRUCT<a: INT, b: ARRAY<STRING>>, m MAP<STRING, STRUCT<x TIMESTAMP>>",
            {"s": "struct<a:int,b:array<string>>", "m": "map<string,struct<x:timestamp>>"},
        ),
        ("a INT COMMENT 'it, is', b DATE", {"a": "int", "b": "date"}),
    ],
)
def test_columns_are_parsed_without_spark(text, columns):
    """As Spark writes them."""
    found = {
        field.name: field.dataType.simpleString()
        for field in from_arrow_schema(parse_columns(text))
    }
    assert found == (columns or {"a": "double", "d": "decimal(5,2)", "e": "decimal(10,0)"})


@pytest.mark.parametrize(
    "text", ["", "id", "id BIGINT,", "id NUMBER", "a ARRAY<INT", "a MAP<INT>", "a INT b INT", "a ;"]
)
def test_columns_that_are_none_are_rejected(text):
    """The error shows what is meant."""
    with pytest.raises(InvalidConfigError, match="'schema' takes columns such as"):
        parse_columns(text)


def test_a_plan_is_readable(log):
    """It says what was last loaded."""
    log.append(range(4))
    log.run()
    plan = json.loads((log.directory / "checkpoint" / "orders.local.json").read_text())
    assert (plan["batch"], plan["end"]) == (0, {"0": 2, "1": 2})
