"""The pages of streams: the list, one stream, and the forms that create and delete."""

import contextlib
from typing import Any, Final
from urllib.parse import quote

from strandline.errors import InvalidRequestError, NotAllowedError, UnavailableError
from strandline.security.principal import INTERNAL_PREFIX
from strandline.servers.http.console import formatting
from strandline.servers.http.console.cluster_queries import StreamRow, stream_rows, stream_view
from strandline.servers.http.console.request import (
    ConsoleRequest,
    ConsoleRoute,
    Fields,
    Page,
    Redirect,
)
from strandline.values.schema import SchemaVersion

SHOWN_MAX: Final = 200
PARTITIONS_MAX_SHOWN: Final = 500
NOTES: Final = {
    "created": "The stream was created.",
    "deleted": "The stream was deleted.",
    "purged": "The records were deleted.",
}
"""Messages after a change. The page's address names one, so it cannot bring its own text."""
CHOICES: Final = {
    "partition_by": ("", "suffix", "subject", "key", "message_id"),
    "acks": ("", "memory", "disk", "replicated"),
    "compression": ("none", "zstd", "lz4"),
}
DURATIONS: Final = {
    "retention_age_ms",
    "tombstone_delay_ms",
    "segment_age_ms",
    "dedup_window_ms",
    "auto_pause_ms",
}
SIZES: Final = {"retention_bytes", "segment_bytes"}
UNLIMITED: Final = {
    "retention_age_ms",
    "retention_bytes",
    "retention_records",
    "max_records_per_subject",
}
"""Settings for which 0 means no limit."""


def list_page(request: ConsoleRequest) -> Page:
    """Return the streams whose name or subject contains the searched text."""
    rows = stream_rows(request.client)
    rates = request.rates.of_streams(rows, request.now_ms)
    wanted, has_internal = request.query["q"].lower(), "internal" in request.query
    found = [row for row in rows if _matches(row, wanted, has_internal=has_internal)]
    found = _sorted(found, request.query["sort"] or "name", rates)
    values = {
        "rows": found[:SHOWN_MAX],
        "rates": rates,
        "count": len(found),
        "total": sum(not _is_internal(row) for row in rows),
        "q": request.query["q"],
        "sort": request.query["sort"] or "name",
        "has_internal": has_internal,
        "note": NOTES.get(request.query["note"], ""),
    }
    return Page("streams.html", values)


def _matches(row: StreamRow, wanted: str, *, has_internal: bool) -> bool:
    if _is_internal(row) and not has_internal:
        return False
    return wanted in row.config.name.lower() or wanted in row.config.subject.lower()


def _is_internal(row: StreamRow) -> bool:
    return row.config.name.startswith(INTERNAL_PREFIX)


def _sorted(rows: list[StreamRow], by: str, rates: dict[str, float | None]) -> list[StreamRow]:
    keys = {
        "records": lambda row: -row.records,
        "size": lambda row: -row.size_bytes,
        "rate": lambda row: -(rates.get(row.config.name) or 0.0),
        "partitions": lambda row: -len(row.partitions),
    }
    return sorted(rows, key=keys[by]) if by in keys else rows


def stream_page(request: ConsoleRequest) -> Page:
    """Return one stream with its partitions and settings."""
    view = stream_view(request.client, request.path["name"])
    rates = request.rates.of_streams([view.row], request.now_ms)
    values = {
        "row": view.row,
        "name": view.row.config.name,
        "partitions": view.partitions[:PARTITIONS_MAX_SHOWN],
        "hidden": max(0, len(view.partitions) - PARTITIONS_MAX_SHOWN),
        "rate": rates[view.row.config.name],
        "settings": settings_of(view.row),
        "schema": _schema_of(request),
        "note": NOTES.get(request.query["note"], ""),
        "form": request.form,
    }
    return Page("stream.html", values)


def _schema_of(request: ConsoleRequest) -> SchemaVersion | None:
    """Return the newest version of a stream's schema; None if there is none to show."""
    # Without a controller the rest of the page is still useful.
    with contextlib.suppress(NotAllowedError, UnavailableError):
        versions = request.client.schemas.list(request.path["name"])
        return versions[-1] if versions else None
    return None


