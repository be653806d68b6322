"""The pages of a stream's records: browse, follow, publish, download."""

import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from strandline.api.admin import StreamInfo
from strandline.errors import InvalidRequestError, OffsetOutOfRangeError, UnavailableError
from strandline.servers.http.console.decoding import SchemaDecoder, key_text
from strandline.servers.http.console.export import FORMATS
from strandline.servers.http.console.formatting import parse_time
from strandline.servers.http.console.records import (
    DOWNLOAD_BYTES_MAX,
    DOWNLOAD_RECORDS_MAX,
    DOWNLOAD_S,
    PAGE_RECORDS,
    PAGE_RECORDS_MAX,
    PARTITIONS_AT_ONCE,
    Budget,
    ConsoleRecord,
    RecordPage,
    RecordQuery,
    RecordReader,
    chosen_partitions,
    positions_of,
    positions_text,
    search_budget,
)
from strandline.servers.http.console.request import (
    NOT_ABOUT_A_FIELD,
    ConsoleRequest,
    ConsoleRoute,
    Download,
    JsonAnswer,
    Page,
    Redirect,
)
from strandline.values.schema import SchemaVersion

STARTS: Final = (
    ("newest", "the newest"),
    ("oldest", "the oldest"),
    ("offset", "an offset"),
    ("time", "a time"),
)
DECODINGS: Final = (("auto", "by schema, or as they look"), ("text", "text"), ("hex", "bytes"))
HOW_MANY: Final = ((50, "50"), (100, "100"), (200, "200"))
TAIL_RECORDS: Final = 100
TAIL_BEHIND_MAX: Final = 1000
"""A tail that is further behind in a partition skips records."""


def records_page(request: ConsoleRequest) -> Page:
    """Return a page of records, from given offsets in either direction."""
    name, query = request.path["name"], request.query
    values: dict[str, Any] = {
        "name": name,
        "query_fields": query,
        "starts": STARTS,
        "decodings": DECODINGS,
        "how_many": HOW_MANY,
        "formats": [(key, label) for key, (label, _, _) in FORMATS.items()],
        "partitions_at_once": PARTITIONS_AT_ONCE,
    }
    info = request.client.stream_info(name)
    values |= {"count": len(info.partitions), "config": info.config}
    empty = RecordPage([], {}, is_cut=False, is_end=True)
    try:
        reading = _reading(request, info, is_tail="tail" in query)
        found = reading.read(min(query.number("count", PAGE_RECORDS) or 1, PAGE_RECORDS_MAX))
    except NOT_ABOUT_A_FIELD:
        raise
    except InvalidRequestError as error:
        values |= {**_shown(request, empty), "problem": error.message}
        return Page("records.html", values, 400)
    values |= _shown(request, found)
    values["tail_positions"] = positions_text(
        {part.partition: part.high_watermark for part in reading.partitions}
    )
    return Page("records.html", values)


class PageRead(NamedTuple):
    """The read that a page's fields describe."""

    reader: RecordReader
    partitions: list[Any]
    positions: dict[int, int]
    is_newest_first: bool

    def read(self, count: int) -> RecordPage:
        """Return the page's records."""
        read = self.reader.newest if self.is_newest_first else self.reader.oldest
        return read(self.positions, count)


def _reading(
    request: ConsoleRequest,
    info: StreamInfo,
    *,
    budget: Budget | None = None,
    is_tail: bool = False,
) -> PageRead:
    """Return the read that the fields of a query describe.

    Raises:
        InvalidRequestError: a field is not valid.
    """
    query = request.query
    partitions = chosen_partitions(info.partitions, query)
    wanted = RecordQuery(query["subject"], query["key"], query["header"], query["text"])
    budget = budget or search_budget(request.clock)
    reader = RecordReader(request.client, info.name, partitions, wanted=wanted, budget=budget)
    start = "newest" if is_tail else query["start"] or "newest"
    if "positions" in query:
        positions = positions_of(query["positions"])
    else:
        numbers = [part.partition for part in partitions]
        positions = _first_positions(request, info.name, start, numbers=numbers)
    return PageRead(reader, partitions, positions, start == "newest")


def _first_positions(
    request: ConsoleRequest, name: str, start: str, *, numbers: list[int]
) -> dict[int, int]:
    """Return the offsets where a page begins; empty: at each partition's first or last record."""
    at = request.query["at"]
    if start == "offset":
        return dict.fromkeys(numbers, request.query.number("at", 0) or 0)
    if start == "time":
        return request.client.offsets(name, parse_time(at, request.now_ns))
    if start not in ("newest", "oldest"):
        raise InvalidRequestError(f"start must be newest, oldest, offset or time, got {start!r}")
    return {}


def _shown(request: ConsoleRequest, found: RecordPage) -> dict[str, Any]:
    """Return the values for the template that show records."""
    query = request.query
    kept = query.without("positions", "tail", "note")
    more = "" if found.is_end else urlencode({**kept, "positions": positions_text(found.positions)})
    return {
        "rows": rows_of(request, found.records),
        "is_cut": found.is_cut,
        "more": more,
        "filters": urlencode(kept),
        "tail_positions": "",
    }


class RecordRow(NamedTuple):
    """A record as a row of the page."""

    record: ConsoleRecord
    key: str
    value: Any
    headers: list[tuple[str, str]]


