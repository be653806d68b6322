"""The Arrow columns of an Avro schema.

Rules: a record is a struct, a union with null is a nullable field, other unions are refused; a
logical type that has no column of its own, as a time of day, is what it is stored as. Must not know
Spark; values are decoded in ``decode``.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa

from strandline.errors import InvalidConfigError

_PRIMITIVES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL = "decimal"


def arrow_schema_of(avro_schema: str | None) -> pa.Schema:
    """The columns of an Avro record schema.

    Args:
        avro_schema: as JSON.

    Raises:
        InvalidConfigError: missing, not JSON, not a record, or with a type that has no column.
    """
    parsed_schema(avro_schema)
    with _told_as_config():
        kind = _type_of(_decoded(avro_schema))
    if not pa.types.is_struct(kind):
        raise InvalidConfigError("the Avro schema of values must be a record")
    return pa.schema(list(kind))


def parsed_schema(avro_schema: str | None) -> Any:
    """The schema as fastavro reads values with it, each as what its column holds.

    Raises:
        InvalidConfigError: missing, or not an Avro schema.
    """
    with _told_as_config():
        return fastavro.parse_schema(_as_stored(_decoded(avro_schema)))


@contextlib.contextmanager
def _told_as_config() -> Iterator[None]:
    """What is wrong with a schema: fastavro's own error, or what a missing part comes to."""
    try:
        yield
    except (fastavro.schema.SchemaParseException, LookupError, TypeError, ValueError) as error:
        raise InvalidConfigError(f"'schema' is not an Avro schema: {error!r}") from error


def _decoded(avro_schema: str | None) -> Any:
    if not avro_schema:
        raise InvalidConfigError("Avro values need the schema they were written with: 'schema'")
    try:
        return json.loads(avro_schema)
    except ValueError as error:
        raise InvalidConfigError(f"'schema' is not an Avro schema: {error}") from error


def _as_stored(schema: Any) -> Any:
    """A schema without the logical types that are columns as they are stored.

    fastavro would make Python objects of them, as of a time of day, which no such column takes.
    """
    if isinstance(schema, list):
        return [_as_stored(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _as_stored(value)
        for key, value in schema.items()
        if key != "logicalType" or value in _LOGICAL or value == _DECIMAL
    }


def _type_of(schema: Any) -> pa.DataType:
    if isinstance(schema, list):
        return _union(schema)
    name = schema if isinstance(schema, str) else schema.get("type")
    if isinstance(name, dict | list):
        return _type_of(name)
    if isinstance(schema, dict):
        if schema.get("logicalType") in _LOGICAL:
            return _LOGICAL[schema["logicalType"]]
        if schema.get("logicalType") == _DECIMAL:
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if name == "record":
            return pa.struct([(f["name"], _type_of(f["type"])) for f in schema["fields"]])
        if name == "array":
            return pa.list_(_type_of(schema["items"]))
        if name == "map":
            return pa.map_(pa.string(), _type_of(schema["values"]))
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    raise InvalidConfigError(f"the Avro type {name!r} has no column; describe it in place")


def _union(choices: list[Any]) -> pa.DataType:
    others = [choice for choice in choices if choice != "null"]
    if len(others) != 1:
        raise InvalidConfigError("an Avro union may have null and one type; others have no column")
    return _type_of(others[0])
