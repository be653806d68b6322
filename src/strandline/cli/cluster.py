"""``strandline cluster``: look at a cluster of brokers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_json,
    print_line,
    print_table,
    reports_errors,
)
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.client.connection import Connection
    from strandline.protocol.cluster import ClusterStatus, CopiesInfo

app = typer.Typer(no_args_is_help=True, help="Look at a cluster of brokers.")

Ends = Mapping[int, Mapping[tuple[str, int], int]]
"""Broker → partition → log end offset there."""


@app.callback()
def cluster() -> None:
    """Look at a cluster of brokers."""


@app.command(
    epilog=examples(
        "strandline cluster status",
        "strandline cluster status --stream orders",
        "strandline cluster status --output json",
    )
)
@reports_errors
def status(
    *,
    stream: Annotated[str | None, typer.Option(help="Only the partitions of this stream.")] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for each broker's answer.", min=0.1)
    ] = 5.0,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show brokers, the controller, and each partition's leader and copies.

    Any broker answers. How many records a copy is behind its leader is asked of the brokers
    themselves; one that does not answer is shown with a question mark.
    """
    from strandline.client.connection import Connection
    from strandline.protocol.cluster import CLUSTER_STATUS, ClusterStatus

    connection = Connection(server, timeout_s=timeout)
    try:
        [found] = connection.action(CLUSTER_STATUS, None, ClusterStatus)
        ends = _log_ends(found, connection)
    finally:
        connection.close()
    wanted = [part for part in found.partitions if stream in (None, part.stream)]
    if output is OutputFormat.json:
        print_json(_as_json(found, wanted, ends))
    else:
        _print_status(found, wanted, ends)


def _log_ends(found: "ClusterStatus", first: "Connection") -> Ends:
    """How far each partition's log reaches at each broker that answers."""
    from strandline.protocol import admin

    ends: dict[int, dict[tuple[str, int], int]] = {}
    for broker in found.brokers:
        if broker.state == "fenced":
            continue
        connection = first.sibling(broker.flight_address)
        try:
            streams = connection.action(admin.LIST_STREAMS, None, admin.StreamInfo)
        except StrandlineError:
            continue  # shown as a question mark
        finally:
            connection.close()
        ends[broker.id] = {
            (info.name, part.partition): part.log_end_offset
            for info in streams
            for part in info.partitions
        }
    return ends


def _lags(part: "CopiesInfo", ends: Ends) -> dict[int, int | None]:
    """How many records each copy is behind the leader's; None: not known."""
    name = part.stream, part.partition
    leader_end = ends.get(part.leader, {}).get(name) if part.leader is not None else None
    lags: dict[int, int | None] = {}
    for broker in part.replicas:
        end = ends.get(broker, {}).get(name)
        is_known = leader_end is not None and end is not None
        lags[broker] = max(0, (leader_end or 0) - (end or 0)) if is_known else None
    return lags


def _as_json(found: "ClusterStatus", parts: "list[CopiesInfo]", ends: Ends) -> dict[str, Any]:
    import msgspec

    status: dict[str, Any] = msgspec.to_builtins(found)
    status["partitions"] = [
        {
            **msgspec.to_builtins(part),
            "lag_records": {str(broker): lag for broker, lag in _lags(part, ends).items()},
        }
        for part in parts
    ]
    return status


def _print_status(found: "ClusterStatus", parts: "list[CopiesInfo]", ends: Ends) -> None:
    controller = found.controller if found.controller is not None else "none"
    print_line(f"cluster {found.cluster}, controller: {controller}\n")
    led = [part.leader for part in found.partitions]
    print_table(
        ("#broker", "state", "flight", "rack", "#leads"),
        [
            (broker.id, broker.state, broker.flight_address, broker.rack, led.count(broker.id))
            for broker in found.brokers
        ],
    )
    print_line("")
    if not parts:
        print_line("no partitions")
        return
    print_table(
        ("stream", "#partition", "leader", "#epoch", "replicas", "in sync", "records behind"),
        [
            (
                part.stream,
                part.partition,
                "none" if part.leader is None else str(part.leader),
                part.leader_epoch,
                _list(part.replicas),
                _list(part.isr),
                " ".join(
                    f"{broker}:{'?' if lag is None else lag}"
                    for broker, lag in _lags(part, ends).items()
                    if broker != part.leader
                ),
            )
            for part in parts
        ],
    )


def _list(brokers: tuple[int, ...]) -> str:
    return " ".join(map(str, brokers))
