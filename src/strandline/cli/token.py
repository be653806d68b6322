"""``strandline token``: tokens by which clients authenticate."""

from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from strandline.client.client import Client

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")
NS_PER_S = 1e9


@app.command(
    epilog=examples(
        "strandline token create billing",
        "STRANDLINE_TOKEN=$(strandline token create ci --days 1) make deploy",
    )
)
@reports_errors
def create(
    *,
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="The principal that the token authenticates.")
    ],
    days: Annotated[
        float | None,
        typer.Option(help="Days until it expires.", show_default="never", min=0.001),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Create a token and print it; brokers keep only its hash, so it cannot be shown again."""

    def change(client: "Client") -> tuple[str, dict[str, str]]:
        text = client.access.create_token(principal, days=days)
        return text, {"principal": principal, "token": text}

    change_access(server, change, output=output)


@app.command("list", epilog=examples("strandline token list"))
@reports_errors
def list_tokens(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List all tokens with their principals, without the secret text."""
    import strandline

    with strandline.connect(server) as client:
        found = client.access.tokens()
    print_list(
        found,
        ("id", "principal", "created", "expires"),
        lambda token: (
            token.id,
            token.principal,
            _time(token.created_ns),
            _time(token.expires_ns) if token.expires_ns else "never",
        ),
        output=output,
    )


@app.command(epilog=examples("strandline token revoke 1f0a93c2"))
@reports_errors
def revoke(
    *,
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as listed.")],
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Revoke a token, at once and at every broker; requests in progress with it end."""

    def change(client: "Client") -> tuple[str, dict[str, str]]:
        client.access.revoke_token(token)
        return f"revoked {token}", {"revoked": token}

    change_access(server, change, output=output)


def _time(moment_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment_ns / NS_PER_S, UTC).isoformat(timespec="seconds")
