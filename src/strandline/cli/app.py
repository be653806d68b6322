"""The command line's root: registers all commands."""

import json
import re
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from strandline.cli import (
    acl,
    backup,
    bench,
    cluster,
    demo,
    dev,
    doctor,
    encryption,
    group,
    inspect,
    liftbridge,
    pipeline,
    publish,
    quota,
    read,
    serve,
    stream,
    token,
    top,
)
from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    print_done,
    print_error,
    reports_errors,
)
from strandline.errors import InvalidRequestError

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


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "strandline serve                                           # in one terminal",
        "strandline stream create orders --subject 'orders.>'       # in another",
        "strandline publish orders 'one espresso' --subject orders.paris",
        "strandline read orders --follow",
    ),
    help="Strandline: a durable log for NATS subjects, read back as Arrow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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


@app.callback()
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


app.command(epilog=serve.EPILOG)(serve.serve)
app.command(epilog=dev.EPILOG)(dev.dev)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.command(epilog=liftbridge.EPILOG)(liftbridge.liftbridge)
app.add_typer(cluster.app, name="cluster")
app.add_typer(stream.app, name="stream")
app.add_typer(group.app, name="group")
app.add_typer(encryption.app, name="encryption")
app.add_typer(acl.app, name="acl")
app.add_typer(token.app, name="token")
app.add_typer(quota.app, name="quota")
app.command(epilog=publish.EPILOG)(publish.publish)
app.command(epilog=read.EPILOG)(read.read)
app.command(epilog=top.EPILOG)(top.top)
app.command(epilog=backup.BACKUP_EPILOG)(backup.backup)
app.command(epilog=backup.RESTORE_EPILOG)(backup.restore)
app.command(epilog=inspect.EPILOG)(inspect.inspect)
app.add_typer(bench.app, name="bench")
app.add_typer(pipeline.app, name="pipeline")
app.command(epilog=demo.EPILOG)(demo.demo)
app.command(epilog=examples("strandline schema stream list", "strandline schema read -o json"))(
    schema
)
app.command(epilog=examples("strandline version"))(version)
