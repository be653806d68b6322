"""The schema of a stream's values, as stored in the metadata: numbered versions of columns.

Rules: plain values, light to import. A column keeps its id in all versions, and a name that was
used once always belongs to the same id. ``evolution`` has the rules for a new version.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

SchemaFormat = Literal["json", "avro", "protobuf"]
ValueFormat = Literal["raw", "json", "avro", "arrow", "protobuf"]
"""The formats from which values can be decoded; ``raw`` is not decoded."""


class SchemaColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of values: a field of a JSON object, Avro record or message."""

    id: int
    """The column's id, the same in every version, also after a rename."""
    name: str
    type: str
    """The type as Spark writes it, such as ``array<string>``."""
    nullable: bool = True


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a stream's schema."""

    version: int
    """The number of the version, from 1."""
    format: SchemaFormat
    columns: tuple[SchemaColumn, ...]
    avro: str = ""
    """The Avro schema as JSON; empty for ``json``."""
    json_schema: str = ""
    """The JSON Schema of ``json`` values, if it was given as one."""
    protobuf: str = ""
    """The files that describe ``protobuf`` values, a ``FileDescriptorSet`` in Base64."""
    message: str = ""
    """The full name of the message of ``protobuf`` values."""
    registry_id: int | None = None
    """The id of the version in a schema registry, with which framed values begin."""
    created_ns: int = 0


def names_by_column(versions: Sequence[SchemaVersion]) -> dict[str, tuple[str, ...]]:
    """Map each name that a column ever had to all names of that column, the newest first."""
    names: dict[int, list[str]] = {}
    for version in reversed(versions):
        for column in version.columns:
            known = names.setdefault(column.id, [])
            if column.name not in known:
                known.append(column.name)
    return {name: tuple(known) for known in names.values() for name in known}