def rows_of(request: ConsoleRequest, records: Sequence[ConsoleRecord]) -> list[RecordRow]:
    """Return records as rows of text, with values decoded by the schema of their stream."""
    how = request.query["decode"] or "auto"
    versions: Sequence[SchemaVersion] = ()
    if records and how == "auto":
        # Without a controller there is no schema: the format of values is guessed.
        with contextlib.suppress(UnavailableError):
            versions = request.client.schemas.list(request.path["name"])
    decoder = SchemaDecoder(versions)
    return [
        RecordRow(
            record,
            key_text(record.key),
            decoder.decoded(record.value, how),
            [(name, key_text(value)) for name, value in record.headers],
        )
        for record in records
    ]


def tail(request: ConsoleRequest) -> JsonAnswer:
    """Return the records stored since the previous call, as rows of the table."""
    from strandline.servers.http.console.templates import render

    info = request.client.stream_info(request.path["name"])
    reading = _reading(request, info)
    positions = {
        part.partition: max(
            reading.positions.get(part.partition, part.high_watermark),
            part.high_watermark - TAIL_BEHIND_MAX,
        )
        for part in reading.partitions
    }
    found = reading.reader.oldest(positions, TAIL_RECORDS)
    rows = rows_of(request, found.records[::-1])
    html = render("records_rows.html", {"rows": rows, "name": info.name})
    return JsonAnswer({"rows": html, "positions": positions_text(found.positions)})


def value(request: ConsoleRequest) -> Download:
    """Return a record's whole value as a file."""
    name = request.path["name"]
    partition, offset = request.query.number("partition", 0), request.query.number("offset", 0)
    assert partition is not None, "it has a default"
    assert offset is not None, "it has a default"
    batches = request.client.read(
        name, partition=partition, start=offset, records_max=1, columns=("offset", "value")
    )
    for batch in batches:
        if batch.column("offset")[0].as_py() == offset:
            body = batch.column("value")[0].as_py() or b""
            return Download(body, f"{name}-{partition}-{offset}", "application/octet-stream")
    raise OffsetOutOfRangeError(f"{name}/{partition} has no record at offset {offset}")


def download(request: ConsoleRequest) -> Download:
    """Return the records that a page's fields describe as a file."""
    how = request.query["format"] or "jsonl"
    if how not in FORMATS:
        raise InvalidRequestError(f"format must be one of {', '.join(FORMATS)}, got {how!r}")
    count = request.query.number("records", 1000) or 1
    if count > DOWNLOAD_RECORDS_MAX:
        raise InvalidRequestError(
            f"records: at most {DOWNLOAD_RECORDS_MAX:,} at once, got {count:,}; for more use "
            "'strandline read'"
        )
    info = request.client.stream_info(request.path["name"])
    budget = Budget(
        request.clock,
        records=10 * DOWNLOAD_RECORDS_MAX,
        size_bytes=DOWNLOAD_BYTES_MAX,
        seconds=DOWNLOAD_S,
    )
    found = _reading(request, info, budget=budget).read(count)
    _, media_type, encode = FORMATS[how]
    # The name of a file that lacks records because of the limits says so.
    part = ".part" if found.is_cut else ""
    return Download(encode(found.records), f"{info.name}{part}.{how}", media_type)


def publish_page(request: ConsoleRequest) -> Page:
    """Return the form that publishes a record."""
    info = request.client.stream_info(request.path["name"], of_leaders=False)
    partition, offset = request.query.number("partition"), request.query.number("offset")
    values = {
        "name": info.name,
        "config": info.config,
        "count": len(info.partitions),
        "form": request.form,
        "stored": None if partition is None or offset is None else (partition, offset),
    }
    return Page("publish.html", values)


def publish(request: ConsoleRequest) -> Redirect:
    """Append a record and wait for its ack."""
    name, form = request.path["name"], request.form
    ack = request.client.append(
        name,
        None if "tombstone" in form else form.raw("value"),
        key=form["key"] or None,
        subject=form["subject"] or None,
        headers=_headers(form.raw("headers")),
        partition=form.number("partition"),
        message_id=form["message_id"] or None,
        timeout_s=10.0,
    )
    return Redirect(
        f"/streams/{quote(name, safe='')}/publish?partition={ack.partition}&offset={int(ack)}"
    )


def _headers(text: str) -> list[tuple[str, bytes]]:
    """Parse headers, one a line.

    Raises:
        InvalidRequestError: a line is not of the form ``name: value``.
    """
    found = []
    for line in filter(str.strip, text.splitlines()):
        name, separator, content = line.partition(":")
        if not separator or not name.strip():
            raise InvalidRequestError(f"headers: {line[:80]!r} is not a header; write name: value")
        found.append((name.strip(), content.strip().encode()))
    return found


ROUTES = [
    ConsoleRoute("GET", "/streams/{name}/records", records_page),
    ConsoleRoute("GET", "/streams/{name}/tail", tail),
    ConsoleRoute("GET", "/streams/{name}/value", value),
    ConsoleRoute("GET", "/streams/{name}/download", download),
    ConsoleRoute("GET", "/streams/{name}/publish", publish_page),
    ConsoleRoute("POST", "/streams/{name}/publish", publish, publish_page),
]
