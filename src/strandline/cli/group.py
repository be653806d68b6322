"""``strandline group``: list, describe, reset and delete consumer groups."""

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from strandline.cli.completion import group_names, stream_names
from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    YesOption,
    examples,
    is_asked,
    print_done,
    print_json,
    print_line,
    print_list,
    print_table,
    reports_errors,
)
from strandline.cli.parsing import naming, parse_offset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strandline.api.groups import GroupInfo
    from strandline.cli.documents import GroupProgress
    from strandline.client.client import Client
    from strandline.types import PartitionName

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

GroupArgument = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The group's name.", autocompletion=group_names),
]


@app.command("list", epilog=examples("strandline group list", "strandline group list -o json"))
@reports_errors
def list_groups(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List all consumer groups."""
    import strandline

    with strandline.connect(server) as client:
        found = client.groups.list()
    row = attrgetter("group", "members")
    print_list(found, ("group", "#members"), row, output=output)


@app.command(epilog=examples("strandline group info billing"))
@reports_errors
def info(
    *,
    group: GroupArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show a group's members, assignment, committed offsets and lag."""
    import strandline

    with strandline.connect(server) as client:
        found = client.groups.info(group)
        rows = _rows(client, found)
    if output is OutputFormat.json:
        print_json({**msgspec.structs.asdict(found), "progress": rows})
        return
    print_line(f"group {group}, epoch {found.epoch}, {len(found.members)} members\n")
    for member in found.members:
        name = f"{member.member} ({member.instance})" if member.instance else member.member
        print_line(f"member {name}: {', '.join(member.streams)}")
    if found.members:
        print_line("")
    shown = [_cells(row) for row in rows]
    print_table(("stream", "#partition", "#offset", "#lag", "member"), shown)
    if found.metadata:
        print_line(f"\nits last commit says: {found.metadata!r}")
    for stream, offsets in found.undecided.items():
        for number, offset in offsets.items():
            print_line(f"\nan open transaction will commit offset {offset} of {stream}/{number}")
    if any(row["is_beyond"] for row in rows):
        print_line(
            "\n* beyond the end of the log: the stream was created again, or the log was cut. The "
            "next\nmember begins at its start option, by default the earliest record; so the lag "
            "is counted."
        )


def _cells(row: "GroupProgress") -> tuple[object, ...]:
    """Return the table cells for a group's progress in one partition."""
    offset = "-" if row["offset"] is None else f"{row['offset']}{'*' * row['is_beyond']}"
    lag = "-" if row["lag"] is None else row["lag"]
    return row["stream"], row["partition"], offset, lag, row["member"] or "-"


def _rows(client: "Client", found: "GroupInfo") -> "list[GroupProgress]":
    """Return the progress for each partition with a committed offset or a member."""
    from strandline.api.groups import next_offset

    members = {
        (stream, number): member.instance or member.member
        for member in found.members
        for held in (member.assigned, member.revoking)
        for stream, numbers in held.items()
        for number in numbers
    }
    committed = {(s, number) for s, offsets in found.positions.items() for number in offsets}
    known = {stream.name for stream in client.list_streams()}
    extents = {
        stream: (client.offsets(stream, "earliest"), client.offsets(stream))
        for stream in {stream for stream, _ in committed | members.keys()} & known
    }
    rows: list[GroupProgress] = []
    for stream, number in sorted(committed | members.keys()):
        offset = found.positions.get(stream, {}).get(number)
        firsts, ends = extents.get(stream, ({}, {}))
        lag, is_beyond, member = None, False, members.get((stream, number), "")
        if offset is not None and number in firsts and number in ends:
            lag = ends[number] - next_offset(offset, firsts[number], ends[number])
            is_beyond = offset > ends[number]
        rows.append(
            {
                "stream": stream,
                "partition": number,
                "offset": offset,
                "lag": lag,
                "member": member,
                "is_beyond": is_beyond,
            }
        )
    return rows


@app.command(
    epilog=examples(
        "strandline group reset billing orders --to earliest",
        "strandline group reset billing orders --to -2h",
        "strandline group reset billing orders --partition 3 --to 1200",
    )
)
@reports_errors
def reset(
    *,
    group: GroupArgument,
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="The stream.", autocompletion=stream_names)
    ],
    to: Annotated[str, typer.Option(help="earliest, latest, an offset, a time, or -15m for ago.")],
    partition: Annotated[
        int | None, typer.Option(help="Only this partition.", show_default="all", min=0)
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Set a group's committed offsets in a stream; its members must be stopped.

    A group that does not exist is created, so that its first members begin at these offsets.
    """
    import strandline

    with naming("--to"):
        place = parse_offset(to)
    with strandline.connect(server) as client:
        found = client.groups.reset(group, stream, place, partition=partition)
    if output is OutputFormat.json:
        print_json({"group": group, "stream": stream, "offsets": _numbers(found)})
        return
    print_table(("#partition", "#offset"), sorted(_numbers(found).items()))


def _numbers(found: "Mapping[PartitionName, int]") -> dict[int, int]:
    return {number: at for (_, number), at in sorted(found.items())}


@app.command(epilog=examples("strandline group delete billing --yes"))
@reports_errors
def delete(
    *,
    group: GroupArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Delete a group without members, and its committed offsets; this cannot be undone.

    A durable NATS consumer is stored in the group js/STREAM/CONSUMER, and is deleted with it. Asks
    for confirmation at a terminal, unless --yes.
    """
    import strandline

    with strandline.connect(server) as client:
        if is_asked(output, yes=yes):
            typer.confirm(f"Delete group {group} and its committed offsets?", abort=True)
        client.groups.delete(group)
    print_done(f"deleted {group}", {"deleted": group}, output=output)
