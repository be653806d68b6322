"""``strandline cluster rescue`` and ``discard-metadata``: offline, on a data directory."""

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
This is for a cluster most of whose voters are lost for ever, with their disks. From now on this
broker alone says what is true. What only the others knew of the metadata is forgotten, and a record
that only they had is lost. Should two of them come back with their disks, there will be two
clusters of one name, and no way to make them one: destroy these disks first."""


def add_to(app: typer.Typer) -> None:
    """Make the command part of ``strandline cluster``."""
    epilog = examples("strandline cluster rescue --data-dir strandline-data --yes")
    app.command("rescue", epilog=epilog)(reports_errors(rescue))
    epilog = examples("strandline cluster discard-metadata --data-dir strandline-data --yes")
    app.command("discard-metadata", epilog=epilog)(reports_errors(discard))


def rescue(
    *,
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Data directory of a survivor, which is stopped.")
    ],
    yes: YesOption = False,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let a stopped broker decide alone, after most of those that decided are lost for ever.

    Choose the survivor that was up last. Start it afterwards, remove the lost brokers or give them
    other disks, and let others join. It asks first, unless --yes.
    """
    from strandline.broker.cluster.force_recover import rescue as rescue_directory
    from strandline.storage.disk import Disk

    note(WARNING)
    if is_asked(output, yes=yes):
        typer.confirm("Are the disks of the lost brokers destroyed?", abort=True)
    elif not yes:
        raise InvalidRequestError(
            "nobody can be asked whether the disks of the lost brokers are destroyed; say --yes"
        )
    done = rescue_directory(data_dir, disk=Disk())
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
    print_line(f"broker {done.broker} decides alone now, instead of {voters}; start it")
    elect = f"'strandline cluster elect STREAM --partition N --leader {done.broker} --unclean'"
    _list(f"may lack records here: {elect} to go on", done.in_doubt)
    _list(
        "have no copy here, and are lost if none is elsewhere: 'strandline cluster replace-disk' a "
        "broker that kept them, start it empty, and elect it --unclean, or delete the stream",
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
    """Remove a stopped broker's damaged copy of the metadata, which the others have.

    Run 'cluster replace-disk' at another broker before. Records are kept. It asks first, unless
    --yes.
    """
    from strandline.broker.cluster.discard import discard_metadata
    from strandline.storage.disk import Disk

    question = "Has 'cluster replace-disk' been run for this broker at another one?"
    if is_asked(output, yes=yes):
        typer.confirm(question, abort=True)
    elif not yes:
        raise InvalidRequestError(f"nobody can be asked: {question} If so, say --yes")
    broker = discard_metadata(data_dir, disk=Disk())
    if output is OutputFormat.json:
        print_json({"event": "done", "broker": broker})
        return
    print_line(f"broker {broker} asks the others for the metadata when it starts; start it")


def _list(what: str, names: Iterable[object]) -> None:
    text = ", ".join(map(str, names))
    if text:
        print_line(f"these {what}: {text}")
