"""What ``acl``, ``token`` and ``quota`` do with a change and print after it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strandline.cli.output import OutputFormat, note, print_done

if TYPE_CHECKING:
    from strandline.client.client import Client

UNCHECKED = (
    "note: this broker does not check access, so rules, tokens and quotas have no effect until "
    "auth.enabled is set; see docs/security.md"
)


def change_access(
    server: str, change: Callable[["Client"], tuple[str, dict[str, Any]]], *, output: OutputFormat
) -> None:
    """Change rules, tokens or quotas, and print what was done and whether access is checked.

    Args:
        server: the broker's address.
        change: makes the change; returns the line and the document to print.
        output: the format.
    """
    import strandline

    with strandline.connect(server) as client:
        # Asked first, so that no later error loses the text of a new token.
        is_checked = client.server_info().auth_enabled
        text, document = change(client)
    print_done(text, {**document, "access_checked": is_checked}, output=output)
    if not is_checked and output is OutputFormat.text:
        note(UNCHECKED)
