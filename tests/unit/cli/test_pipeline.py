"""``strandline pipeline run``: mistakes are reported before Spark starts."""

import re
import time
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.spark.pipelines.status import LoadStatus


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("kind: [", (), "is not valid YAML: line 1: expected the node content"),
        ("kind: copy\nstream: a\nstream: b\n", (), "'stream' is given twice, again on line 3"),
        ("kind: load\nstorage:\n  region: a\n  region: b\n", (), "'region' is given twice"),
        ("", (), "kind is missing; it is required"),
        ("- kind: copy\n", (), "must hold keys and values, such as"),
        ("kind: coppy\nstream: a\ninto: b\ncheckpoint: c\n", (), "coppy"),
        ("kind: copy\nstream: a\ninto: b\n", (), "checkpoint"),
        (None, (), "cannot read"),
        ("kind: copy\nstream: a\ninto: b\ncheckpoint: c\n", ("--conf", "x"), "NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, text, arguments, message):
    """Broken YAML, an unknown kind, a missing key or file, a wrong setting: named, with exit 1."""
    file = tmp_path / "pipeline.yaml"
    if text is not None:
        file.write_text(text)
    result = CliRunner().invoke(app, ["pipeline", "run", str(file), *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert "invalid_config" in result.output
    assert len(result.output.splitlines()) == 1


BATCH = {"query": "q", "batch": 7, "records": 3, "ms": 12, "lag": {"orders/0": 5}}
LOAD = """
kind: load
streams: [orders]
into: lake/{stream}
values: json
checkpoint: checkpoints
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (LOAD, "run_pipeline"),
        (LOAD + "engine: spark", "run_pipeline"),
        (LOAD + "engine: local", "run_local"),
        ("kind: copy\nstream: a\ninto: b\ncheckpoint: c\n", "run_pipeline"),
    ],
)
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (BATCH, "q: batch 7, 3 records in 12 ms, lag {orders/0: 5}\n"),
        (
            {**BATCH, "oldest_unread_ms": {"orders/0": 2500, "orders/1": 9}},
            "q: batch 7, 3 records in 12 ms, lag {orders/0: 5}, oldest unread 2.5 s\n",
        ),
    ],
)
def test_a_pipeline_runs_where_its_file_says(tmp_path, monkeypatch, text, place, line, shown):
    """On Spark, or a load in this process; what it reports is printed."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    ran = []
    spark = MagicMock()
    monkeypatch.setattr("strandline.spark.session.spark_session", spark)

    def run_local(config, *, report, stop):
        ran.append("run_local")
        report(line)

    def run_pipeline(session, config, *, report, stop):
        ran.append("run_pipeline")
        report(line)

    monkeypatch.setattr("strandline.spark.pipelines.local.run_local", run_local)
    monkeypatch.setattr("strandline.spark.pipelines.run.run_pipeline", run_pipeline)
    result = CliRunner().invoke(app, ["pipeline", "run", str(file), "--conf", "a=b=c"])
    assert (result.exit_code, ran, result.output) == (0, [place], shown)
    assert spark.called == (place == "run_pipeline")
    if spark.called:
        assert spark.call_args.kwargs["settings"] == {"a": "b=c"}
        assert spark.return_value.stop.called


def test_the_status_is_of_a_load_alone(tmp_path, monkeypatch):
    """A row for each table, with the lag of all partitions and the age of the oldest record."""
    file = tmp_path / "pipeline.yaml"
    file.write_text("kind: copy\nstream: a\ninto: b\ncheckpoint: c\n")
    refused = CliRunner().invoke(app, ["pipeline", "status", str(file)])
    assert refused.exit_code == 1
    assert "is not a load" in refused.output
    file.write_text(LOAD)
    rest = {"format": "delta", "commits": 1, "offsets": {}}
    rest |= {"files": 2, "bytes": 3 << 20, "rows": 1000}
    found = [
        LoadStatus(
            stream="orders",
            table="lake/orders",
            lag={"0": 3, "1": 4},
            oldest_unread_ms={"0": 1500, "1": 200},
            committed_at_ms=int(time.time() * 1000) + 60_000,
            **rest,
        ),
        LoadStatus(
            stream="none", table="t", lag={}, oldest_unread_ms={}, committed_at_ms=None, **rest
        ),
    ]
    monkeypatch.setattr("strandline.spark.pipelines.status.load_status", lambda _: found)
    shown = CliRunner().invoke(app, ["pipeline", "status", str(file)])
    _, orders, none = [re.split(r"  +", line.strip()) for line in shown.stdout.splitlines()]
    assert orders == ["orders", "lake/orders", "7", "1.5 s", "0.0 s ago", "2", "3MiB", "1,000"]
    assert none == ["none", "t", "0", "-", "-", "2", "3MiB", "1,000"]
    as_json = CliRunner().invoke(app, ["pipeline", "status", str(file), "-o", "json"])
    assert len(as_json.stdout.splitlines()) == 2
