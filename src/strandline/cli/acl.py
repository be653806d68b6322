"""``strandline acl``: access rules."""

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

app = typer.Typer(no_args_is_help=True, help="List and change access rules.")

RULE_COLUMNS = ("principal", "operation", "kind", "pattern")
PrincipalArgument = Annotated[
    str,
    typer.Argument(metavar="PRINCIPAL", help="Name in a certificate, or that of a token."),
]
OperationArgument = Annotated[
    str, typer.Argument(metavar="OPERATION", help="read, publish, group or admin.")
]
KindArgument = Annotated[
    str, typer.Argument(metavar="KIND", help="stream, subject, group or cluster.")
]
PatternArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="A name, or a prefix followed by *; for subjects a NATS pattern.",
    ),
]


@app.command("list", epilog=examples("strandline acl list", "strandline acl list -o json"))
@reports_errors
def list_rules(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List all rules, by principal."""
    import strandline

    with strandline.connect(server) as client:
        found = client.access.rules()
    # Name the fields: msgspec would encode a rule as a list.
    documents = [{name: getattr(rule, name) for name in RULE_COLUMNS} for rule in found]
    print_list(documents, RULE_COLUMNS, lambda each: tuple(each.values()), output=output)


@app.command(
    epilog=examples(
        "strandline acl grant billing read stream 'orders*'",
        "strandline acl grant shop publish subject 'orders.>'",
        "strandline acl grant alice admin cluster '*'",
    )
)
@reports_errors
def grant(
    *,
    principal: PrincipalArgument,
    operation: OperationArgument,
    kind: KindArgument,
    pattern: PatternArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Allow a principal an operation on matching resources, at once and at all brokers."""
    _change("granted", (principal, operation, kind, pattern), server=server, output=output)


@app.command(epilog=examples("strandline acl revoke billing read stream 'orders*'"))
@reports_errors
def revoke(
    *,
    principal: PrincipalArgument,
    operation: OperationArgument,
    kind: KindArgument,
    pattern: PatternArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Remove a rule, written as acl list shows it; requests that needed it are ended."""
    _change("revoked", (principal, operation, kind, pattern), server=server, output=output)


def _change(
    done: str, rule: tuple[str, str, str, str], *, server: str, output: OutputFormat
) -> None:
    from strandline.security.acl import Rule, check_rule

    made = Rule(*rule)  # type: ignore[arg-type]  # checked by check_rule
    check_rule(made)

    def change(client: "Client") -> tuple[str, dict[str, list[str]]]:
        call = client.access.grant if done == "granted" else client.access.revoke
        call(made.principal, made.operation, made.kind, made.pattern)
        return f"{done}: {made}", {done: list(rule)}

    change_access(server, change, output=output)
