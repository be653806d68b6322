"""The page of traces: elections and writes as a space-time diagram."""

from typing import Any

from strandline.api.monitoring import READ_TRACE
from strandline.errors import InvalidRequestError
from strandline.servers.http.console.gather import answers_of_all
from strandline.servers.http.console.spacetime import (
    Diagram,
    TracedEvent,
    diagram,
    parse_trace,
)
from strandline.servers.http.console.visit import (
    NOT_ABOUT_A_FIELD,
    ConsoleRoute,
    Download,
    Page,
    Visit,
)

EMPTY = Diagram(0, 0, [], [], [], 0)


def trace_page(visit: Visit) -> Page:
    """Return the diagram of what the brokers have traced."""
    wanted = visit.query["q"]
    values: dict[str, Any] = {"q": wanted, "form": visit.form, "is_own": False}
    try:
        return Page("trace.html", {**values, "diagram": diagram(_events(visit), wanted)})
    except NOT_ABOUT_A_FIELD:
        raise
    except InvalidRequestError as error:
        return Page("trace.html", {**values, "diagram": EMPTY, "problem": error.message}, 400)


def own_trace(visit: Visit) -> Page:
    """Return the diagram of a trace that was pasted, such as a simulation's."""
    wanted = visit.form["q"]
    drawn = diagram(parse_trace(visit.form.raw("trace")), wanted)
    return Page("trace.html", {"q": wanted, "form": visit.form, "is_own": True, "diagram": drawn})


def export(visit: Visit) -> Download:
    """Return what the brokers have traced, as ShiViz reads it."""
    lines = [f"{each.host} {_clock(each)}\n{each.text}\n" for each in _events(visit)]
    return Download("".join(lines).encode(), "strandline.trace", "text/plain; charset=utf-8")


def _clock(event: TracedEvent) -> str:
    parts = (f'"{host}":{number}' for host, number in sorted(event.clock.items()))
    return "{" + ",".join(parts) + "}"


def _events(visit: Visit) -> list[TracedEvent]:
    answers = answers_of_all(visit.client, READ_TRACE, None)
    events = parse_trace("".join(found.text for [found] in answers.values()))
    return sorted(events, key=lambda each: (each.rank, each.host))


ROUTES = [
    ConsoleRoute("GET", "/trace", trace_page),
    ConsoleRoute("GET", "/trace/export", export),
    ConsoleRoute("POST", "/trace", own_trace, trace_page),
]
