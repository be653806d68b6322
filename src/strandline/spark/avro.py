"""Conversion of an Avro schema to Arrow columns.

Rules: a record is a struct, a union with null is a nullable field, other unions are rejected; a
named type may be referred to by name, but not within itself; a logical type without an Arrow
equivalent, such as a time of day, becomes its underlying type. Must not know Spark; ``decode``
decodes values.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

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
    """Return the Arrow columns of an Avro record schema.

    Args:
        avro_schema: as JSON.

    Raises:
        InvalidConfigError: missing, not JSON, not a record, or with an unsupported type.
    """
    parsed = parsed_schema(avro_schema)
    with _translated():
        kind = _type_of(parsed, {})
    if not pa.types.is_struct(kind):
        raise InvalidConfigError("the Avro schema of values must be a record")
    return pa.schema(list(kind))


def value_reader(avro_schema: str | None, writer_schema: str | None) -> Callable[[bytes], Any]:
    """Return a function that decodes a value.

    Args:
        avro_schema: the reader's schema.
        writer_schema: the schema values were written with, if different.

    Raises:
        InvalidConfigError: missing, or not an Avro schema.
    """
    ours = parsed_schema(avro_schema)
    theirs = ours if writer_schema is None else parsed_schema(writer_schema)
    reader_schema = None if theirs is ours else ours

    def read(value: bytes) -> Any:
        source = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(source, theirs, reader_schema)
        except SchemaResolutionError as error:
            raise ValueError(f"the schemas of reader and writer do not fit: {error}") from error
        except (EOFError, IndexError, KeyError) as error:
            raise ValueError(f"not Avro of this schema: {error!r}") from error
        if source.tell() != len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes follow the Avro value")
        return row

    return read


def parsed_schema(avro_schema: str | None) -> Any:
    """Parse a schema with fastavro, with unsupported logical types removed.

    Raises:
        InvalidConfigError: missing, or not an Avro schema.
    """
    with _translated():
        return fastavro.parse_schema(_as_stored(_decoded(avro_schema)))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors about a schema to an InvalidConfigError."""
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
    """Remove logical types whose columns have the underlying type.

    fastavro would make Python objects of them, such as a time of day, which no such column takes.
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


def _type_of(schema: Any, named: dict[str, pa.DataType | None]) -> pa.DataType:
    """Return the Arrow type of an Avro type with full names.

    Args:
        schema: as fastavro parses it.
        named: types described so far, by name; None while one is in progress.
    """
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str) and schema in named:
        return _known(schema, named)
    name = schema if isinstance(schema, str) else schema.get("type")
    if isinstance(name, dict | list):
        return _type_of(name, named)
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = None
        kind = named[schema["name"]] = _described(schema, name, named)
        return kind
    return _described(schema, name, named)


def _known(name: str, named: dict[str, pa.DataType | None]) -> pa.DataType:
    kind = named[name]
    if kind is None:
        raise InvalidConfigError(f"the Avro type {name} holds itself, and no column is as deep")
    return kind


def _described(schema: Any, name: str, named: dict[str, pa.DataType | None]) -> pa.DataType:
    if isinstance(schema, dict):
        if schema.get("logicalType") in _LOGICAL:
            return _LOGICAL[schema["logicalType"]]
        if schema.get("logicalType") == _DECIMAL:
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if name == "record":
            if not schema["fields"]:
                raise InvalidConfigError(f"the Avro record {schema['name']} has no fields")
            return pa.struct([(f["name"], _type_of(f["type"], named)) for f in schema["fields"]])
        if name == "array":
            return pa.list_(_type_of(schema["items"], named))
        if name == "map":
            return pa.map_(pa.string(), _type_of(schema["values"], named))
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    raise InvalidConfigError(f"the Avro type {name!r} has no column")


def _union(choices: list[Any], named: dict[str, pa.DataType | None]) -> pa.DataType:
    others = [choice for choice in choices if choice != "null"]
    if len(others) != 1:
        raise InvalidConfigError("an Avro union may have null and one type; others have no column")
    return _type_of(others[0], named)
