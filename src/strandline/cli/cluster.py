"""``strandline cluster status``; the other commands are in ``cluster_init``, ``cluster_admin``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import cluster_admin, cluster_init, force_recover
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
from strandline.cli.replicas import Ends, lags, log_ends
from strandline.errors import UnavailableError, UnknownStreamError

if TYPE_CHECKING:
    from strandline.api.cluster import ClusterStatus, CopiesInfo

app = typer.Typer(no_args_is_help=True, help="Set up, inspect and operate a cluster of brokers.")

cluster_init.add_to(app)
cluster_admin.add_to(app)
force_recover.add_to(app)


@app.callback()
def cluster() -> None:
    """Set up, inspect and operate a cluster of brokers."""


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
    stream: Annotated[str | None, typer.Option(help="Only this stream's partitions.")] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for each broker's answer.", min=0.1)
    ] = 5.0,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show brokers, the controller, and each partition's leader and replicas.

    Any broker answers. The lag of replicas is queried from all brokers; that of a broker which does
    not answer is shown as a question mark. A broker that knows no controller shows the last known
    status and says so; the exit code is then 1.
    """
    from strandline.api.cluster import CLUSTER_STATUS

    with cluster_admin.connected(server, timeout_s=timeout) as connection:
        [found] = connection.action(CLUSTER_STATUS, None)
        ends = log_ends(found, connection)
    wanted = of_stream(found.partitions, stream, is_current=not found.age_ms)
    if output is OutputFormat.json:
        print_json(_as_json(found, wanted, ends))
    else:
        _print_status(found, wanted, ends)
    if found.age_ms:
        since = f"has had no controller for {found.age_ms / 1e3:.0f} s"
        if found.controller is not None:
            since = "has not received the metadata since its start"
        raise UnavailableError(
            f"broker {found.broker} {since}, and the status above is as old. Check that most "
            "brokers are up, or ask another broker with --server"
        )


def of_stream(
    parts: "Sequence[CopiesInfo]", stream: str | None, *, is_current: bool = True
) -> "list[CopiesInfo]":
    """Return the partitions of one stream, or of all.

    Raises:
        UnknownStreamError: the stream does not exist; without this error it would look like a
            stream without replicas. Not raised for an old status, which may lack new streams.
    """
    wanted = [part for part in parts if stream in (None, part.stream)]
    if stream is not None and not wanted and is_current:
        names = ", ".join(sorted({part.stream for part in parts})) or "none"
        raise UnknownStreamError(f"no stream {stream!r}; there are: {names}")
    return wanted


def _as_json(found: "ClusterStatus", parts: "list[CopiesInfo]", ends: Ends) -> dict[str, Any]:
    import msgspec

    status: dict[str, Any] = msgspec.to_builtins(found)
    status["partitions"] = [
        {
            **msgspec.to_builtins(part),
            "lag_records": {str(broker): lag for broker, lag in lags(part, ends).items()},
        }
        for part in parts
    ]
    return status


def _print_status(found: "ClusterStatus", parts: "list[CopiesInfo]", ends: Ends) -> None:
    controller = found.controller if found.controller is not None else "none"
    print_line(f"cluster {found.cluster}, controller: {controller}\n")
    mark = "?" if found.age_ms else ""
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
                "none" if part.leader is None else f"{part.leader}{mark}",
                part.leader_epoch,
                _replicas(part),
                " ".join(f"{broker}{mark}" for broker in part.isr),
                " ".join(
                    f"{broker}:{'?' if lag is None else lag}"
                    for broker, lag in lags(part, ends).items()
                    if broker != part.leader
                ),
            )
            for part in parts
        ],
    )


def _replicas(part: "CopiesInfo") -> str:
    """Format a partition's replicas; ``+`` marks those being added, ``-`` those being removed."""
    coming, going = set(part.adding), set(part.removing)
    marks = ["+" if b in coming else "-" if b in going else "" for b in part.replicas]
    return " ".join(f"{mark}{broker}" for mark, broker in zip(marks, part.replicas, strict=True))
