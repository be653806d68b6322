"""``strandline pipeline``: run pipelines described in files, and show their progress."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    examples,
    logged_to_stderr,
    print_json,
    print_line,
    print_table,
    reports_errors,
)
from strandline.cli.parsing import size_text
from strandline.cli.signals import GracefulStop
from strandline.errors import InvalidConfigError

if TYPE_CHECKING:
    from strandline.spark.pipelines.config import Pipeline
    from strandline.spark.pipelines.status import LoadStatus

app = typer.Typer(help="Run pipelines over streams, and show their progress.", no_args_is_help=True)


@app.command(
    epilog=examples(
        "strandline pipeline run load.yaml",
        "strandline pipeline run load.yaml --master spark://10.0.0.5:7077",
        "strandline pipeline run copy.yaml --conf spark.sql.shuffle.partitions=8",
    )
)
@reports_errors
def run(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of the pipeline.")],
    master: Annotated[
        str, typer.Option(help="Spark master: local[*], or a cluster's address.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option(help="A Spark setting as NAME=VALUE; repeat for more.")
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Run a pipeline to its end, or until Ctrl-C or SIGTERM; run it again to continue.

    Prints a line for each micro-batch: its number, its records, each partition's lag behind the
    stream, and the age of the oldest unread record. A signal abandons the running batch and waits
    for that; a second signal ends the command at once.

    The broker is the one in the file (server), else in the variable STRANDLINE_SERVER, else
    127.0.0.1:9293.
    """
    from strandline.spark.pipelines.config import LoadPipeline

    config = _pipeline_of(file)
    settings = _settings(conf or [])
    report = print_json if output is OutputFormat.json else _print
    if isinstance(config, LoadPipeline) and config.engine == "local":
        from strandline.spark.pipelines.local import run_local
        from strandline.without_pandas import keep_pandas_out

        keep_pandas_out()
        with logged_to_stderr(output), GracefulStop(lambda: None) as stop:
            run_local(config, report=report, stop=stop.requested)
        return
    from strandline.spark.pipelines.run import run_pipeline
    from strandline.spark.session import kill_spark, spark_session

    with logged_to_stderr(output), GracefulStop(kill_spark) as stop:
        spark = spark_session(master, app_name=file.stem, settings=settings, own_group=True)
        stop.install()  # PySpark has set a handler of its own for Ctrl-C
        spark.sparkContext.setLogLevel("ERROR")
        try:
            run_pipeline(spark, config, report=report, stop=stop.requested)
        finally:
            spark.stop()


@app.command(
    epilog=examples(
        "strandline pipeline status load.yaml", "strandline pipeline status load.yaml -o json"
    )
)
@reports_errors
def status(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file of a load.")],
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show what a load has committed, its lag, and the size of its tables.

    The values come from the tables and the brokers, so they are right even if the load does not
    run. The broker is found as for run. For the progress of other pipelines, see their consumer
    group: strandline group info.
    """
    from strandline.spark.pipelines.config import LoadPipeline
    from strandline.spark.pipelines.status import load_status

    config = _pipeline_of(file)
    if not isinstance(config, LoadPipeline):
        raise InvalidConfigError(
            f"{file} is not a load; the progress of other pipelines is that of their consumer "
            "group: strandline group list, strandline group info"
        )
    with logged_to_stderr(output):
        found = load_status(config)
    if output is OutputFormat.json:
        for each in found:
            print_json(each)
        return
    columns = ("stream", "table", "#lag", "oldest unread", "last commit", "#files", "size", "#rows")
    print_table(columns, [_status_row(each) for each in found])


def _status_row(each: "LoadStatus") -> tuple[str, str, int, str, str, int, str, int]:
    oldest_ms = max(each.oldest_unread_ms.values(), default=None)
    at_ms = each.committed_at_ms
    return (
        each.stream,
        each.table,
        sum(each.lag.values()),
        "-" if oldest_ms is None else f"{oldest_ms / 1000:.1f} s",
        "-" if at_ms is None else f"{max(0.0, time.time() - at_ms / 1000):.1f} s ago",
        each.files,
        size_text(each.bytes),
        each.rows,
    )


def _pipeline_of(file: Path) -> "Pipeline":
    from strandline.process.yaml_file import read_yaml
    from strandline.spark.pipelines.config import decode_pipeline

    server = os.environ.get("STRANDLINE_SERVER") or SERVER_DEFAULT
    values = {"server": server} | read_yaml(file)
    try:
        return decode_pipeline(values)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{file}: {error.message}") from error


def _settings(given: list[str]) -> dict[str, str]:
    settings = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InvalidConfigError(f"--conf must be NAME=VALUE, got {each!r}")
        settings[name] = value
    return settings


def _print(line: Mapping[str, Any]) -> None:
    lag = ", ".join(f"{partition}: {behind}" for partition, behind in line["lag"].items())
    oldest_ms = max(line.get("oldest_unread_ms", {}).values(), default=None)
    print_line(
        f"{line['query']}: batch {line['batch']}, {line['records']} records in {line['ms']} ms, "
        f"lag {{{lag}}}"
        + ("" if oldest_ms is None else f", oldest unread {oldest_ms / 1000:.1f} s")
    )
