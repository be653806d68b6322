"""Graphs with axes as SVG, drawn by the server.

Rules: pure; no text from outside is drawn. The style sheet defines the colours, by class.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

WIDTH: Final = 640
HEIGHT: Final = 200
LEFT: Final = 82
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 24
Y_STEPS: Final = 4
X_STEPS_S: Final = (60.0, 120.0, 300.0, 600.0)
X_LABELS_MAX: Final = 7
X_LABEL_WIDTH: Final = 32
COLOURS: Final = 6


class Line(NamedTuple):
    """One line of a graph."""

    name: str
    points: Sequence[tuple[float, float]]
    """Pairs of Unix time in seconds and value, in order of time."""


def graph(
    title: str,
    lines: Sequence[Line],
    span: tuple[float, float],
    *,
    unit: Callable[[float], str],
    is_binary: bool = False,
) -> str:
    """Return a graph as an SVG element.

    Args:
        title: what is drawn, as text for screen readers.
        lines: the lines.
        span: the first and the last time of the horizontal axis, in Unix seconds.
        unit: formats a value of the vertical axis.
        is_binary: whether the values are bytes: the axis then ends at a round number of KiB or MiB.
    """
    largest = max((value for line in lines for _, value in line.points), default=0.0)
    top = binary_ceiling(largest) if is_binary else ceiling(largest)
    from_s, until_s = span

    def x_of(at_s: float) -> float:
        share = (at_s - from_s) / max(until_s - from_s, 1e-9)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg class="graph" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        *_y_axis(top, y_of, unit),
        *_x_axis(span, x_of),
    ]
    for number, line in enumerate(lines):
        points = " ".join(
            f"{x_of(at_s):.1f},{y_of(value):.1f}" for at_s, value in line.points if at_s >= from_s
        )
        parts.append(f'<polyline class="line line-{number % COLOURS}" points="{points}"/>')
    return "".join(parts) + "</svg>"


def ceiling(value: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def binary_ceiling(value: float) -> float:
    """Return the smallest of 1, 2, 5, …, 500 times a power of 1,024 that is at least a value."""
    unit = 1.0
    while value > 500 * unit:
        unit *= 1024
    return ceiling(value / unit) * unit


def x_step(seconds: float) -> float:
    """Return the distance between labels of a time axis that spans ``seconds``."""
    return next((step for step in X_STEPS_S if seconds / step <= X_LABELS_MAX), X_STEPS_S[-1])


def _y_axis(top: float, y_of: Callable[[float], float], unit: Callable[[float], str]) -> list[str]:
    parts = []
    for step in range(Y_STEPS + 1):
        value = top * step / Y_STEPS
        y = y_of(value)
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{unit(value)}</text>'
        )
    return parts


def _x_axis(span: tuple[float, float], x_of: Callable[[float], float]) -> list[str]:
    from_s, until_s = span
    step_s = x_step(until_s - from_s)
    parts = []
    at_s = math.ceil(from_s / step_s) * step_s
    while at_s <= until_s:
        x = x_of(at_s)
        if LEFT <= x <= WIDTH - X_LABEL_WIDTH / 2:
            label = f"{datetime.fromtimestamp(at_s, UTC):%H:%M}"
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
        at_s += step_s
    return parts
