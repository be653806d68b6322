"""The commands of ``strandline cluster`` that change a running cluster.

Rules: a command may be sent to any broker. Once accepted, it is carried out even if the caller
    stops
waiting; running it again only shows the progress. A command that cannot be undone asks for
confirmation at a terminal.
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
    from strandline.api.cluster import ClusterStatus, CopiesInfo
    from strandline.client.connection import BrokerConnection

ORDER_TIMEOUT_S = 70.0
POLL_S = 0.5
SILENCE_S_MAX = 60.0
"""How long to keep polling a broker that does not answer: it may be restarting."""

BrokerArgument = Annotated[
    int, typer.Argument(metavar="BROKER", help="Number of the broker.", min=1)
]
WaitOption = Annotated[bool, typer.Option(help="Show progress until done.")]


def add_to(app: typer.Typer) -> None:
    """Make these commands part of ``strandline cluster``."""
    for name, command, lines in (
        ("add", add, ["strandline cluster add 4=10.0.0.4:9295"]),
        ("drain", drain, ["strandline cluster drain 4"]),
        ("undrain", undrain, ["strandline cluster undrain 4"]),
        ("remove", remove, ["strandline cluster remove 4 --yes"]),
        ("replace-disk", replace_disk, ["strandline cluster replace-disk 4 --yes"]),
        (
            "reassign",
            reassign,
            [
                "strandline cluster reassign orders --partition 0 --to 4,2,3",
                "strandline cluster reassign orders    # place it like a new stream",
            ],
        ),
        ("rebalance", rebalance, ["strandline cluster rebalance"]),
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
    broker: Annotated[str, typer.Argument(metavar="ID=HOST:PORT", help="Number and peer address.")],
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Admit a new broker to a running cluster.

    Start it afterwards with an empty data directory and --join. It has no replicas at first: see
    'strandline cluster rebalance'.
    """
    from strandline.api.cluster import ADMIT_BROKER, AdmitBrokerRequest

    number, _, address = broker.partition("=")
    if not (number.isdigit() and int(number) and re.fullmatch(r".+:\d+", address)):
        raise InvalidRequestError(f"{broker!r} is not ID=HOST:PORT; write e.g. 4=10.0.0.4:9295")
    order = AdmitBrokerRequest(broker=int(number), peer_address=address)
    with connected(server) as connection:
        connection.action(ADMIT_BROKER, order)
    if output is OutputFormat.json:
        print_json({"admitted": int(number), "peer_address": address})
    else:
        print_line(f"broker {number} may join: start it with --join, and with all brokers,")
        print_line("including itself, in --peers")


