"""The schema of a stream's values, as the metadata keeps it: numbered versions of columns.

Rules: plain values, light to import. A column keeps its id through all versions, and a name, once
given, belongs to its id for good. ``evolution`` says which version may follow which.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

SchemaFormat = Literal["json", "avro", "protobuf"]
ValueFormat = Literal["raw", "json", "avro", "arrow", "protobuf"]
"""What values are, for what decodes them."""


class SchemaColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of values: a field of their JSON object or Avro record."""

    id: int
    """The same in every version, also after a rename."""
    name: str
    type: str
    """As Spark writes it, ``array<string>``."""
    nullable: bool = True


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a stream's schema."""

    version: int
    """From 1."""
    format: SchemaFormat
    columns: tuple[SchemaColumn, ...]
    avro: str = ""
    """The Avro schema as JSON; empty for ``json``."""
    json_schema: str = ""
    """The JSON Schema of ``json`` values, if it was given as one."""
    protobuf: str = ""
    """The files that describe ``protobuf`` values, a ``FileDescriptorSet`` in Base64."""
    message: str = ""
    """The full name of the message that ``protobuf`` values are."""
    registry_id: int | None = None
    """The id that a schema registry gave it, by which framed values name it."""
    created_ns: int = 0


def names_by_column(versions: Sequence[SchemaVersion]) -> dict[str, tuple[str, ...]]:
    """Return for each name that a column ever had all names of that column, the newest first."""
    names: dict[int, list[str]] = {}
    for version in reversed(versions):
        for column in version.columns:
            known = names.setdefault(column.id, [])
            if column.name not in known:
                known.append(column.name)
    return {name: tuple(known) for known in names.values() for name in known}
