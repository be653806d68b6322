"""The page of traces: elections and writes as a space-time diagram."""

from typing import Any

from strandline.api.monitoring import READ_TRACE
from strandline.errors import InvalidRequestError
from strandline.servers.http.console.cluster_queries import answers_of_all
from strandline.servers.http.console.request import (
    NOT_ABOUT_A_FIELD,
    ConsoleRequest,
    ConsoleRoute,
    Download,
    Page,
)
from strandline.servers.http.console.spacetime import (
    Diagram,
    TracedEvent,
    diagram,
    parse_trace,
)

EMPTY = Diagram(0, 0, [], [], [], 0)


def trace_page(request: ConsoleRequest) -> Page:
    """Return the diagram of the brokers' traces."""
    wanted = request.query["q"]
    values: dict[str, Any] = {"q": wanted, "form": request.form, "is_own": False}
    try:
        return Page("trace.html", {**values, "diagram": diagram(_events(request), wanted)})
    except NOT_ABOUT_A_FIELD:
        raise
    except InvalidRequestError as error:
        return Page("trace.html", {**values, "diagram": EMPTY, "problem": error.message}, 400)


def own_trace(request: ConsoleRequest) -> Page:
    """Return the diagram of a trace that the user pasted, such as a simulation's."""
    wanted = request.form["q"]
    drawn = diagram(parse_trace(request.form.raw("trace")), wanted)
    return Page("trace.html", {"q": wanted, "form": request.form, "is_own": True, "diagram": drawn})


def export(request: ConsoleRequest) -> Download:
    """Return the brokers' traces in the format of ShiViz."""
    lines = [f"{each.host} {_clock(each)}\n{each.text}\n" for each in _events(request)]
    return Download("".join(lines).encode(), "strandline.trace", "text/plain; charset=utf-8")


def _clock(event: TracedEvent) -> str:
    parts = (f'"{host}":{number}' for host, number in sorted(event.clock.items()))
    return "{" + ",".join(parts) + "}"


def _events(request: ConsoleRequest) -> list[TracedEvent]:
    answers = answers_of_all(request.client, READ_TRACE, None)
    events = parse_trace("".join(found.text for [found] in answers.values()))
    return sorted(events, key=lambda each: (each.rank, each.host))


ROUTES = [
    ConsoleRoute("GET", "/trace", trace_page),
    ConsoleRoute("GET", "/trace/export", export),
    ConsoleRoute("POST", "/trace", own_trace, trace_page),
]