def drain(
    *,
    broker: BrokerArgument,
    wait: WaitOption = True,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Move all replicas and leaderships off a broker, a few at a time.

    Draining continues when the command is interrupted and when brokers restart; run the command
    again to see the progress.
    """
    from strandline.api.cluster import DRAIN_BROKER, DrainBroker

    with connected(server) as connection:
        connection.action(DRAIN_BROKER, DrainBroker(broker=broker))
        if not wait:
            _done(output, f"broker {broker} is being drained")
            return
        _watch(connection, lambda part: broker in part.replicas, output)
    _done(output, f"broker {broker} has no replicas left")


def undrain(
    *,
    broker: BrokerArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Stop draining a broker, which may then get replicas again."""
    from strandline.api.cluster import DRAIN_BROKER, DrainBroker

    with connected(server) as connection:
        connection.action(DRAIN_BROKER, DrainBroker(broker=broker, is_on=False))
    _done(output, f"broker {broker} is no longer drained")


def remove(
    *,
    broker: BrokerArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Remove a drained broker permanently; its number is never used again.

    If the broker is a voter of the metadata quorum, the other voters first agree to remove it.
    """
    from strandline.api.cluster import REMOVE_BROKER, WhichBroker

    _confirm(f"Remove broker {broker} permanently?", output, yes=yes)
    with connected(server) as connection:
        connection.action(REMOVE_BROKER, WhichBroker(broker=broker))
    _done(output, f"broker {broker} is removed; stop its process")


def replace_disk(
    *,
    broker: BrokerArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Let a stopped broker that has lost its disk rejoin with an empty one.

    Start the broker afterwards with an empty data directory and --join: it copies its replicas from
    the other brokers. The command is rejected if the broker has the only copy of acknowledged
    records.
    """
    from strandline.api.cluster import REPLACE_DISK, WhichBroker

    _confirm(f"Is the data of broker {broker} really lost?", output, yes=yes)
    with connected(server) as connection:
        connection.action(REPLACE_DISK, WhichBroker(broker=broker))
    advice = "start it with --join, and with all current brokers in --peers"
    _done(output, f"broker {broker} may rejoin with an empty disk: {advice}")


def reassign(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to move.")],
    partition: Annotated[
        int | None, typer.Option(help="Only this partition.", min=0, show_default="all")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ID,…",
            help="Brokers for its replicas, the preferred leader first.",
            show_default="by load and rack, with few moves",
        ),
    ] = None,
    wait: WaitOption = True,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Move a stream's partitions to other brokers.

    New replicas are added first; old ones are removed when the new ones are in sync. Several
    partitions get different preferred leaders. To cancel a move, move the partition back.
    """
    from strandline.api.cluster import REASSIGN, Reassign

    order = Reassign(stream=stream, partition=partition, to=_brokers(to))
    with connected(server) as connection:
        [begun] = connection.action(REASSIGN, order)
        if wait:
            _watch(connection, lambda part: part.stream == stream and part.is_moving, output)
    _done(output, _moved(begun.moves, wait=wait))


def rebalance(
    *,
    wait: WaitOption = True,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Move replicas to brokers that have fewer than their share, such as a new one.

    A few partitions move at a time; with --no-wait only the first few do.
    """
    from strandline.api.cluster import REBALANCE

    moves = 0
    with connected(server) as connection:
        while True:
            [begun] = connection.action(REBALANCE, None)
            moves += begun.moves
            if wait:
                _watch(connection, lambda part: part.is_moving, output)
            if not wait or not begun.moves:
                break
    _done(output, _moved(moves, wait=wait))


def elect(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    partition: Annotated[int, typer.Option(help="Number of the partition.", min=0)] = 0,
    leader: Annotated[int, typer.Option(metavar="BROKER", help="The new leader.", min=1)],
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Also a replica that may lack committed records.")
    ] = False,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Make another replica a partition's leader, and the preferred leader from now on.

    A replica that may lack acknowledged records is rejected. Use --unclean to elect it anyway, but
    only if every complete replica is lost: the missing records are then lost, too.
    """
    from strandline.api.cluster import ELECT_LEADER, ElectLeaderRequest

    if unclean:
        note(f"RECORDS MAY BE LOST: those of {stream}/{partition} that broker {leader} lacks")
        _confirm(f"Elect broker {leader} nevertheless?", output, yes=yes)
    order = ElectLeaderRequest(
        stream=stream, partition=partition, leader=leader, is_unclean=unclean
    )
    with connected(server) as connection:
        connection.action(ELECT_LEADER, order)
    _done(output, f"broker {leader} leads {stream}/{partition}")


@contextmanager
def connected(server: str, *, timeout_s: float = ORDER_TIMEOUT_S) -> "Iterator[BrokerConnection]":
    """Open a connection to the first of several brokers that answers.

    Args:
        server: ``host:port``, or several of them separated by commas.
        timeout_s: the limit for each command; the default fits the slowest one.

    Raises:
        StrandlineError: no broker answers.
    """
    from strandline.client.cluster_client import ClusterClient

    brokers = ClusterClient(server, timeout_s=timeout_s)
    try:
        if brokers.is_cluster:
            brokers.server_info()
        yield brokers.connection(brokers.home)
    finally:
        brokers.close()


def _brokers(text: str | None) -> tuple[int, ...]:
    """Parse a list of brokers such as ``1,2,3``; empty for None.

    Raises:
        InvalidRequestError: the text is not a list of numbers.
    """
    if text is None:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InvalidRequestError(f"--to {text!r} is not a list of brokers; write e.g. 1,2,3")
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
    connection: "BrokerConnection", is_left: "Callable[[CopiesInfo], bool]", output: OutputFormat
) -> None:
    """Show the progress until no partition is left to move.

    Raises:
        UnavailableError: no broker can take the remaining partitions, or no broker answers.
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
                f"no broker can take {len(left)} partitions, such as {first.stream}/"
                f"{first.partition}: add a broker; or, if brokers have reached the limit of open "
                "files, raise it with 'ulimit -n' (systemd: LimitNOFILE) and restart them. Then "
                "the partitions move without another command"
            )
        time.sleep(POLL_S)


def _status(connection: "BrokerConnection") -> "ClusterStatus":
    """Return the cluster's status; retry while the broker does not answer."""
    from strandline.api.cluster import CLUSTER_STATUS

    deadline = time.monotonic() + SILENCE_S_MAX
    while True:
        try:
            [found] = connection.action(CLUSTER_STATUS, None)
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
        else:
            return found
        time.sleep(POLL_S)


def _progress(
    found: "ClusterStatus", left: "list[CopiesInfo]", connection: "BrokerConnection"
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
