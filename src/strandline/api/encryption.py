"""The admin API of encrypted streams.

| action | body | results |
|---|---|---|
| list_keys | empty | KeyInfo, one per data key |
| rotate_keys | RotateKeys | KeyInfo, one per data key of the stream |

Rules: see ``admin``. No key is ever sent, not even a wrapped one.
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
    """A request to wrap data keys again, and optionally to add one for new records."""

    stream: Name
    has_new_key: bool = False


class KeyInfo(WireAnswer, frozen=True, kw_only=True):
    """A data key of a stream."""

    stream: str
    data_key: int
    """Its number; new batches are encrypted with the largest."""
    master_key: str
    """Id of the master key that wraps it."""
