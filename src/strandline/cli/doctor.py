"""``strandline doctor``: check that a broker can run here, and say what to change."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.output import (
    EXIT_ERROR,
    OutputFormat,
    OutputOption,
    examples,
    print_json,
    print_line,
    reports_errors,
)

if TYPE_CHECKING:
    from strandline.cli.findings import CheckFinding

EPILOG = examples(
    "strandline doctor                                 # before 'strandline serve'",
    "strandline doctor --config strandline.yaml",
    "strandline doctor --data-dir /srv/log -o json     # a finding a line",
)
MARKS = {"ok": "ok  ", "warning": "WARN", "error": "FAIL"}


@reports_errors
def doctor(
    *,
    data_dir: Annotated[
        str | None, typer.Option(help="The data directory.", show_default="strandline-data")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="STRANDLINE_CONFIG", help="YAML file of the broker's settings."),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Check disk, limits, memory, clock, ports, nats-server, Java and versions for a broker.

    Run it on the broker's machine with the broker's settings, while the broker is stopped. The exit
    code is 1 if something would prevent a broker from running; warnings do not count.
    """
    import os

    from strandline.cli import machine_checks, program_checks
    from strandline.process.settings import load_settings

    settings = load_settings(config, os.environ, {"data_dir": data_dir})
    failed = 0
    for check in (
        program_checks.check_versions,
        machine_checks.check_disk,
        machine_checks.check_descriptors,
        machine_checks.check_memory,
        machine_checks.check_clock,
        machine_checks.check_ports,
        program_checks.check_nats,
        program_checks.check_spark,
    ):
        for found in check(settings):
            failed += found.status == "error"
            _print(found, output)
    if output is OutputFormat.text:
        print_line(f"{failed} of these would stop a broker" if failed else "a broker can run here")
    if failed:
        raise typer.Exit(EXIT_ERROR)


def _print(found: "CheckFinding", output: OutputFormat) -> None:
    if output is OutputFormat.json:
        print_json(found)
        return
    print_line(f"{MARKS[found.status]}  {found.check:<15}  {found.detail}")
    if found.advice:
        print_line(f"{'':21}  → {found.advice}")
