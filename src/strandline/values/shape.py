"""The shape of a schema's columns: the part of their types on which compatibility depends.

Rules: plain values. Parsers of schemas make shapes, and ``evolution`` compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any


@dataclass(frozen=True)
class ValueShape:
    """The part of a type on which compatibility depends."""

    kind: str
    """The type's name and parameters, or ``struct``, ``array``, ``map``, ``enum``."""
    nullable: bool = True
    fields: tuple["ShapeField", ...] = ()
    """The fields of a struct; for an array its element, for a map its key and value."""
    name: str = ""
    """The full name of a named Avro type."""
    aliases: frozenset[str] = frozenset()
    symbols: frozenset[str] = frozenset()
    limits: Mapping[str, Any] = dataclass_field(default_factory=dict)
    """Limits of values beyond their type: keywords of JSON Schema, or a ``oneof``."""


@dataclass(frozen=True)
class ShapeField:
    """A field of a struct."""

    name: str
    shape: ValueShape
    aliases: frozenset[str] = frozenset()
    may_be_missing: bool = True
    """Whether an earlier value without the field is read as null."""
    number: int = 0
    """The field's number in Protocol Buffers."""


def element(shape: ValueShape) -> ShapeField:
    """Return the element of an array, or the value of a map, as a field."""
    return ShapeField("element", shape)
