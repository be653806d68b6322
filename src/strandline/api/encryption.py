"""The commands for encrypted streams. No key is ever sent, not even a wrapped one."""

from types import NoneType
from typing import Final

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import cluster
from strandline.api.wire import Name, WireAnswer, WireMessage


class RotateKeys(WireMessage, frozen=True, kw_only=True):
    """A request to wrap data keys again, and optionally to add a data key for new records."""

    stream: Name
    has_new_key: bool = False


class KeyInfo(WireAnswer, frozen=True, kw_only=True):
    """A data key of a stream."""

    stream: str
    data_key: int
    """The key's number; new batches are encrypted with the key of the largest number."""
    master_key: str
    """The id of the master key that wraps the data key."""


LIST_KEYS: Final = AdminCommand(
    name="list_keys",
    help="List the data keys of encrypted streams.",
    request=NoneType,
    result=KeyInfo,
    needs=lambda _: [cluster("read")],
)
ROTATE_KEYS: Final = AdminCommand(
    name="rotate_keys",
    help="Wrap a stream's data keys with the master key, and list them.",
    request=RotateKeys,
    result=KeyInfo,
    needs=lambda _: [cluster("admin")],
)
