"""``strandline quota``: how much of each broker a principal may use."""

from typing import Annotated

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_done,
    print_list,
    reports_errors,
)
from strandline.cli.parsing import parse_size

PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Whom it limits: a name in rules and tokens.")
]

app = typer.Typer(no_args_is_help=True, help="Limit what principals use of each broker.")


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
        str, typer.Option(help="Bytes a second it may publish, such as 10MiB.", metavar="SIZE")
    ] = "0",
    read: Annotated[
        str, typer.Option(help="Bytes a second it may read, such as 200MiB.", metavar="SIZE")
    ] = "0",
    requests: Annotated[int, typer.Option(help="Requests a second it may make.", min=0)] = 0,
    connections: Annotated[int, typer.Option(help="Connections it may have at a time.", min=0)] = 0,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Limit a principal, in place of the limits it had; what is not given, or 0, has no limit.

    Limits hold at each broker, from now on. What is over a rate waits, or is told when to retry.
    """
    import strandline

    limits = {
        "publish_bytes_per_s": parse_size(publish),
        "read_bytes_per_s": parse_size(read),
        "requests_per_s": requests,
        "connections": connections,
    }
    with strandline.connect(server) as client:
        client.quotas.set(principal, **limits)
    document = {"principal": principal, **limits}
    print_done(f"{principal} is limited from now on", document, output=output)


@app.command("list", epilog=examples("strandline quota list", "strandline quota list -o json"))
@reports_errors
def list_quotas(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List the quotas there are."""
    import strandline

    with strandline.connect(server) as client:
        found = client.quotas.list()
    print_list(
        found,
        ("principal", "#publish bytes/s", "#read bytes/s", "#requests/s", "#connections"),
        lambda each: (
            each.principal,
            each.publish_bytes_per_s or "-",
            each.read_bytes_per_s or "-",
            each.requests_per_s or "-",
            each.connections or "-",
        ),
        output=output,
    )


@app.command(epilog=examples("strandline quota remove shop"))
@reports_errors
def remove(
    *,
    principal: PrincipalArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Limit a principal no more."""
    import strandline

    with strandline.connect(server) as client:
        client.quotas.remove(principal)
    print_done(f"{principal} is no longer limited", {"removed": principal}, output=output)
