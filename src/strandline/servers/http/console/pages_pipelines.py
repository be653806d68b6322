"""The page of pipelines, and of other queries that commit their progress to a group.

A pipeline, or a streaming query of Spark with a ``group``, commits its progress to a consumer group
without members. A pipeline that fails commits its error there, too. Brokers know nothing else about
pipelines.
"""

from typing import Final, NamedTuple

from strandline.api.groups import GroupInfo
from strandline.client.client import Client
from strandline.errors import NotAllowedError, StrandlineError, UnknownGroupError
from strandline.servers.http.console.cluster_queries import stream_rows
from strandline.servers.http.console.pages_groups import (
    NATS_PREFIX,
    ProgressRow,
    partition_extents,
    progress_rows,
)
from strandline.servers.http.console.request import ConsoleRequest, ConsoleRoute, Page

SHOWN_MAX: Final = 200
"""Pipelines on the page; each costs a call."""
READS_MAX: Final = 64
"""Partitions whose oldest unread record is looked up; each costs a read of one record."""


class PipelineRow(NamedTuple):
    """A pipeline as a row of the page."""

    name: str
    streams: tuple[str, ...]
    committed: int
    """The sum of the pipeline's committed offsets."""
    lag: int
    unread_s: float | None
    """The age of the oldest unread record; None if all records are read, or if unknown."""
    error: str
    """The error with which the pipeline ended; empty if it did not fail, or runs again."""


def pipelines_page(request: ConsoleRequest) -> Page:
    """Return the pipelines: failed ones first, then by the age of the oldest unread record."""
    client = request.client
    extents = partition_extents(stream_rows(client))
    wanted = request.query["q"].lower()
    names = [
        each.group
        for each in client.groups.list()
        if not each.members
        and not each.group.startswith(NATS_PREFIX)
        and wanted in each.group.lower()
    ]
    rows, reads = [], READS_MAX
    for name in names[:SHOWN_MAX]:
        info = _info(client, name)
        if info is None or not (info.positions or info.metadata):
            continue  # the group has committed nothing, or the user may not see it
        progress = progress_rows(info, extents)
        behind = [row for row in progress if row.lag]
        rows.append(_row(request, info, progress, behind=behind[:reads]))
        reads = max(0, reads - len(behind))
    rows.sort(key=lambda row: (not row.error, -(row.unread_s or 0), -row.lag, row.name))
    totals = {row.name: row.committed for row in rows}
    values = {
        "rows": rows,
        "rates": request.rates.observe("pipeline", totals, request.now_ms),
        "count": len(names),
        "shown_max": SHOWN_MAX,
        "q": request.query["q"],
    }
    return Page("pipelines.html", values)


def _info(client: Client, name: str) -> GroupInfo | None:
    try:
        return client.groups.info(name)
    except (NotAllowedError, UnknownGroupError):
        return None


def _row(
    request: ConsoleRequest,
    info: GroupInfo,
    progress: list[ProgressRow],
    *,
    behind: list[ProgressRow],
) -> PipelineRow:
    times = [_stored_ns(request.client, row) for row in behind]
    oldest = min((at_ns for at_ns in times if at_ns is not None), default=None)
    return PipelineRow(
        info.group,
        tuple(sorted({row.stream for row in progress})),
        sum(row.offset or 0 for row in progress),
        sum(row.lag or 0 for row in progress),
        None if oldest is None else max(0.0, (request.now_ns - oldest) / 1e9),
        info.metadata,
    )


def _stored_ns(client: Client, row: ProgressRow) -> int | None:
    """Return when the first unread record of a partition was stored; None if unknown."""
    try:
        found = client.read(
            row.stream,
            partition=row.partition,
            start=row.offset or 0,
            records_max=1,
            columns=["timestamp"],
        ).read_all()
    except StrandlineError:
        return None  # the record was deleted or may not be read; the lag is shown without an age
    return int(found["timestamp"].cast("int64")[0].as_py()) if found.num_rows else None


ROUTES = [ConsoleRoute("GET", "/pipelines", pipelines_page)]
