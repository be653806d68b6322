"""``strandline read``: records of a stream, now or as they come."""

import base64
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_json,
    print_line,
    progress,
    reports_errors,
)
from strandline.cli.parsing import parse_place
from strandline.errors import InvalidRequestError

EPILOG = examples(
    "strandline read orders                            # all of it, oldest first",
    "strandline read orders --from -15m --follow       # the last 15 minutes, then on",
    "strandline read orders --partition 2 --from 5000 --to 6000 --output json",
    "strandline read orders --subject 'orders.paris.*' --columns offset,subject,value",
    "strandline read orders --format raw > values.txt",
    "strandline read totals --latest-by-key             # a changelog as a table",
    "strandline read orders --replica this -s 127.0.0.1:9410   # the copy of that broker",
)
VALUE_CHARACTERS = 120


class RecordFormat(StrEnum):
    """How a record is printed."""

    table = "table"
    json = "json"
    raw = "raw"


Record = dict[str, Any]


@reports_errors
def read(
    *,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to read.")],
    start: Annotated[
        str,
        typer.Option("--from", help="earliest, latest, an offset, a time (UTC), or -15m for ago."),
    ] = "earliest",
    stop: Annotated[
        str | None,
        typer.Option(
            "--to", help="Where to stop, exclusive, in the same words.", show_default="latest"
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="Only this partition.", show_default="all", min=0)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for further records.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Stop after so many records.", min=1)
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, from: partition,offset,timestamp,subject,key,value,headers."
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only subjects that match; * and > are wildcards.")
    ] = None,
    latest: Annotated[
        bool,
        typer.Option("--latest-by-key", help="The newest record of each key: a changelog's table."),
    ] = False,
    replica: Annotated[
        Literal["leader", "any", "this"],
        typer.Option(
            help="In a cluster: at leaders, any in-sync replica, or the copies of --server alone."
        ),
    ] = "leader",
    record_format: Annotated[
        RecordFormat,
        typer.Option("--format", help="table, json (a record per line), or raw (values alone)."),
    ] = RecordFormat.table,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Print records, oldest first within each partition.

    The broker finds the place, picks the columns and filters; only what is printed travels.
    """
    import strandline
    from strandline.client.compacted_view import latest_by_key

    if output is OutputFormat.json:
        record_format = RecordFormat.json
    wanted = columns.split(",") if columns else None
    if record_format is RecordFormat.raw:
        wanted = ["value"]
    place, end = parse_place(start), None if stop is None else parse_place(stop)
    if latest and (follow or limit or stop is not None or start != "earliest"):
        raise InvalidRequestError("--latest-by-key reads everything; it takes no range")
    with strandline.connect(server) as client:
        if latest:
            table = latest_by_key(client, stream, columns=wanted, subject=subject, replica=replica)
            _print_all(table.to_batches(), record_format)
            return
        batches: Iterable[Any] = client.read(
            stream,
            partition=partition,
            start=place,
            stop=end,
            follow=follow,
            columns=wanted,
            subject=subject,
            records_max=limit,
            replica=replica,
        )
        if not follow and sys.stderr.isatty() and not sys.stdout.isatty():
            batches = _watched(batches)
        _print_all(batches, record_format)


def _watched(batches: Iterable[Any]) -> Iterator[Any]:
    """Count what goes elsewhere than to the terminal of who waits for it."""
    with progress("reading", None) as advance:
        for batch in batches:
            yield batch
            advance(batch.num_rows)


def _print_all(batches: Iterable[Any], record_format: RecordFormat) -> None:
    printer = PRINTERS[record_format]
    for batch in batches:
        for record in rows(batch):
            printer(record)


def rows(batch: Any) -> list[Record]:
    """The records of a ``pyarrow.RecordBatch``, times as text in UTC to the nanosecond."""
    import pyarrow as pa

    index = batch.schema.get_field_index("timestamp")
    if index >= 0:
        nanoseconds = batch.column(index).cast(pa.int64()).to_pylist()
        texts = pa.array([_time_text(number) for number in nanoseconds], pa.string())
        batch = batch.set_column(index, "timestamp", texts)
    found: list[Record] = batch.to_pylist()
    return found


def print_json_record(record: Record) -> None:
    """A record as one JSON object; bytes that are not UTF-8 become ``<name>_base64``.

    So do the values of all headers of a record if one of them is not.
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
    """A record as one line; long values are cut."""
    print_line("  ".join(_column_text(name, value) for name, value in record.items()).rstrip())


def print_raw_record(record: Record) -> None:
    """The bytes of the value and a line end; nothing for a null value."""
    if record["value"] is not None:
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
        return printable(" ".join(f"{key}={_escaped(content)}" for key, content in value or ()))
    if value is None:
        return "-"
    return printable(_escaped(value) if isinstance(value, bytes) else str(value))


def printable(text: str) -> str:
    """Text that cannot steer a terminal, cut to a line's worth."""
    safe = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return safe if len(safe) <= VALUE_CHARACTERS else safe[: VALUE_CHARACTERS - 1] + "…"


def _time_text(nanoseconds: int) -> str:
    """ISO 8601 with all nine digits."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _escaped(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
