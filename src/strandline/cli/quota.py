"""``strandline quota``: limits of what a principal may use of each broker."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.access_changes import change_access
from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_list,
    reports_errors,
)
from strandline.cli.parsing import exact_size_text, parse_size

if TYPE_CHECKING:
    from strandline.client.client import Client

PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Name of the principal, as in rules and tokens.")
]

app = typer.Typer(no_args_is_help=True, help="Limit the rates of principals at each broker.")


@app.command(
    "set",
    epilog=examples(
        "strandline quota set shop --publish 10MiB --requests 100",
        "strandline quota set analytics --read 200MiB --connections 20",
    ),
)
@reports_errors
def set_quota(
    *,
    principal: PrincipalArgument,
    publish: Annotated[
        int,
        typer.Option(
            parser=parse_size, metavar="SIZE", help="Published bytes per second, e.g. 10MiB."
        ),
    ] = 0,
    read: Annotated[
        int,
        typer.Option(parser=parse_size, metavar="SIZE", help="Read bytes per second, e.g. 200MiB."),
    ] = 0,
    requests: Annotated[int, typer.Option(help="Requests per second.", min=0)] = 0,
    connections: Annotated[int, typer.Option(help="Concurrent connections.", min=0)] = 0,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Set the limits of a principal, replacing earlier ones; 0 means unlimited.

    The limits apply at once, at each broker separately. Requests above a rate are delayed, or
    rejected with a time to retry.
    """
    if not (publish or read or requests or connections):
        raise typer.BadParameter(
            f"no limit for {principal!r}; give one of --publish, --read, --requests and "
            "--connections, or run 'strandline quota remove'"
        )
    limits = {
        "publish_bytes_per_s": publish,
        "read_bytes_per_s": read,
        "requests_per_s": requests,
        "connections": connections,
    }

    def change(client: "Client") -> tuple[str, dict[str, Any]]:
        client.quotas.set(principal, **limits)
        return f"{principal} is limited from now on", {"principal": principal, **limits}

    change_access(server, change, output=output)


@app.command("list", epilog=examples("strandline quota list", "strandline quota list -o json"))
@reports_errors
def list_quotas(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List all quotas."""
    import strandline

    with strandline.connect(server) as client:
        found = client.quotas.list()
    print_list(
        found,
        ("principal", "#publish/s", "#read/s", "#requests/s", "#connections"),
        lambda each: (
            each.principal,
            _rate(each.publish_bytes_per_s),
            _rate(each.read_bytes_per_s),
            each.requests_per_s or "-",
            each.connections or "-",
        ),
        output=output,
    )


def _rate(limit: int) -> str:
    return exact_size_text(limit) if limit else "-"


@app.command(epilog=examples("strandline quota remove shop"))
@reports_errors
def remove(
    *,
    principal: PrincipalArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Remove a principal's quota."""

    def change(client: "Client") -> tuple[str, dict[str, str]]:
        client.quotas.remove(principal)
        return f"{principal} is no longer limited", {"removed": principal}

    change_access(server, change, output=output)
