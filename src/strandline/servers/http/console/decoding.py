"""The bytes of a record as text for people: decoded by a schema, as JSON or text, or a hex dump.

Rules: pure. The length of what is shown is limited. A value longer than ``PARSED_BYTES_MAX`` is not
parsed, and one page decodes at most ``SCHEMA_BYTES_MAX`` by a schema.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from strandline.errors import UNDECODABLE
from strandline.values.frame import FRAME_BYTES, framed_id
from strandline.values.plain import plain
from strandline.values.schema import SchemaVersion

PARSED_BYTES_MAX: Final = 256 << 10
SCHEMA_BYTES_MAX: Final = 2 << 20
"""Bytes that one page decodes by a schema, at about 20 MB/s."""
SHOWN_CHARACTERS_MAX: Final = 16 << 10
SUMMARY_CHARACTERS: Final = 160
HEX_BYTES_MAX: Final = 2048
HEX_COLUMNS: Final = 16
_KINDS = {"avro": "Avro", "protobuf": "Protobuf"}
"""Formats whose values are shown as the JSON of their columns."""


class DecodedValue(NamedTuple):
    """A value decoded to text."""

    kind: str
    """``Avro``, ``Protobuf``, ``JSON``, ``text``, ``bytes`` or ``null``."""
    summary: str
    """The value on one line."""
    text: str
    is_cut: bool
    problem: str = ""
    """Why the value does not fit its stream's schema; empty if it fits."""


class SchemaDecoder:
    """Decodes the values of one page by the schema of their stream.

    Args:
        versions: the versions of the schema, ascending; empty: the format is guessed from the
            value.
    """

    def __init__(self, versions: Sequence[SchemaVersion]) -> None:
        self._kind = _KINDS.get(versions[-1].format) if versions else None
        self._read: Callable[[bytes], Any] | None = None
        self._left = SCHEMA_BYTES_MAX
        if versions:
            # Imported here, because it imports Arrow's JSON reader.
            from strandline.values.decode import value_by_schema

            self._read = value_by_schema(versions)

    def decoded(self, value: bytes | None, how: str) -> DecodedValue:
        """Return a value as text; ``how`` is that of the function ``decoded``."""
        if value is None or self._read is None or how != "auto":
            return decoded(value, how)
        self._left -= len(value)
        if len(value) > PARSED_BYTES_MAX or self._left < 0:
            return decoded(value)
        try:
            row = plain(self._read(value))
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            return decoded(value)._replace(problem=str(error)[:SUMMARY_CHARACTERS])
        if self._kind is None:
            # Show the JSON as it is, including fields that the schema does not name.
            return decoded(value if framed_id(value) is None else value[FRAME_BYTES:])
        text = msgspec.json.encode(row).decode()
        pretty = msgspec.json.format(text, indent=2)
        return _as_text(self._kind, pretty, len(value), summary=text)


def decoded(value: bytes | None, how: str = "auto") -> DecodedValue:
    """Return a value as text.

    Args:
        value: the bytes of a record's value or key.
        how: ``auto``, ``text`` or ``hex``.
    """
    if value is None:
        return DecodedValue("null", "null", "null", is_cut=False)
    if how == "hex":
        return _as_hex(value)
    text = _utf8(value[: PARSED_BYTES_MAX + 1])
    if text is None and len(value) > PARSED_BYTES_MAX:
        text = value[:PARSED_BYTES_MAX].decode("utf-8", "replace") if how == "text" else None
    if text is None:
        if how == "text":
            return _as_text("text", value.decode("utf-8", "replace"), len(value))
        return _as_hex(value)
    if how == "auto" and text[:1] in ("{", "[") and len(value) <= PARSED_BYTES_MAX:
        try:
            pretty = msgspec.json.format(text, indent=2)
            json.loads(text)  # msgspec's format does not detect all invalid JSON
        except (*UNDECODABLE, msgspec.DecodeError):
            return _as_text("text", text, len(value))
        return _as_text("JSON", pretty, len(value), summary=text)
    return _as_text("text", text, len(value))


def key_text(key: bytes | None) -> str:
    """Return a key on one line, with escapes for bytes that are not UTF-8."""
    if key is None:
        return ""
    text = key[:SUMMARY_CHARACTERS].decode("utf-8", "backslashreplace")
    return text + ("…" if len(key) > SUMMARY_CHARACTERS else "")


def _as_text(kind: str, text: str, size: int, *, summary: str | None = None) -> DecodedValue:
    line = (text if summary is None else summary)[: SUMMARY_CHARACTERS * 2]
    line = " ".join(line.split())[:SUMMARY_CHARACTERS]
    is_cut = len(text) > SHOWN_CHARACTERS_MAX or size > PARSED_BYTES_MAX
    return DecodedValue(kind, line, text[:SHOWN_CHARACTERS_MAX], is_cut)


def _as_hex(value: bytes) -> DecodedValue:
    shown = value[:HEX_BYTES_MAX]
    lines = []
    for start in range(0, len(shown), HEX_COLUMNS):
        row = shown[start : start + HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{HEX_COLUMNS * 3}} {text}")
    summary = value[:32].hex(" ") + (" …" if len(value) > 32 else "")
    return DecodedValue("bytes", summary, "\n".join(lines), len(value) > HEX_BYTES_MAX)


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
