"""``strandline encryption``: the keys of encrypted streams.

Rule: only ``new-key``, which generates a key, prints one.
"""

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.cluster_admin import connected
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

if TYPE_CHECKING:
    from strandline.api.encryption import KeyInfo

app = typer.Typer(no_args_is_help=True, help="Create, list and rotate keys of encrypted streams.")


@app.command("new-key", epilog=examples("strandline encryption new-key > keys && chmod 400 keys"))
@reports_errors
def new_key(*, output: OutputOption = OutputFormat.text) -> None:
    """Print a new master key, for encryption.key_file; contacts no broker."""
    from strandline.encryption.master_keys import new_key_text

    key = new_key_text()
    print_done(key, {"key": key}, output=output)


@app.command("list", epilog=examples("strandline encryption list"))
@reports_errors
def list_keys(
    *, server: ServerOption = SERVER_DEFAULT, output: OutputOption = OutputFormat.text
) -> None:
    """List the data keys of streams and the master keys that wrap them."""
    from strandline.api.encryption import LIST_KEYS

    with connected(server) as connection:
        _show(connection.action(LIST_KEYS, None), output)


@app.command(
    epilog=examples(
        "strandline encryption rotate                       # after a change of the master key",
        "strandline encryption rotate payments --data-key   # a new key for new records",
    )
)
@reports_errors
def rotate(
    *,
    stream: Annotated[
        str | None,
        typer.Argument(metavar="STREAM", help="The stream.", show_default="all encrypted"),
    ] = None,
    data_key: Annotated[
        bool, typer.Option("--data-key", help="Also use a new data key for new records.")
    ] = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Wrap data keys with the current master key, which is the first one of the broker's source.

    No record is rewritten. All brokers need the new master key before the rotation, and the old one
    until the rotation is complete.
    """
    from strandline.api.encryption import LIST_KEYS, ROTATE_KEYS, KeyInfo, RotateKeys

    with connected(server) as connection:
        names = [stream] if stream else _encrypted(connection.action(LIST_KEYS, None))
        found: list[KeyInfo] = []
        for name in names:
            order = RotateKeys(stream=name, has_new_key=data_key)
            found += connection.action(ROTATE_KEYS, order)
    _show(found, output)


def _encrypted(keys: "list[KeyInfo]") -> list[str]:
    """Return the streams that have data keys."""
    return sorted({key.stream for key in keys})


def _show(keys: "list[KeyInfo]", output: OutputFormat) -> None:
    row = attrgetter("stream", "data_key", "master_key")
    print_list(keys, ("stream", "#data key", "master key"), row, output=output)
