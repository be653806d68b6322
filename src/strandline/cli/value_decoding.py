"""Values of records in readable form: decoded by a schema, or Arrow by its own schema.

Rules: a value that cannot be decoded is shown unchanged, with the reason; the read continues.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from strandline.errors import InvalidConfigError, InvalidRequestError
from strandline.values.plain import plain
from strandline.values.schema import SchemaVersion, ValueFormat

Decode = Callable[[bytes], Any]
Versions = Callable[[], Sequence[SchemaVersion]]


def value_decoder(kind: ValueFormat, schema: Path | None, versions: Versions) -> Decode | None:
    """Return the function that decodes a value; None if values stay bytes.

    Args:
        kind: the format of the values.
        schema: a file with the Avro schema of the values, as JSON; None: use the stream's schema.
        versions: returns the versions of the stream's schema.

    Raises:
        InvalidRequestError: a schema file is given for another format, Avro values have no schema,
            or the stream's schema has another format.
        InvalidConfigError: the file cannot be read, or is not an Avro schema.
    """
    if schema is not None and kind != "avro":
        raise InvalidRequestError("--schema is the file of an Avro schema: add --values avro")
    if kind == "raw":
        return None
    if kind == "arrow":
        return _arrow_rows
    if schema is not None:
        return _by_file(schema)
    return _by_stream(kind, versions())


def _by_file(schema: Path) -> Decode:
    from strandline.values.avro import value_reader

    try:
        text = schema.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfigError(
            f"cannot read the schema {schema}: {reason}; name another file with --schema"
        ) from error
    return value_reader(text, None)


def _by_stream(kind: ValueFormat, versions: Sequence[SchemaVersion]) -> Decode:
    """Return a function that decodes by the stream's schema; JSON values need none."""
    if not versions and kind == "json":
        return json.loads
    if not versions:
        raise InvalidRequestError(
            "the stream has no schema: set it with 'strandline stream schema set', or name the "
            "file of an Avro schema with --schema"
        )
    if versions[-1].format != kind:
        raise InvalidRequestError(
            f"the stream's schema is of {versions[-1].format} values: give --values "
            f"{versions[-1].format}"
        )
    from strandline.values.decode import value_by_schema

    return value_by_schema(versions)


def _arrow_rows(value: bytes) -> Any:
    """Return the rows of a value that is an Arrow IPC stream."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(value) as reader:
            return reader.read_all().to_pylist()
    except pa.ArrowException as error:
        raise ValueError(f"not an Arrow IPC stream: {error}") from error


def decoded(record: dict[str, Any], decode: Decode) -> dict[str, Any]:
    """Return a record with its value decoded, or with the reason in ``value_error``."""
    value = record.get("value")
    if value is None:
        return record
    try:
        return {**record, "value": plain(decode(value))}
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        return {**record, "value_error": str(error)}
