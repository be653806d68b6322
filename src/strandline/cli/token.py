"""``strandline token``: what clients show to say who they are."""

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

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens.")
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
        str, typer.Argument(metavar="PRINCIPAL", help="For whom the token stands.")
    ],
    days: Annotated[
        float | None,
        typer.Option(help="After how many it is worth nothing.", show_default="never", min=0.001),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Make a token and print it, this once: the brokers keep its hash only."""
    import strandline

    with strandline.connect(server) as client:
        text = client.access.create_token(principal, days=days)
    print_done(text, {"principal": principal, "token": text}, output=output)


@app.command("list", epilog=examples("strandline token list"))
@reports_errors
def list_tokens(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List the tokens there are: for whom each stands, not what it says."""
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
    """Let a token be worth nothing, at once and at every broker; what is under way by it ends."""
    import strandline

    with strandline.connect(server) as client:
        client.access.revoke_token(token)
    print_done(f"revoked {token}", {"revoked": token}, output=output)


def _time(moment_ns: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment_ns / NS_PER_S, UTC).isoformat(timespec="seconds")
