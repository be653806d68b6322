"""``strandline demo``: real flights through NATS, log and Spark, both killed on the way."""

from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.output import OutputFormat, OutputOption, examples, reports_errors

EPILOG = examples("strandline demo", "strandline demo --directory /tmp/flights")


@reports_errors
def demo(
    *,
    directory: Annotated[
        Path, typer.Option(help="Where the log, the table and the chart go; emptied first.")
    ] = Path("demo-output"),
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show the whole path on real data, and check the result record by record.

    Replays the flights of 2013 from New York as NATS messages into a partitioned stream. A Spark
    job computes delays per carrier and hour and writes each flight to a Parquet table exactly
    once. The demo kills the job once and the broker once, restarts both, and compares.
    """
    from strandline.spark.demo import run_demo

    run_demo(directory)
