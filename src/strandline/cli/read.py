"""``strandline read``: print records of a stream, once or as they are stored."""

import base64
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from strandline.cli.completion import stream_names
from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    escaped,
    examples,
    logged_to_stderr,
    print_json,
    print_line,
    progress,
    reports_errors,
    writing_output,
)
from strandline.cli.parsing import naming, parse_offset
from strandline.errors import InvalidRequestError
from strandline.values.schema import ValueFormat

if TYPE_CHECKING:
    from strandline.cli.value_decoding import Decode
    from strandline.client.client import Client

EPILOG = examples(
    "strandline read orders                            # all of it, oldest first",
    "strandline read orders --from -15m --follow       # the last 15 minutes, then on",
    "strandline read orders --partition 2 --from 5000 --to 6000 --output json",
    "strandline read orders --subject 'orders.paris.*' --columns offset,subject,value",
    "strandline read orders --format raw > values.txt",
    "strandline read orders --values json --output json     # by the stream's schema",
    "strandline read orders --values avro --schema order.avsc --output json",
    "strandline read totals --latest-by-key             # a compacted view",
    "strandline read orders --replica this -s 127.0.0.1:9410   # the replica of that broker",
)
VALUE_CHARACTERS = 120
RECONNECT_S = 24 * 3600.0
"""How long --follow retries while no broker answers."""


class RecordFormat(StrEnum):
    """The format in which records are printed."""

    table = "table"
    json = "json"
    raw = "raw"


Record = dict[str, Any]


