"""Column types inferred from a sample of JSON values; each holds the values without loss.

Rules: an integer becomes a BIGINT; one beyond 64 bits is rejected. Texts become a DATE or a time
only if all texts of the field are dates or times, all or none with a zone, and none is finer than
microseconds; else they stay text. A field with conflicting types is rejected by name. Must not know
streams.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from strandline.values.json_text import LOCAL_TEXT, ZONED_TEXT

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LOCAL, _ZONED = re.compile(LOCAL_TEXT), re.compile(ZONED_TEXT)
_TOO_FINE = re.compile(r"\.\d{7}")
_INTEGER = 1 << 63
_EXACT_IN_DOUBLE = 1 << 53
_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "text",
    dict: "an object",
    list: "a list",
}


class _Field:
    """The types seen in one field."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.kind: type | None = None
        self.integer_max = 0
        self.texts: set[pa.DataType] = set()
        self.fields: dict[str, _Field] = {}
        self.items: _Field | None = None

    def note(self, value: Any) -> None:
        """Take a value of the field into account.

        Raises:
            ValueError: its type conflicts with earlier ones, or has no lossless column.
        """
        if value is None:
            return
        kind = type(value)
        if self.kind not in (None, kind) and {self.kind, kind} != {int, float}:
            assert self.kind is not None
            other = _NAMES[self.kind]
            raise ValueError(f"{self.path} is {other} in one and {_NAMES[kind]} in another")
        self.kind = float if float in (self.kind, kind) else kind
        if kind is int:
            self._note_integer(value)
        elif kind is str:
            self.texts.add(_type_of_text(value))
        elif kind is dict:
            for name, part in value.items():
                self.part(name).note(part)
        elif kind is list:
            self.items = self.items or _Field(self.path)
            for item in value:
                self.items.note(item)
        if self.kind is float and self.integer_max > _EXACT_IN_DOUBLE:
            raise ValueError(f"{self.path} has integers beyond what a DOUBLE holds exactly")

    def part(self, name: str) -> "_Field":
        """Return the field of a struct."""
        return self.fields.setdefault(name, _Field(f"{self.path}.{name}".removeprefix(".")))

    def type(self, empty: list[str]) -> pa.DataType | None:
        """Return the column's type; None if there was no value: ``empty`` then gets the path."""
        if self.kind is dict:
            known = [(name, part.type(empty)) for name, part in self.fields.items()]
            kept = [(name, kind) for name, kind in known if kind is not None]
            if not known:
                empty.append(self.path)
            return pa.struct(kept) if kept else None
        if self.kind is list:
            assert self.items is not None
            kind = self.items.type(empty)
            return None if kind is None else pa.list_(kind)
        if self.kind is None:
            empty.append(self.path)
            return None
        if self.kind is str:
            return next(iter(self.texts)) if len(self.texts) == 1 else pa.string()
        return {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}[self.kind]

    def _note_integer(self, value: int) -> None:
        if not -_INTEGER <= value < _INTEGER:
            raise ValueError(f"{self.path} has the integer {value}, beyond 64 bits")
        self.integer_max = max(self.integer_max, abs(value))


def columns_of(values: Iterable[bytes], empty: list[str]) -> tuple[int, pa.DataType | None]:
    """Return the number of JSON objects among the values, and a struct that can hold all of them.

    Args:
        values: the values; those that are not JSON objects are ignored.
        empty: receives the paths of fields without a value.

    Raises:
        ValueError: no column can hold the values of a field; the message names the field.
    """
    whole, objects = _Field(""), 0
    for value in values:
        found = _object(value)
        if found is not None:
            whole.note(found)
            objects += 1
    return objects, whole.type(empty) if objects else None


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    json.loads(value, object_pairs_hook=_check_no_duplicates)
    return found


def _check_no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice in one object")


def _type_of_text(text: str) -> pa.DataType:
    if _DATE.fullmatch(text):
        return pa.date32()
    if _TOO_FINE.search(text):
        return pa.string()
    if _ZONED.match(text):
        return pa.timestamp("us", tz="UTC")
    return pa.timestamp("us") if _LOCAL.match(text) else pa.string()
