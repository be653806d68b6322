"""The command line's root, and where its commands are.

Only the command that was asked for is imported: all of them take 80 ms, and the memory of a broker
that needs none but ``serve``.
"""

import importlib
import json
import re
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup

from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    print_done,
    print_error,
    reports_errors,
)
from strandline.errors import InvalidRequestError

MODULES: Final = {
    "serve": "serve",
    "dev": "dev",
    "doctor": "doctor",
    "liftbridge": "liftbridge",
    "cluster": "cluster",
    "stream": "stream",
    "group": "group",
    "encryption": "encryption",
    "acl": "acl",
    "token": "token",
    "quota": "quota",
    "publish": "publish",
    "read": "read",
    "top": "top",
    "backup": "backup",
    "restore": "backup",
    "inspect": "inspect",
    "bench": "bench",
    "pipeline": "pipeline",
    "demo": "demo",
    "schema": "root",
    "version": "root",
}
"""The module of each command, in the order of the help.

A module has either the command's function, by its name, and its epilog, or an ``app`` of
subcommands.
"""
EPILOG = examples(
    "strandline serve                                           # in one terminal",
    "strandline stream create orders --subject 'orders.>'       # in another",
    "strandline publish orders 'one espresso' --subject orders.paris",
    "strandline read orders --follow",
)
SCHEMA_EPILOG = examples("strandline schema stream list", "strandline schema read -o json")
VERSION_EPILOG = examples("strandline version")
ASKS_FOR_JSON = re.compile(r"(^| )(--output[= ]|-o[= ]?)json( |$)")
"""Matches command lines that ask for JSON, even if they cannot be parsed."""
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""Click's base class of usage errors, from the click that Typer uses."""


class Commands(TyperGroup):
    """All commands; with ``--output json`` usage errors are printed as JSON, too."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print a usage error in the requested format."""
        arguments = " ".join(ctx.args)
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if not ASKS_FOR_JSON.search(arguments):
                raise
            path = error.ctx.command_path if error.ctx is not None else "strandline"
            text = error.format_message()
            text += "" if text.endswith((".", "?")) else "."
            told = InvalidRequestError(f"{text} Try '{path} -h' for help.")
            print_error(told, OutputFormat.json)
            raise typer.Exit(error.exit_code) from error


@reports_errors
def version(*, output: OutputOption = OutputFormat.text) -> None:
    """Print the version, and whether the compiled functions are used."""
    from strandline.speedups import IS_COMPILED
    from strandline.version import __version__

    kind = "compiled" if IS_COMPILED else "plain Python"
    body = {"version": __version__, "compiled": IS_COMPILED}
    print_done(f"strandline {__version__} ({kind})", body, output=output)


@reports_errors
def schema(
    *,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command, such as stream list.")
    ],
    output: OutputOption = OutputFormat.text,
) -> None:
    """Print the JSON Schema of what a command prints with --output json.

    Each line of the command's standard output conforms to it.
    """
    from strandline.cli.documents import DOCUMENTS, schema_of

    name = " ".join(command)
    if name not in DOCUMENTS:
        raise InvalidRequestError(f"{name!r} is no command; see 'strandline --help'")
    found = schema_of(name)
    print_done(json.dumps(found, indent=2), found, output=output)


def _version_asked(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


def options(
    *,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version_asked, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Define the options before a command; the help text is that of the application."""


def application(*names: str) -> typer.Typer:
    """Return the application with the commands of these names; without names, with all."""
    app = typer.Typer(
        cls=Commands,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=EPILOG,
        help="Strandline: a durable log for NATS subjects, read back as Arrow.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(options)
    for name in names or MODULES:
        module = importlib.import_module(f"strandline.cli.{MODULES[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            epilogs = vars(module)
            epilog = epilogs.get(f"{name.upper()}_EPILOG") or epilogs["EPILOG"]
            app.command(epilog=epilog)(getattr(module, name))
    return app
