"""The start of pipelines: rejections without leftovers, late Python processes, an old Spark."""

import threading
from contextlib import nullcontext

import pytest

import strandline
from strandline.errors import InvalidConfigError, UnavailableError
from strandline.spark.pipelines import run
from strandline.spark.pipelines.config import CopyPipeline, decode_pipeline
from strandline.spark.pipelines.outputs import ensure_stream, removed_if_refused, stream_of
from strandline.spark.releases import check_spark_version
from strandline.spark.session import spark_session
from strandline.spark.source import StrandlineSource
from strandline.spark.tables.source import StrandlineTable
from strandline.testing import Server


@pytest.fixture(scope="module")
def broker():
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("in")
        yield str(url), client


def refused(begin):
    """A pipeline that is rejected after it has begun."""
    with removed_if_refused():
        begin()
        raise InvalidConfigError("the SQL is wrong")


def names(client):
    return {each.name for each in client.list_streams()}


def test_a_rejected_pipeline_leaves_no_output_behind(broker):
    """Only streams that it created are deleted, and only while they are empty."""
    server, client = broker
    source = stream_of(server, "in")
    client.create_stream("there")

    def begin():
        for name in ("there", "made", "used"):
            ensure_stream(server, name, like=source)
        client.append("used", b"x")

    with pytest.raises(InvalidConfigError):
        refused(begin)
    assert names(client) == {"in", "there", "used"}
    with removed_if_refused():
        ensure_stream(server, "started", like=source)
    assert "started" in names(client)


def test_an_output_recreated_by_somebody_else_stays(broker):
    """A stream that was recreated meanwhile is not deleted."""
    server, client = broker

    def begin():
        ensure_stream(server, "taken", like=stream_of(server, "in"))
        client.delete_stream("taken")
        client.create_stream("taken")

    with pytest.raises(InvalidConfigError):
        refused(begin)
    assert "taken" in names(client)


def copy(server):
    values = {"kind": "copy", "server": server, "stream": "in", "into": "o", "checkpoint": "c"}
    return decode_pipeline(values)


@pytest.mark.parametrize("is_refused", [True, False])
def test_only_a_pipeline_that_was_not_rejected_keeps_the_output_that_it_made(
    broker, monkeypatch, is_refused
):
    """Its queries run, and write there."""
    server, client = broker

    def start(spark, config):
        ensure_stream(server, config.into, like=stream_of(server, "in"))
        if is_refused:
            raise InvalidConfigError("Spark does not take it")
        return []

    monkeypatch.setitem(run._START, CopyPipeline, start)
    with pytest.raises(InvalidConfigError) if is_refused else nullcontext():
        run.start_pipeline(None, copy(server))
    assert ("o" in names(client)) is not is_refused


class LateWorkers:
    """Ends a pipeline's start as Spark does on a machine too busy for its 10 s; then lets it be."""

    def __init__(self, times):
        self.left = times

    def __call__(self, spark, config):
        self.left -= 1
        if self.left >= 0:
            raise UnavailableError("query q failed: Python worker failed to connect back. SQLSTATE")
        return []


def test_a_pipeline_whose_python_processes_come_too_late_is_started_again(monkeypatch, caplog):
    """A few times, and said each time; another failure ends it at once."""
    monkeypatch.setitem(run._START, CopyPipeline, LateWorkers(4))
    run.run_pipeline(None, copy("127.0.0.1:1"))
    assert caplog.text.count("starting it again") == 4
    monkeypatch.setitem(run._START, CopyPipeline, LateWorkers(5))
    with pytest.raises(UnavailableError, match="connect back"):
        run.run_pipeline(None, copy("127.0.0.1:1"))
    caplog.clear()

    def broken(spark, config):
        raise UnavailableError("query q failed: no disk")

    monkeypatch.setitem(run._START, CopyPipeline, broken)
    with pytest.raises(UnavailableError, match="no disk"):
        run.run_pipeline(None, copy("127.0.0.1:1"))
    assert "again" not in caplog.text


@pytest.mark.parametrize("made", [StrandlineSource, StrandlineTable, lambda _: spark_session()])
def test_an_old_spark_is_rejected_by_name(monkeypatch, made):
    """Instead of a TypeError within Spark, whose interface was another one."""
    for version in ("4.1.4", "3.5.0"):
        monkeypatch.setattr("pyspark.__version__", version)
        with pytest.raises(InvalidConfigError, match=rf"PySpark {version}.*4\.2 or later"):
            made({})
    for version in ("4.2.0", "4.10.1", "5.0.0.dev1"):
        monkeypatch.setattr("pyspark.__version__", version)
        check_spark_version()


@pytest.mark.parametrize("attempt", [1, run._STARTS])
def test_a_pipeline_stopped_while_it_starts_says_so(monkeypatch, caplog, attempt):
    """At its first attempt and at its last: nothing was committed."""
    caplog.set_level("INFO")
    stop, starts = threading.Event(), []

    def start(spark, config):
        starts.append(config)
        if len(starts) == attempt:
            stop.set()
            raise UnavailableError("no broker answers")
        raise UnavailableError("query q failed: Python worker failed to connect back. SQLSTATE")

    monkeypatch.setitem(run._START, CopyPipeline, start)
    run.run_pipeline(None, copy("127.0.0.1:1"), stop=stop)
    assert len(starts) == attempt
    assert caplog.text.count("stopped before the first batch: nothing was committed") == 1
