"""The pages of consumer groups and durable NATS consumers: members, lag and reset."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from strandline.api.groups import GroupInfo, GroupSummary, next_offset
from strandline.client.client import Client
from strandline.errors import InvalidRequestError, NotAllowedError, UnknownGroupError
from strandline.servers.http.console.cluster_queries import StreamRow, stream_rows
from strandline.servers.http.console.formatting import parse_time
from strandline.servers.http.console.records import positions_of, positions_text
from strandline.servers.http.console.request import (
    NOT_ABOUT_A_FIELD,
    ConsoleRequest,
    ConsoleRoute,
    Page,
    Redirect,
)
from strandline.types import PartitionName

SHOWN_MAX: Final = 200
"""Groups on the list; each costs a call."""
NATS_PREFIX: Final = "js/"
"""The prefix of the names of groups that store durable NATS consumers."""
NOTES: Final = {"reset": "The committed offsets were set.", "deleted": "The group was deleted."}
RESETS: Final = (
    ("earliest", "the first record"),
    ("latest", "the end"),
    ("time", "a time"),
    ("offset", "an offset"),
)


class GroupRow(NamedTuple):
    """A group on the list."""

    name: str
    shown: str
    is_nats: bool
    members: int
    streams: tuple[str, ...]
    lag: int | None
    """None if unknown."""
    committed: int
    """The sum of the group's committed offsets."""
    error: str = ""


class ProgressRow(NamedTuple):
    """A group's progress in one partition."""

    stream: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    member: str

    @property
    def is_beyond(self) -> bool:
        """Whether the committed offset is beyond the end of the log."""
        return self.offset is not None and self.end is not None and self.offset > self.end


def list_page(request: ConsoleRequest) -> Page:
    """Return the groups whose name or streams contain the searched text."""
    extents = partition_extents(stream_rows(request.client))
    summaries = request.client.groups.list()
    wanted = request.query["q"].lower()
    found = [each for each in summaries if wanted in each.group.lower()]
    rows = [_group_row(request.client, each, extents) for each in found[:SHOWN_MAX]]
    rates = request.rates.observe(
        "group", {row.name: row.committed for row in rows}, request.now_ms
    )
    values = {
        "rows": rows,
        "rates": rates,
        "count": len(found),
        "total": len(summaries),
        "q": request.query["q"],
        "note": NOTES.get(request.query["note"], ""),
    }
    return Page("groups.html", values)


def _group_row(
    client: Client, summary: GroupSummary, extents: Mapping[PartitionName, range]
) -> GroupRow:
    name, members = summary.group, summary.members
    is_nats = name.startswith(NATS_PREFIX)
    shown = name.removeprefix(NATS_PREFIX)
    try:
        info = client.groups.info(name)
    except (NotAllowedError, UnknownGroupError) as error:
        return GroupRow(name, shown, is_nats, members, (), None, 0, error.message)
    rows = progress_rows(info, extents)
    lags = [row.lag for row in rows if row.lag is not None]
    streams = sorted({row.stream for row in rows})
    committed = sum(row.offset or 0 for row in rows)
    return GroupRow(
        name, shown, is_nats, members, tuple(streams), sum(lags) if lags else None, committed
    )


def partition_extents(rows: Iterable[StreamRow]) -> dict[PartitionName, range]:
    """Return each partition's offsets, from its log start offset to its high watermark."""
    return {
        PartitionName(row.config.name, part.partition): range(
            part.log_start_offset, part.high_watermark
        )
        for row in rows
        for part in row.partitions
    }


def progress_rows(info: GroupInfo, extents: Mapping[PartitionName, range]) -> list[ProgressRow]:
    """Return a row for each partition that has a committed offset or a member."""
    members = {
        PartitionName(stream, number): member.instance or member.member
        for member in info.members
        for held in (member.assigned, member.revoking)
        for stream, numbers in held.items()
        for number in numbers
    }
    committed = {
        PartitionName(stream, number): offset
        for stream, offsets in info.positions.items()
        for number, offset in offsets.items()
    }
    rows = []
    for name in sorted({*members, *committed}):
        offset, extent = committed.get(name), extents.get(name)
        end, lag = None if extent is None else extent.stop, None
        if extent is not None and offset is not None:
            lag = extent.stop - next_offset(offset, extent.start, extent.stop)
        rows.append(ProgressRow(*name, offset, end, lag, members.get(name, "")))
    return rows


