"""The part of the admin API about encrypted streams.

| action | body | results |
|---|---|---|
| list_keys | empty | KeyInfo, one per data key |
| rotate_keys | RotateKeys | KeyInfo, one per data key of the stream |

Rules: as ``admin``. No key crosses the wire, not even wrapped.
"""

from strandline.api.wire import Name, WireAnswer, WireMessage

LIST_KEYS = "list_keys"
ROTATE_KEYS = "rotate_keys"

ACTIONS: dict[str, str] = {
    LIST_KEYS: "The data keys of encrypted streams; no body.",
    ROTATE_KEYS: "Wrap a stream's data keys by the master key; body: {stream, has_new_key}.",
}
"""Every action, with its description in ListActions."""


class RotateKeys(WireMessage, frozen=True, kw_only=True):
    """Wrap data keys anew, perhaps with one more for what is published from now on."""

    stream: Name
    has_new_key: bool = False


class KeyInfo(WireAnswer, frozen=True, kw_only=True):
    """A data key of a stream."""

    stream: str
    data_key: int
    """Its number; new batches are encrypted with the largest."""
    master_key: str
    """Id of the master key that wraps it."""