@reports_errors
def read(
    *,
    stream: Annotated[
        str,
        typer.Argument(metavar="STREAM", help="The stream to read.", autocompletion=stream_names),
    ],
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, an offset, a time (UTC), or -15m for ago."),
    ] = "earliest",
    stop: Annotated[
        str | None,
        typer.Option(
            "--to", help="Where to stop, exclusive; as for --from.", show_default="latest"
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="Only this partition.", show_default="all", min=0)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new records.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Maximum number of records.", min=0)
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, from: partition,offset,timestamp,subject,key,value,headers."
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only matching subjects; * and > are wildcards.")
    ] = None,
    latest: Annotated[
        bool,
        typer.Option("--latest-by-key", help="Only the newest record of each key."),
    ] = False,
    replica: Annotated[
        Literal["leader", "any", "this"],
        typer.Option(help="In a cluster: leaders, any in-sync replica, or only those of --server."),
    ] = "leader",
    record_format: Annotated[
        RecordFormat,
        typer.Option("--format", help="table, json (a record per line), or raw (values alone)."),
    ] = RecordFormat.table,
    values: Annotated[
        ValueFormat,
        typer.Option(help="Format of the values; all but raw are decoded."),
    ] = "raw",
    schema: Annotated[
        Path | None,
        typer.Option(help="File of the Avro schema of values.", show_default="the stream's"),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Print records, oldest first within each partition.

    Offsets and filters are evaluated by the broker, so that only matching records are transferred.
    With --follow the command continues after a restart of the broker.
    """
    import strandline
    from strandline.cli.value_decoding import value_decoder
    from strandline.client.reader.compacted_view import compacted_view
    from strandline.without_pandas import keep_pandas_out

    if values != "raw" and record_format is RecordFormat.raw:
        raise InvalidRequestError("--format raw prints values as they are: leave --values out")
    if output is OutputFormat.json:
        record_format = RecordFormat.json
    wanted = columns.split(",") if columns else None
    if record_format is RecordFormat.raw:
        wanted = ["value"]
    with naming("--from"):
        first = parse_offset(start)
    with naming("--to"):
        end = None if stop is None else parse_offset(stop)
    if latest and (follow or limit is not None or stop is not None or start != "earliest"):
        raise InvalidRequestError(
            "--latest-by-key reads the whole stream; omit --from, --to, --follow and --limit"
        )
    keep_pandas_out()
    with strandline.connect(server) as client:
        decode = value_decoder(values, schema, lambda: client.schemas.list(stream))
        if latest:
            table = compacted_view(client, stream, columns=wanted, subject=subject, replica=replica)
            _print_all(_rows_of(table.to_batches()), record_format, decode)
            return
        options: dict[str, Any] = {"subject": subject, "records_max": limit, "replica": replica}
        if follow:
            with logged_to_stderr(output):
                records = _followed(
                    client,
                    stream,
                    columns=wanted,
                    partition=partition,
                    start=first,
                    stop=end,
                    **options,
                )
                _print_all(records, record_format, decode)
            return
        batches: Iterable[Any] = client.read(
            stream, partition=partition, start=first, stop=end, columns=wanted, **options
        )
        if sys.stderr.isatty() and not sys.stdout.isatty():
            batches = _watched(batches)
        _print_all(_rows_of(batches), record_format, decode)


def _followed(
    client: "Client",
    stream: str,
    *,
    columns: list[str] | None,
    partition: int | None,
    **options: Any,
) -> Iterator[Record]:
    """Yield records as they are stored, and continue after restarts of brokers."""
    # The broker checks the columns and knows the default ones.
    names = client.read(stream, partition=partition, columns=columns, records_max=0).schema.names
    with client.subscribe(
        stream, partition=partition, reconnect_timeout_s=RECONNECT_S, **options
    ) as records:
        for record in records:
            row = record._asdict()
            row["timestamp"] = _time_text(record.timestamp_ns)
            yield {name: row[name] for name in names}


def _watched(batches: Iterable[Any]) -> Iterator[Any]:
    """Show the progress on standard error if the output goes to a file or a pipe."""
    with progress("reading", None) as advance:
        for batch in batches:
            yield batch
            advance(batch.num_rows)


def _rows_of(batches: Iterable[Any]) -> Iterator[Record]:
    for batch in batches:
        yield from rows(batch)


def _print_all(
    records: Iterable[Record], record_format: RecordFormat, decode: "Decode | None"
) -> None:
    from strandline.cli.value_decoding import decoded

    printer = PRINTERS[record_format]
    for record in records:
        printer(record if decode is None else decoded(record, decode))


def rows(batch: Any) -> list[Record]:
    """Return the records of a ``pyarrow.RecordBatch``, with times as UTC text in nanoseconds."""
    import pyarrow as pa

    index = batch.schema.get_field_index("timestamp")
    if index >= 0:
        nanoseconds = batch.column(index).cast(pa.int64()).to_pylist()
        texts = pa.array([_time_text(number) for number in nanoseconds], pa.string())
        batch = batch.set_column(index, "timestamp", texts)
    found: list[Record] = batch.to_pylist()
    return found


def print_json_record(record: Record) -> None:
    """Print a record as a JSON object; bytes that are not UTF-8 become ``<name>_base64``.

    If a header's value is not UTF-8, the values of all headers of the record are in Base64.
    """
    shown: Record = {}
    for name, value in record.items():
        if isinstance(value, bytes):
            text = _utf8(value)
            if text is None:
                shown[f"{name}_base64"] = base64.b64encode(value).decode()
            else:
                shown[name] = text
        elif name == "headers":
            texts = [[key, _utf8(content)] for key, content in value or ()]
            if any(text is None for _, text in texts):
                coded = [[key, base64.b64encode(content).decode()] for key, content in value]
                shown[f"{name}_base64"] = coded
            else:
                shown[name] = texts
        else:
            shown[name] = value
    print_json(shown)


def print_table_record(record: Record) -> None:
    """Print a record as one line; long values are cut."""
    print_line("  ".join(_column_text(name, value) for name, value in record.items()).rstrip())


def print_raw_record(record: Record) -> None:
    """Write the bytes of the value and a line end; write nothing for a null value."""
    if record["value"] is not None:
        with writing_output():
            sys.stdout.buffer.write(record["value"] + b"\n")
            sys.stdout.buffer.flush()


PRINTERS: dict[RecordFormat, Callable[[Record], None]] = {
    RecordFormat.table: print_table_record,
    RecordFormat.json: print_json_record,
    RecordFormat.raw: print_raw_record,
}


def _column_text(name: str, value: Any) -> str:
    if name == "partition":
        return f"{value:>3}"
    if name == "offset":
        return f"{value:>10}"
    if name == "headers":
        return printable(" ".join(f"{key}={_text(content)}" for key, content in value or ()))
    if value is None:
        return "-"
    if isinstance(value, dict | list):  # a decoded value
        value = msgspec.json.encode(value)
    return printable(_text(value) if isinstance(value, bytes) else str(value))


def printable(text: str) -> str:
    """Escape what could control a terminal, and cut the text to one line."""
    safe = escaped(text)
    return safe if len(safe) <= VALUE_CHARACTERS else safe[: VALUE_CHARACTERS - 1] + "…"


def _time_text(nanoseconds: int) -> str:
    """Format a time as ISO 8601 with nine decimals of the second."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