def group_page(request: ConsoleRequest) -> Page:
    """Return one group: members, progress, and the preview of a reset."""
    name = request.query["name"] or request.form["name"]
    info = request.client.groups.info(name)
    streams = stream_rows(request.client)
    rows = progress_rows(info, partition_extents(streams))
    rates = request.rates.observe(
        "group", {name: sum(row.offset or 0 for row in rows)}, request.now_ms
    )
    lags = [row.lag for row in rows if row.lag is not None]
    values: dict[str, Any] = {
        "info": info,
        "name": name,
        "shown": name.removeprefix(NATS_PREFIX),
        "is_nats": name.startswith(NATS_PREFIX),
        "rows": rows,
        "lag": sum(lags) if lags else None,
        "rate": rates[name],
        "streams": sorted({row.stream for row in rows}),
        "resets": RESETS,
        "query_fields": request.query,
        "preview": [],
        "offsets": "",
        "note": NOTES.get(request.query["note"], ""),
    }
    if "stream" in request.query:
        values |= _preview(request, rows)
    return Page("group.html", values)


def _preview(request: ConsoleRequest, rows: list[ProgressRow]) -> dict[str, Any]:
    """Return what a reset would change, without changing it."""
    try:
        wanted = _wanted_offsets(request)
    except NOT_ABOUT_A_FIELD:
        raise
    except InvalidRequestError as error:
        return {"problem": error.message}
    before = {(row.stream, row.partition): row for row in rows}
    stream = request.query["stream"]
    preview = []
    for number, offset in sorted(wanted.items()):
        row = before.get((stream, number))
        now = row.offset if row is not None else None
        preview.append((number, now, offset, None if now is None else offset - now))
    return {"preview": preview, "offsets": positions_text(wanted)}


def _wanted_offsets(request: ConsoleRequest) -> dict[int, int]:
    """Return the offset for each partition that a reset would set.

    Raises:
        InvalidRequestError: a field is not valid.
    """
    query, stream = request.query, request.query["stream"]
    to, partition = query["to"], query.number("partition")
    if to in ("earliest", "latest"):
        found = request.client.offsets(stream, to)
    elif to == "time":
        found = request.client.offsets(stream, parse_time(query["at"], request.now_ns))
    elif to == "offset":
        at = query.number("at")
        if at is None or partition is None:
            raise InvalidRequestError("an offset applies to one partition: give both")
        found = {partition: at}
    else:
        raise InvalidRequestError(f"to must be earliest, latest, time or offset, got {to!r}")
    if partition is not None:
        found = {number: offset for number, offset in found.items() if number == partition}
        if not found:
            raise InvalidRequestError(
                f"stream {stream!r} has no partition {partition}; its page shows those it has"
            )
    return found


def reset(request: ConsoleRequest) -> Redirect:
    """Set the committed offsets that the user saw in a preview."""
    form = request.form
    name, stream = form["name"], form["stream"]
    offsets = positions_of(form["offsets"])
    if not offsets:
        raise InvalidRequestError("offsets: there is nothing to set")
    ends = request.client.offsets(stream)
    for number, offset in offsets.items():
        if offset > ends.get(number, -1):
            raise InvalidRequestError(
                f"offset {offset} is beyond the end of {stream}/{number}; make the preview again"
            )
    request.client.groups.commit(
        name, {PartitionName(stream, number): offset for number, offset in offsets.items()}
    )
    return Redirect(f"/group?{urlencode({'name': name, 'note': 'reset'})}")


def delete(request: ConsoleRequest) -> Redirect:
    """Delete a group without members."""
    if "confirmed" not in request.form:
        raise InvalidRequestError("tick the box to confirm that the group is to be deleted")
    request.client.groups.delete(request.form["name"])
    return Redirect("/groups?note=deleted")


ROUTES = [
    ConsoleRoute("GET", "/groups", list_page),
    ConsoleRoute("GET", "/group", group_page),
    ConsoleRoute("POST", "/group/reset", reset, group_page),
    ConsoleRoute("POST", "/group/delete", delete, group_page),
]
