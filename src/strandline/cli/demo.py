"""``strandline demo``: real flights through NATS, the log and Spark, both killed on the way."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    note,
    print_json,
    reports_errors,
)
from strandline.cli.signals import interrupted_by_sigterm

EXIT_INTERRUPTED = 130
EPILOG = examples("strandline demo", "strandline demo --flights 20000 --directory flights")


@reports_errors
def demo(
    *,
    directory: Annotated[
        Path, typer.Option(help="Directory of log, tables and chart; replaces an earlier demo.")
    ] = Path("demo-output"),
    flights: Annotated[
        int | None,
        typer.Option(help="Number of flights, for a shorter demo.", show_default="all", min=1),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Run the whole path on real data, and check the result record by record.

    The flights of 2013 from New York are published as NATS messages into a partitioned stream. A
    Spark job computes delays per carrier and hour, and writes each flight to a Parquet table
    exactly once. The demo kills the job once and the broker once, restarts both, and compares the
    tables with the flights.
    """
    from strandline.spark.demo import run_demo

    is_json = output is OutputFormat.json
    try:
        with interrupted_by_sigterm():
            checked = run_demo(directory, flights_max=flights, out=sys.stderr if is_json else None)
    except KeyboardInterrupt as error:
        note("\nstopped; everything the demo started has been ended")
        raise typer.Exit(EXIT_INTERRUPTED) from error
    if is_json:
        print_json(checked)
