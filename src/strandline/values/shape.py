"""The shape of a schema's columns: their types as far as compatibility of versions depends on it.

Rules: plain values. Parsers of schemas make them, ``evolution`` compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any


@dataclass(frozen=True)
class ValueShape:
    """A type as far as compatibility depends on it."""

    kind: str
    """A type's word and parameters, or ``struct``, ``array``, ``map``, ``enum``."""
    nullable: bool = True
    fields: tuple["ShapeField", ...] = ()
    """Of a struct; of an array or map its parts."""
    name: str = ""
    """Of a named type of Avro, with its namespace."""
    aliases: frozenset[str] = frozenset()
    symbols: frozenset[str] = frozenset()
    limits: Mapping[str, Any] = dataclass_field(default_factory=dict)
    """What is asked of values beyond their type: keywords of JSON Schema, a ``oneof``."""


@dataclass(frozen=True)
class ShapeField:
    """A field of a struct."""

    name: str
    shape: ValueShape
    aliases: frozenset[str] = frozenset()
    may_be_missing: bool = True
    """Whether an earlier value without it is read as null."""
    number: int = 0
    """In Protocol Buffers, by which values know the field."""


def element(shape: ValueShape) -> ShapeField:
    """Return the part of an array or map."""
    return ShapeField("element", shape)
