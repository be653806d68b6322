"""Space-time diagrams of traces: one line for each host, a dot for each event, and arrows.

Rules: pure. Events are drawn in order of the sum of their vector clock, so that an arrow, which
means happens-before, points down. Transitive arrows are left out. docs/traces.md has the format.
"""

from typing import Annotated, Final, NamedTuple

import msgspec

from strandline.errors import UNDECODABLE, InvalidRequestError

EVENTS_MAX: Final = 200
HOSTS_MAX: Final = 24
TEXT_BYTES_MAX: Final = 256 << 10
LEFT: Final = 60
HOST_WIDTH: Final = 150
ROW_HEIGHT: Final = 26
TOP: Final = 46

_Clock = Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]], msgspec.Meta()]
_decoder = msgspec.json.Decoder(_Clock)


class TracedEvent(NamedTuple):
    """An event of a trace."""

    host: str
    clock: dict[str, int]
    text: str

    @property
    def number(self) -> int:
        """The event's number among those of its host, from 1."""
        return self.clock[self.host]

    @property
    def rank(self) -> int:
        """A number greater than that of every event that happened before this one."""
        return sum(self.clock.values())


class Dot(NamedTuple):
    """An event with its coordinates in the drawing."""

    x: int
    y: int
    event: TracedEvent


class Arrow(NamedTuple):
    """An arrow from an event to one that knows of it, as coordinates."""

    x1: int
    y1: int
    x2: int
    y2: int


class Diagram(NamedTuple):
    """A drawing and its size."""

    width: int
    height: int
    hosts: list[tuple[str, int]]
    """Names and horizontal coordinates of the hosts."""
    dots: list[Dot]
    arrows: list[Arrow]
    left_out: int
    """The number of older events that are not drawn."""


def parse_trace(text: str) -> list[TracedEvent]:
    """Parse a trace; an event that occurs twice, as in the files of two brokers, counts once.

    Raises:
        InvalidRequestError: the text is not a trace.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) % 2:
        raise InvalidRequestError("a trace has two lines for each event: host and clock, then text")
    found: dict[tuple[str, int], TracedEvent] = {}
    for head, what in zip(lines[::2], lines[1::2], strict=True):
        host, _, clock_text = head.partition(" ")
        try:
            event = TracedEvent(host, _decoder.decode(clock_text), what)
        except UNDECODABLE as error:
            raise InvalidRequestError(f"not a line of a trace: {head[:80]!r}") from error
        if event.clock.get(host, 0) < 1:
            raise InvalidRequestError(f"an event's clock lacks its own host: {head[:80]!r}")
        found.setdefault((host, event.number), event)
    return list(found.values())


def diagram(events: list[TracedEvent], wanted: str = "") -> Diagram:
    """Return a drawing of the newest events whose text contains ``wanted``.

    Raises:
        InvalidRequestError: there are too many hosts to draw.
    """
    chosen = sorted(
        (each for each in events if wanted.lower() in each.text.lower()),
        key=lambda each: (each.rank, each.host),
    )
    shown = chosen[-EVENTS_MAX:]
    names = sorted({each.host for each in shown})
    if len(names) > HOSTS_MAX:
        raise InvalidRequestError(
            f"the events are of {len(names)} hosts; at most {HOSTS_MAX} can be drawn: search for "
            "fewer"
        )
    places = {name: LEFT + HOST_WIDTH * number for number, name in enumerate(names)}
    dots = [
        Dot(places[each.host], TOP + ROW_HEIGHT * row, each) for row, each in enumerate(shown, 1)
    ]
    return Diagram(
        width=LEFT + HOST_WIDTH * max(1, len(names)) + 240,
        height=TOP + ROW_HEIGHT * (len(shown) + 1),
        hosts=list(places.items()),
        dots=dots,
        arrows=_arrows(dots),
        left_out=len(chosen) - len(shown),
    )


def _arrows(dots: list[Dot]) -> list[Arrow]:
    by_host: dict[str, list[Dot]] = {}
    arrows = []
    for dot in dots:
        event = dot.event
        before = by_host.setdefault(event.host, [])
        known = before[-1].event.clock if before else {}
        # The newest event of each other host of which this host did not know before.
        new = [
            source
            for host, others in by_host.items()
            if host != event.host
            and (source := _newest(others, event.clock.get(host, 0))) is not None
            and source.event.number > known.get(host, 0)
        ]
        arrows += [
            Arrow(source.x, source.y, dot.x, dot.y)
            for source in new
            if not any(_knows(other.event, source.event) for other in new if other is not source)
        ]
        before.append(dot)
    return arrows


def _newest(dots: list[Dot], number: int) -> Dot | None:
    """Return a host's last event with at most this number."""
    return next((each for each in reversed(dots) if each.event.number <= number), None)


def _knows(event: TracedEvent, other: TracedEvent) -> bool:
    return event.clock.get(other.host, 0) >= other.number
