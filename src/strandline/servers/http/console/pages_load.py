"""The pages Load and Events."""

from collections.abc import Callable
from typing import Final, NamedTuple

from markupsafe import Markup

from strandline.api.monitoring import LIST_EVENTS, METRIC_HISTORY, ClusterEvent, HistorySample
from strandline.servers.http.console import formatting
from strandline.servers.http.console.cluster_queries import answers_of_all, cluster_view
from strandline.servers.http.console.graphs import COLOURS, Line, graph
from strandline.servers.http.console.request import ConsoleRequest, ConsoleRoute, Page

HOUR_S: Final = 3600.0
SPAN_S_MIN: Final = 300.0
SAME_NS: Final = 12_000_000_000
"""Brokers notice one event at different times: equal events within this time are one."""
SHOWN_MAX: Final = 500
KINDS: Final = (
    *("election", "isr", "move", "controller", "broker"),
    *("stream", "group", "corruption", "storage", "refusal"),
)


class GraphSpec(NamedTuple):
    """A graph of the load page."""

    title: str
    value: Callable[[HistorySample], float]
    unit: Callable[[float], str]
    is_binary: bool = False


def _percent(value: float) -> str:
    return f"{value * 100:,.0f} %"


def _per_s(value: float) -> str:
    return f"{formatting.number(value)}/s"


def _size_per_s(value: float) -> str:
    return f"{formatting.size(value)}/s"


def _ms(value: float) -> str:
    return f"{value:,.1f} ms"


GRAPHS: Final = (
    GraphSpec("Records stored", lambda it: it.records_per_s, _per_s),
    GraphSpec("Bytes stored", lambda it: it.bytes_per_s, _size_per_s, is_binary=True),
    GraphSpec("Records read", lambda it: it.read_records_per_s, _per_s),
    GraphSpec("Bytes read", lambda it: it.read_bytes_per_s, _size_per_s, is_binary=True),
    GraphSpec("Syncs", lambda it: it.syncs_per_s, _per_s),
    GraphSpec("Mean time of a sync", lambda it: it.sync_ms, _ms),
    GraphSpec("CPU of the process", lambda it: it.cpu_share, _percent),
    GraphSpec("Memory of the process", lambda it: it.memory_bytes, formatting.size, is_binary=True),
    GraphSpec("Waiting to be stored", lambda it: it.pending_bytes, formatting.size, is_binary=True),
    GraphSpec("Records that followers lack", lambda it: it.lag_records, formatting.number),
)


def load_page(request: ConsoleRequest) -> Page:
    """Return graphs of the last hour with one line for each broker."""
    answers = answers_of_all(request.client, METRIC_HISTORY, None)
    histories = sorted((info for [info] in answers.values()), key=lambda info: info.broker)
    until_s = request.now_ns / 1e9
    first_s = min((it.at_ns / 1e9 for info in histories for it in info.samples), default=until_s)
    span = (max(until_s - HOUR_S, min(first_s, until_s - SPAN_S_MIN)), until_s)
    graphs = []
    for spec in GRAPHS:
        lines = [
            Line(str(info.broker), [(it.at_ns / 1e9, spec.value(it)) for it in info.samples])
            for info in histories
        ]
        last = [line.points[-1][1] for line in lines if line.points]
        now = ", ".join(map(spec.unit, last)) or "no samples yet"
        title = f"{spec.title}; now {now}"
        drawn = graph(title, lines, span, unit=spec.unit, is_binary=spec.is_binary)
        graphs.append((spec.title, now, Markup(drawn)))  # noqa: S704 - has no text from outside
    values = {
        "graphs": graphs,
        "brokers": [(info.broker, number % COLOURS) for number, info in enumerate(histories)],
    }
    return Page("load.html", values)


class MergedEvent(NamedTuple):
    """An event, and the brokers that noticed it."""

    event: ClusterEvent
    seen_by: tuple[str, ...]


def events_page(request: ConsoleRequest) -> Page:
    """Return the events of all brokers, newest first."""
    view = cluster_view(request.client)
    names = {row.address: str(row.id) if view.is_cluster else "" for row in view.brokers}
    found = [
        (event, names.get(address, address))
        for address, events in answers_of_all(request.client, LIST_EVENTS, None).items()
        for event in events
    ]
    kind, wanted = request.query["kind"], request.query["q"].lower()
    merged = [
        each
        for each in merged_events(found)
        if kind in ("", each.event.kind)
        and wanted in f"{each.event.about} {each.event.text}".lower()
    ]
    values = {
        "events": merged[:SHOWN_MAX],
        "kinds": (("", "all"), *((each, each) for each in KINDS)),
        "kind": kind,
        "q": request.query["q"],
    }
    return Page("events.html", values)


def merged_events(found: list[tuple[ClusterEvent, str]]) -> list[MergedEvent]:
    """Return the events newest first; an event that several brokers noticed appears once.

    Events that each broker notices about itself, such as rejections, are not merged.
    """
    merged: list[MergedEvent] = []
    open_at: dict[tuple[str, ...], int] = {}
    for event, broker in sorted(found, key=lambda pair: pair[0].at_ns):
        of_itself = "" if event.about or event.kind == "controller" else broker
        key = (event.kind, event.about, event.text, of_itself)
        place = open_at.get(key)
        if place is not None:
            before = merged[place]
            is_near = event.at_ns - before.event.at_ns < SAME_NS
            if is_near and broker not in before.seen_by:
                merged[place] = before._replace(seen_by=(*before.seen_by, broker))
                continue
        open_at[key] = len(merged)
        merged.append(MergedEvent(event, (broker,)))
    return merged[::-1]


ROUTES = [
    ConsoleRoute("GET", "/load", load_page),
    ConsoleRoute("GET", "/events", events_page),
]
