"""Avro: its schemas as Arrow columns, and its values decoded by one schema or a stream's versions.

Rules: a record is a struct, a union with null is a nullable field, other unions are rejected; a
named type may be referred to by name, but not within itself; a logical type without an Arrow
equivalent, such as a time of day, becomes its underlying type. Every item of an array takes at
least a byte, so that a value's length bounds the work of decoding it. Must not know Spark;
``decode`` decodes whole batches.
"""

import contextlib
import io
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from strandline.errors import InvalidConfigError
from strandline.values.columns import check_size, type_text
from strandline.values.frame import FRAME_BYTES, frame, framed_id
from strandline.values.json_text import is_deeper
from strandline.values.schema import SchemaVersion
from strandline.values.years import NOT_IN_YEARS

_PRIMITIVES: dict[str, pa.DataType] = {
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
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIXED_BYTES_MAX = (1 << 31) - 1
DEPTH_MAX = 64
"""How deeply the JSON of a schema may be nested: fastavro parses it by recursion in C."""
SINGLE_OBJECT = b"\xc3\x01"
"""The mark of Avro's single-object encoding, before the fingerprint of the schema."""
_FINGERPRINT_BYTES = 8
ReadValue = Callable[[bytes], Any]


def arrow_schema_of(avro_schema: str | None) -> pa.Schema:
    """Return the Arrow columns of an Avro record schema.

    Args:
        avro_schema: as JSON.

    Raises:
        InvalidConfigError: missing, not JSON, not a record, too large, or with an unsupported
            type.
    """
    parsed = parsed_schema(avro_schema)
    with _translated():
        kind = _type_of(parsed, {})
    if not pa.types.is_struct(kind):
        raise InvalidConfigError(
            f'the Avro schema of values must have the "type" "record", got {type_text(kind)}'
        )
    schema = pa.schema(list(kind))
    check_size(schema)
    return schema


def value_reader(avro_schema: str | None, writer_schema: str | None) -> ReadValue:
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
            # An IndexError means an early end, too, or the number of a choice that does not exist.
            raise ValueError(
                "not Avro of this schema: the value ends early, or names a choice of a union or "
                "enum that there is not"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError("not Avro of this schema: a text is not UTF-8") from error
        except OverflowError as error:
            raise ValueError(NOT_IN_YEARS) from error
        except (ArithmeticError, TypeError, struct.error) as error:
            raise ValueError(f"not Avro of this schema: {error}") from error
        if source.tell() != len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes follow the Avro value")
        return row

    return read


def versions_reader(versions: Sequence[SchemaVersion]) -> ReadValue:
    """Return a function that decodes a value to the newest version of a stream's schema.

    A framed value (Avro's single-object encoding, or a registry's) names its version. Any other
    value is read with the newest version that fits.

    Args:
        versions: the versions of the stream, ascending.
    """
    newest = versions[-1].avro
    by_version = [
        (each, value_reader(newest, None if each.avro == newest else each.avro))
        for each in reversed(versions)
    ]
    readers = [read for _, read in by_version]
    framed = {SINGLE_OBJECT + fingerprint(each.avro): read for each, read in by_version}
    for each, read in by_version:
        if each.registry_id is not None:
            framed[frame(each.registry_id)] = read

    def read_any(value: bytes) -> Any:
        for size in (len(SINGLE_OBJECT) + _FINGERPRINT_BYTES, FRAME_BYTES):
            if value[:size] in framed:
                return framed[value[:size]](value[size:])
        reasons = []
        for read in readers:
            try:
                return read(value)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(f"{_frame_of(value)}it fits no version of the schema; {reasons[0]}")

    return read_any


def _frame_of(value: bytes) -> str:
    """Return the part of an error about a frame that names no version; empty without a frame."""
    if value.startswith(SINGLE_OBJECT) and len(value) >= len(SINGLE_OBJECT) + _FINGERPRINT_BYTES:
        return "the fingerprint of its frame is of no version, and "
    if (number := framed_id(value)) is not None:
        return f"no version has the registry's id {number} of its frame, and "
    return ""


def fingerprint(avro_schema: str) -> bytes:
    """Return the fingerprint of a schema, as the bytes that single-object encoding writes."""
    canonical = fastavro.schema.to_parsing_canonical_form(_decoded(avro_schema))
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


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
        raise InvalidConfigError(f"'schema' is not an Avro schema: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return a sentence about an error of fastavro, whose own text may be only one word."""
    if isinstance(error, fastavro.schema.UnknownType):
        return f"unknown type {error.name!r}"
    if isinstance(error, KeyError):
        return f"a type lacks {error}"
    return str(error)


def _decoded(avro_schema: str | None) -> Any:
    if not avro_schema:
        raise InvalidConfigError(
            "Avro values need their schema: give 'schema', or set that of the stream"
        )
    try:
        schema = json.loads(avro_schema)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise InvalidConfigError(f"'schema' is not an Avro schema: {error}") from error
    if isinstance(schema, dict) and "type" not in schema:
        raise InvalidConfigError(
            '\'schema\' is not an Avro schema: an object with the "type" "record" is needed'
        )
    if is_deeper(schema, DEPTH_MAX):
        raise _too_deep()
    return schema


def _too_deep() -> InvalidConfigError:
    return InvalidConfigError(
        f"the Avro schema is nested more than {DEPTH_MAX} deep; leave inner fields out"
    )


def _as_stored(schema: Any) -> Any:
    """Remove logical types whose columns have the underlying type.

    For such types, as a time of day, fastavro makes Python objects, which the columns cannot hold.
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
        raise InvalidConfigError(
            f"the Avro type {name} holds itself, and no column is as deep; leave that field out"
        )
    return kind


def _described(schema: Any, name: str, named: dict[str, pa.DataType | None]) -> pa.DataType:
    if isinstance(schema, dict):
        if name == "fixed":
            _check_fixed(schema)
        if schema.get("logicalType") in _LOGICAL:
            return _LOGICAL[schema["logicalType"]]
        if schema.get("logicalType") == _DECIMAL:
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if name == "record":
            if not schema["fields"]:
                raise InvalidConfigError(
                    f"the Avro record {schema['name']} has no fields, and a column needs one; "
                    "leave the field out"
                )
            for each in schema["fields"]:
                _check_name(each["name"])
            return pa.struct([(f["name"], _type_of(f["type"], named)) for f in schema["fields"]])
        if name == "array":
            return pa.list_(_type_of(schema["items"], named))
        if name == "map":
            return pa.map_(pa.string(), _type_of(schema["values"], named))
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    raise InvalidConfigError(f"the Avro type {name!r} has no column; leave the field out")


def _check_name(name: Any) -> None:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidConfigError(
            f"the Avro field {name!r}: a name has letters, digits and _, and begins with no digit"
        )


def _check_fixed(schema: dict[str, Any]) -> None:
    size = schema["size"]
    if type(size) is not int or not 1 <= size <= _FIXED_BYTES_MAX:
        raise InvalidConfigError(
            f"the Avro type {schema['name']} has a size of {size!r}: it takes 1 to "
            f"{_FIXED_BYTES_MAX:,} bytes"
        )


def _union(choices: list[Any], named: dict[str, pa.DataType | None]) -> pa.DataType:
    others = [choice for choice in choices if choice != "null"]
    if len(others) != 1:
        names = [str(each if isinstance(each, str) else each["type"]) for each in others]
        raise InvalidConfigError(
            f"an Avro union of {' and '.join(names) or 'null'} has no column: it may have null and "
            "one type"
        )
    return _type_of(others[0], named)
