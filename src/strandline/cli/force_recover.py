"""``strandline cluster force-recover`` and ``discard-metadata``: offline, on a data directory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    YesOption,
    examples,
    is_asked,
    note,
    print_json,
    print_line,
    reports_errors,
)
from strandline.errors import InvalidRequestError

WARNING = """\
This is for a cluster that lost most of its voters and their disks permanently. This broker becomes
the only voter. Metadata and records that only the lost brokers had are lost. If two of the lost
voters come back with their disks, there are two clusters with the same name, which cannot be
merged: destroy these disks first."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to ``strandline cluster``."""
    epilog = examples("strandline cluster force-recover --data-dir strandline-data --yes")
    app.command("force-recover", epilog=epilog)(reports_errors(force_recover))
    epilog = examples("strandline cluster discard-metadata --data-dir strandline-data --yes")
    app.command("discard-metadata", epilog=epilog)(reports_errors(discard))


def force_recover(
    *,
    data_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Data directory of a surviving broker, which is stopped."),
    ],
    yes: YesOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Make a stopped broker the only voter, if most voters are permanently lost.

    Choose the surviving broker that ran last. Start it afterwards, then remove or replace the lost
    brokers and add new ones. Asks for confirmation, unless --yes.
    """
    from strandline.broker.cluster.force_recover import force_recover as force_recover_directory
    from strandline.storage.disk import Disk

    note(WARNING)
    if is_asked(output, yes=yes):
        typer.confirm("Are the disks of the lost brokers destroyed?", abort=True)
    elif not yes:
        raise InvalidRequestError(
            "there is no terminal to ask for confirmation; give --yes once the disks of the lost "
            "brokers are destroyed"
        )
    done = force_recover_directory(data_dir, disk=Disk())
    if output is OutputFormat.json:
        print_json(
            {
                "event": "done",
                "broker": done.broker,
                "voters": done.voters,
                "in_doubt": list(map(str, done.in_doubt)),
                "without_copy": list(map(str, done.without_copy)),
            }
        )
        return
    voters = ", ".join(map(str, done.voters))
    print_line(f"broker {done.broker} is now the only voter, instead of {voters}; start it")
    elect = f"'strandline cluster elect STREAM --partition N --leader {done.broker} --unclean'"
    _list(f"may lack records here; elect this broker with {elect}", done.in_doubt)
    _list(
        "have no replica here, and are lost if no other broker has one: run 'strandline cluster "
        "replace-disk' for a broker that had one, start it empty and elect it with --unclean, or "
        "delete the stream",
        done.without_copy,
    )


def discard(
    *,
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Data directory of the broker, which is stopped.")
    ],
    yes: YesOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Delete a stopped broker's corrupt copy of the metadata, so that it fetches a new one.

    Run 'cluster replace-disk' at another broker first. The broker's records are kept. Asks for
    confirmation, unless --yes.
    """
    from strandline.broker.cluster.discard import discard_metadata
    from strandline.storage.disk import Disk

    question = "Has 'cluster replace-disk' been run for this broker at another one?"
    if is_asked(output, yes=yes):
        typer.confirm(question, abort=True)
    elif not yes:
        raise InvalidRequestError(f"there is no terminal to ask: {question} If so, give --yes")
    broker = discard_metadata(data_dir, disk=Disk())
    if output is OutputFormat.json:
        print_json({"event": "done", "broker": broker})
        return
    print_line(f"broker {broker} fetches the metadata from the others when it starts; start it")


def _list(what: str, names: Iterable[object]) -> None:
    text = ", ".join(map(str, names))
    if text:
        print_line(f"these {what}: {text}")
