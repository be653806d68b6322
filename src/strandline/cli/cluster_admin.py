"""``strandline cluster``: what changes a cluster. Each command is an order to any broker.

Rules: an order stands once it is accepted: whoever stops watching, or watches at another broker,
stops nothing, and giving the order again only shows how far it is. What cannot be undone asks at a
terminal.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    YesOption,
    examples,
    is_asked,
    note,
    print_done,
    print_json,
    print_line,
    reports_errors,
)
from strandline.cli.replicas import lags, log_ends
from strandline.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from strandline.client.connection import Connection
    from strandline.protocol.cluster import ClusterStatus, CopiesInfo

ORDER_TIMEOUT_S = 70.0
POLL_S = 0.5
SILENCE_S_MAX = 60.0
"""For so long a broker may not answer while it is watched: it may be restarting."""

BrokerArgument = Annotated[int, typer.Argument(metavar="BROKER", help="Its number.", min=1)]
WaitOption = Annotated[bool, typer.Option(help="Show progress until it is done.")]


def add_to(app: typer.Typer) -> None:
    """Make these commands part of ``strandline cluster``."""
    for name, command, lines in (
        ("add", add, ["strandline cluster add 4=10.0.0.4:9295"]),
        ("drain", drain, ["strandline cluster drain 4", "strandline cluster drain 4 --off"]),
        ("remove", remove, ["strandline cluster remove 4 --yes"]),
        ("replace-disk", replace_disk, ["strandline cluster replace-disk 4 --yes"]),
        (
            "reassign",
            reassign,
            [
                "strandline cluster reassign orders --partition 0 --to 4,2,3",
                "strandline cluster reassign orders    # as the rules for new streams have it",
            ],
        ),
        ("spread", spread, ["strandline cluster spread"]),
        (
            "elect",
            elect,
            [
                "strandline cluster elect orders --leader 2",
                "strandline cluster elect orders --partition 3 --leader 2 --unclean",
            ],
        ),
    ):
        app.command(name, epilog=examples(*lines))(reports_errors(command))


def add(
    *,
    broker: Annotated[
        str, typer.Argument(metavar="ID=HOST:PORT", help="Its number and peer address.")
    ],
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let a new broker into a running cluster.

    Start it afterwards, with an empty data directory and --join. It keeps nothing at first: see
    'strandline cluster spread'.
    """
    from strandline.protocol.cluster import ADMIT_BROKER, AdmitBroker

    number, _, address = broker.partition("=")
    if not (number.isdigit() and int(number) and re.fullmatch(r".+:\d+", address)):
        raise InvalidRequestError(f"{broker!r} is not ID=HOST:PORT, such as 4=10.0.0.4:9295")
    order = AdmitBroker(broker=int(number), peer_address=address)
    with connected(server) as connection:
        connection.action(ADMIT_BROKER, order, dict)
    if output is OutputFormat.json:
        print_json({"admitted": int(number), "peer_address": address})
    else:
        print_line(f"broker {number} may join: start it with --join, and with every broker")
        print_line("in --peers, itself too")


