"""Values of records as people can read them: Avro by a schema, and Arrow, which has its own.

Rules: a value that cannot be decoded is shown as it is, with the reason beside it; a read goes on.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from strandline.errors import InvalidConfigError, InvalidRequestError

ValueKind = Literal["raw", "avro", "arrow"]
Decode = Callable[[bytes], Any]


def value_decoder(kind: ValueKind, schema: Path | None) -> Decode | None:
    """Return the function that decodes a value; None: values stay bytes.

    Args:
        kind: of the values.
        schema: file of the Avro schema that they were written with, as JSON.

    Raises:
        InvalidRequestError: a schema is given for other values, or missing for Avro.
        InvalidConfigError: the file cannot be read, or is not an Avro schema.
    """
    if (kind == "avro") is (schema is None):
        raise InvalidRequestError(
            "--values avro and --schema belong together: name the file of the Avro schema, as JSON"
        )
    if kind == "arrow":
        return _arrow_rows
    if schema is None:
        return None
    from strandline.values.avro import value_reader

    try:
        text = schema.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"cannot read the schema {schema}: {error}") from error
    return value_reader(text, None)


def _arrow_rows(value: bytes) -> Any:
    """Return the rows of an Arrow IPC stream."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(value) as reader:
            return _plain(reader.read_all().to_pylist())
    except pa.ArrowException as error:
        raise ValueError(f"not an Arrow IPC stream: {error}") from error


def _plain(value: Any) -> Any:
    """Replace pandas' times, in which Arrow gives nanoseconds, by their ISO 8601 text."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime | timedelta) and type(value) not in (datetime, timedelta):
        return value.isoformat()  # type: ignore[union-attr]  # pandas' Timedelta has it, too
    return value


def decoded(record: dict[str, Any], decode: Decode) -> dict[str, Any]:
    """Return a record with its value decoded; ``value_error`` says why it is not."""
    value = record.get("value")
    if value is None:
        return record
    try:
        return {**record, "value": decode(value)}
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        return {**record, "value_error": str(error)}
