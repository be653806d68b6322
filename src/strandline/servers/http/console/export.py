"""Records as files: JSON lines in the format of the CLI, CSV, Parquet.

Rules: JSON lines and Parquet keep every byte. CSV is text; a cell that a spreadsheet would run as a
formula gets a leading apostrophe.
"""

import base64
import csv
import io
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from strandline.record.schema import PARTITION_FIELD, RECORD_SCHEMA
from strandline.servers.http.console.formatting import format_time_ns
from strandline.servers.http.console.records import ConsoleRecord

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
CSV_COLUMNS: Final = ("partition", "offset", "timestamp", "subject", "key", "value", "headers")


def as_json_lines(records: list[ConsoleRecord]) -> bytes:
    """Return one JSON object a line; a value that is not UTF-8 becomes ``<name>_base64``."""
    lines = (json.dumps(_document(each), ensure_ascii=False) + "\n" for each in records)
    return "".join(lines).encode()


def as_csv(records: list[ConsoleRecord]) -> bytes:
    """Return a table with a heading row; bytes that are not UTF-8 become escapes."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(CSV_COLUMNS)
    for each in records:
        pairs = [[name, _shown(value)] for name, value in each.headers]
        headers = json.dumps(pairs) if pairs else ""
        texts = (each.subject, _shown(each.key), _shown(each.value), headers)
        time = format_time_ns(each.timestamp_ns)
        writer.writerow([each.partition, each.offset, time, *map(_harmless, texts)])
    return out.getvalue().encode()


def as_parquet(records: list[ConsoleRecord]) -> bytes:
    """Return a Parquet file with the columns of a read, and the partition number."""
    import pyarrow.parquet as pq  # imported here: it takes memory, and few users need it

    rows = [each._asdict() | {"timestamp": each.timestamp_ns} for each in records]
    schema = pa.schema([PARTITION_FIELD, *_plain_schema()])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    found: bytes = sink.getvalue().to_pybytes()
    return found


FORMATS: Final[dict[str, tuple[str, str, Callable[[list[ConsoleRecord]], bytes]]]] = {
    "jsonl": ("JSON lines", "application/x-ndjson", as_json_lines),
    "csv": ("CSV", "text/csv; charset=utf-8", as_csv),
    "parquet": ("Parquet", "application/vnd.apache.parquet", as_parquet),
}
"""Format → its name for people, its media type, and the function that writes it."""


def _plain_schema() -> list[pa.Field]:
    """Return the columns of a read, with dictionary columns as plain text."""
    return [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in RECORD_SCHEMA
    ]


def _document(record: ConsoleRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": format_time_ns(record.timestamp_ns),
        "subject": record.subject,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        try:
            found[name] = None if value is None else value.decode()
        except UnicodeDecodeError:
            found[f"{name}_base64"] = _base64(value or b"")
    try:
        found["headers"] = [[name, value.decode()] for name, value in record.headers]
    except UnicodeDecodeError:
        found["headers_base64"] = [[name, _base64(value)] for name, value in record.headers]
    return found


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _shown(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