def drain(
    *,
    broker: BrokerArgument,
    off: Annotated[bool, typer.Option("--off", help="Stop draining it.")] = False,
    wait: WaitOption = True,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Move all partitions and leaderships off a broker, a few at a time.

    It goes on whoever watches, also over restarts; give the command again to see how far it is.
    """
    from strandline.protocol.cluster import DRAIN_BROKER, DrainBroker

    with connected(server) as connection:
        connection.action(DRAIN_BROKER, DrainBroker(broker=broker, is_on=not off), dict)
        if off or not wait:
            _done(output, f"broker {broker} is {'no longer' if off else 'being'} drained")
            return
        _watch(connection, lambda part: broker in part.replicas, output)
    _done(output, f"broker {broker} keeps nothing any more")


def remove(
    *,
    broker: BrokerArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let go of a drained broker for ever: its number is not used again.

    If it takes part in decisions, the others first agree to decide without it.
    """
    from strandline.protocol.cluster import REMOVE_BROKER, WhichBroker

    _confirm(f"Remove broker {broker} for ever?", output, yes=yes)
    with connected(server) as connection:
        connection.action(REMOVE_BROKER, WhichBroker(broker=broker), dict)
    _done(output, f"broker {broker} is removed; stop it")


def replace_disk(
    *,
    broker: BrokerArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Give up what a stopped broker had on a lost disk, so that it may come back with another.

    Start it afterwards, with an empty data directory and --join: it copies everything anew. Refused
    if it alone has records that were acknowledged.
    """
    from strandline.protocol.cluster import REPLACE_DISK, WhichBroker

    _confirm(f"Is all that broker {broker} had really lost?", output, yes=yes)
    with connected(server) as connection:
        connection.action(REPLACE_DISK, WhichBroker(broker=broker), dict)
    advice = "start it with --join, and with every broker of today in --peers"
    _done(output, f"broker {broker} may come with another disk: {advice}")


def reassign(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to move.")],
    partition: Annotated[
        int | None, typer.Option(help="Which partition.", min=0, show_default="all")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ID,…",
            help="Brokers to keep it, the preferred leader first.",
            show_default="by load and rack, moving little",
        ),
    ] = None,
    wait: WaitOption = True,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Move a stream's partitions to other brokers.

    New copies are added, and when they are in sync the old ones go. Of several partitions each
    prefers another leader. Moving back calls a move off.
    """
    from strandline.protocol.cluster import REASSIGN, Begun, Reassign

    order = Reassign(stream=stream, partition=partition, to=_brokers(to))
    with connected(server) as connection:
        [begun] = connection.action(REASSIGN, order, Begun)
        if wait:
            _watch(connection, lambda part: part.stream == stream and part.is_moving, output)
    _done(output, _moved(begun.moves, wait=wait))


def spread(
    *,
    wait: WaitOption = True,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Fill up brokers that keep less than their share, such as one that has just joined.

    A few partitions move at once; without waiting, only the first of them do.
    """
    from strandline.protocol.cluster import SPREAD, Begun

    moves = 0
    with connected(server) as connection:
        while True:
            [begun] = connection.action(SPREAD, None, Begun)
            moves += begun.moves
            if wait:
                _watch(connection, lambda part: part.is_moving, output)
            if not wait or not begun.moves:
                break
    _done(output, _moved(moves, wait=wait))


def elect(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    partition: Annotated[int, typer.Option(help="Which partition.", min=0)] = 0,
    leader: Annotated[int, typer.Option(metavar="BROKER", help="Who is to lead it.", min=1)],
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Even if it lacks committed records: they are lost.")
    ] = False,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let another copy lead a partition, and be preferred from now on.

    A copy that may lack acknowledged records is refused, unless --unclean: the last resort when
    every copy that surely has them is lost.
    """
    from strandline.protocol.cluster import ELECT_LEADER, ElectLeader

    if unclean:
        note(f"RECORDS MAY BE LOST: whatever broker {leader} lacks of {stream}/{partition}")
        _confirm(f"Let broker {leader} lead all the same?", output, yes=yes)
    order = ElectLeader(stream=stream, partition=partition, leader=leader, is_unclean=unclean)
    with connected(server) as connection:
        connection.action(ELECT_LEADER, order, dict)
    _done(output, f"broker {leader} leads {stream}/{partition}")


@contextmanager
def connected(server: str) -> "Iterator[Connection]":
    """A connection that waits as long as an order may take."""
    from strandline.client.connection import Connection

    connection = Connection(server, timeout_s=ORDER_TIMEOUT_S)
    try:
        yield connection
    finally:
        connection.close()


def _brokers(text: str | None) -> tuple[int, ...]:
    """The numbers in ``1,2,3``.

    Raises:
        InvalidRequestError: it is something else.
    """
    if text is None:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InvalidRequestError(f"--to {text!r} is not a list of brokers, such as 1,2,3")
    return tuple(int(number) for number in text.split(","))


def _confirm(question: str, output: OutputFormat, *, yes: bool) -> None:
    if is_asked(output, yes=yes):
        typer.confirm(question, abort=True)


def _moved(moves: int, *, wait: bool) -> str:
    if moves == 1:
        return f"1 partition {'was' if wait else 'is being'} moved"
    return f"{moves} partitions {'were' if wait else 'are being'} moved"


def _done(output: OutputFormat, text: str) -> None:
    print_done(text, {"event": "done", "message": text}, output=output)


def _watch(
    connection: "Connection", is_left: "Callable[[CopiesInfo], bool]", output: OutputFormat
) -> None:
    """Show progress until no partition is left.

    Raises:
        UnavailableError: those that are left have no other place, or no broker answers any more.
    """
    shown: dict[str, Any] = {}
    while True:
        found = _status(connection)
        left = [part for part in found.partitions if is_left(part)]
        if not left:
            if shown:
                _show(dict.fromkeys(shown, 0), output)
            return
        progress = _progress(found, left, connection)
        if progress != shown:
            shown = progress
            _show(progress, output)
        stranded = [part for part in left if part.is_stranded]
        if len(stranded) == len(left):
            first = stranded[0]
            raise UnavailableError(
                f"{len(left)} partitions have no other place, such as {first.stream}/"
                f"{first.partition}: add a broker, and they will move by themselves"
            )
        time.sleep(POLL_S)


def _status(connection: "Connection") -> "ClusterStatus":
    """The status; a broker that is away for a moment is waited for."""
    from strandline.protocol.cluster import CLUSTER_STATUS, ClusterStatus

    deadline = time.monotonic() + SILENCE_S_MAX
    while True:
        try:
            [found] = connection.action(CLUSTER_STATUS, None, ClusterStatus)
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
        else:
            return found
        time.sleep(POLL_S)


def _progress(
    found: "ClusterStatus", left: "list[CopiesInfo]", connection: "Connection"
) -> dict[str, Any]:
    moving = [part for part in left if part.is_moving]
    ends = log_ends(found, connection) if moving else {}
    to_copy = 0
    for part in moving:
        known = lags(part, ends)
        to_copy += sum(known[b] or 0 for b in part.adding if b not in part.isr)
    return {"partitions_left": len(left), "moving": len(moving), "records_to_copy": to_copy}


def _show(progress: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.json:
        print_json({"event": "progress", **progress})
        return
    print_line(
        f"{progress['partitions_left']} partitions left, {progress['moving']} of them moving, "
        f"{progress['records_to_copy']:,} records to copy"
    )