def settings_of(row: StreamRow) -> list[tuple[str, str]]:
    """Return a stream's settings, with values in units for people."""
    config, found = row.config, []
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if name in ("name", "description", "partitions"):
            continue
        if name == "acks":
            value = config.acks_in_force
        elif name == "partition_by":
            value = config.partition_rule
        found.append((name.removesuffix("_ms"), _setting(name, value)))
    return found


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == 0 and name in UNLIMITED:
        return "unlimited"
    if name in DURATIONS:
        return formatting.duration(value / 1e3) if value else "off"
    if name in SIZES:
        return formatting.size(value)
    return f"{value:,}" if isinstance(value, int) else str(value or "-")


def create_page(request: ConsoleRequest) -> Page:
    """Return the form that creates a stream."""
    return Page("stream_create.html", {"form": request.form, "choices": CHOICES})


def create(request: ConsoleRequest) -> Redirect:
    """Create a stream, with the same checks as in the CLI."""
    values = config_values(request.form)
    name = values.pop("name")
    request.client.create_stream(name, **values)
    return Redirect(f"/streams/{quote(name, safe='')}?note=created")


def config_values(form: Fields) -> dict[str, Any]:
    """Return the settings of a form whose fields are not empty.

    Raises:
        InvalidRequestError: a number, size or duration is not valid.
    """
    if "name" not in form:
        raise InvalidRequestError("name: give the stream a name")
    found: dict[str, Any] = {"name": form["name"]}
    for field in ("subject", "partition_by", "queue_group", "acks", "compression", "description"):
        if field in form:
            found[field] = form[field]
    for field in (
        "partitions",
        "replicas",
        "min_isr",
        "retention_records",
        "max_records_per_subject",
    ):
        if field in form:
            found[field] = formatting.parse_count(form[field], field.replace("_", " "))
    for field in ("retention_age", "dedup_window"):
        if field in form:
            found[f"{field}_ms"] = formatting.parse_duration(form[field], field.replace("_", " "))
    for field in ("retention_bytes", "segment_bytes"):
        if field in form:
            found[field] = formatting.parse_size(form[field], field.replace("_", " "))
    for field in ("compact", "encryption", "schema_validation"):
        if field in form:
            found[field] = True
    return found


def delete_page(request: ConsoleRequest) -> Page:
    """Return the form that deletes a stream."""
    view = stream_view(request.client, request.path["name"])
    return Page("stream_delete.html", {"row": view.row, "name": view.row.config.name})


def delete(request: ConsoleRequest) -> Redirect:
    """Delete a stream whose name was typed as a confirmation."""
    name = request.path["name"]
    if request.form["confirmed_name"] != name:
        raise InvalidRequestError(f"type the name of the stream, {name}, to delete it")
    request.client.delete_stream(name)
    return Redirect("/streams?note=deleted")


def delete_records(request: ConsoleRequest) -> Redirect:
    """Delete a partition's records below an offset."""
    name = request.path["name"]
    before, partition = request.form.number("before"), request.form.number("partition", 0)
    if before is None or partition is None:
        raise InvalidRequestError("before: give the first offset to keep")
    if "confirmed" not in request.form:
        raise InvalidRequestError("tick the box to confirm that the records are to be deleted")
    request.client.delete_records(name, before, partition=partition)
    return Redirect(f"/streams/{quote(name, safe='')}?note=purged")


ROUTES = [
    ConsoleRoute("GET", "/streams", list_page),
    ConsoleRoute("GET", "/create-stream", create_page),
    ConsoleRoute("POST", "/create-stream", create, create_page),
    ConsoleRoute("GET", "/streams/{name}", stream_page),
    ConsoleRoute("GET", "/streams/{name}/delete", delete_page),
    ConsoleRoute("POST", "/streams/{name}/delete", delete, delete_page),
    ConsoleRoute("POST", "/streams/{name}/delete-records", delete_records, stream_page),
]
