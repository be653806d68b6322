"""Completion of names with the Tab key: the streams and groups of the broker.

Rules: a broker that does not answer quickly gives no names. A shell that waits, or that shows an
error inside the command line being typed, would be worse.
"""

from typing import Final

import typer

from strandline.cli.output import SERVER_DEFAULT
from strandline.errors import StrandlineError

TIMEOUT_S: Final = 1.0


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams whose names begin with the typed text."""
    return _names("streams", context, incomplete)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups whose names begin with the typed text."""
    return _names("groups", context, incomplete)


def _names(kind: str, context: typer.Context, incomplete: str) -> list[str]:
    import strandline

    server = context.params.get("server") or SERVER_DEFAULT
    try:
        with strandline.connect(server, timeout_s=TIMEOUT_S) as client:
            if kind == "streams":
                found = [info.name for info in client.list_streams()]
            else:
                found = [each.group for each in client.groups.list()]
    except StrandlineError:
        return []
    return [name for name in found if name.startswith(incomplete)]
