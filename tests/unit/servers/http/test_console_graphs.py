"""Graphs as SVG, rates, and events of several brokers."""

import re
import xml.etree.ElementTree as ET

import pytest

from strandline.api.monitoring import ClusterEvent
from strandline.servers.http.console.cluster_queries import RATE_MS_MAX, RateTracker
from strandline.servers.http.console.graphs import Line, binary_ceiling, ceiling, graph, x_step
from strandline.servers.http.console.pages_load import merged_events


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (0.03, 0.05), (1e9, 1e9)]
)
def test_an_axis_ends_at_a_round_number(value, top):
    """At 1, 2 or 5 times a power of ten."""
    assert ceiling(value) == pytest.approx(top)


@pytest.mark.parametrize(("value", "top"), [(0, 1), (900, 1024), (143 << 20, 200 << 20)])
def test_an_axis_of_bytes_ends_at_a_round_number_of_its_unit(value, top):
    """Not at 190.7 MiB."""
    assert binary_ceiling(value) == top


def test_a_graph_has_axes_and_a_line_inside_them():
    """Zero is at the bottom, the largest value below the top, and time runs to the right."""
    span = (1_700_000_000.0, 1_700_003_600.0)
    points = [(span[0] - 60, 9.0), (span[0], 0.0), (span[0] + 1800, 10.0), (span[1], 5.0)]
    svg = ET.fromstring(graph("t", [Line("1", points)], span, unit=lambda v: f"{v:g}"))
    texts = [element.text for element in svg.iter("text")]
    assert texts[:5] == ["0", "2.5", "5", "7.5", "10"]
    assert all(re.fullmatch(r"\d\d:\d0", text) for text in texts[5:])
    [line] = svg.iter("polyline")
    assert line.get("points") == "82.0,176.0 355.0,10.0 628.0,93.0"
    empty = ET.fromstring(graph("t", [Line("1", [])], span, unit=str))
    assert len(list(empty.iter("text"))) > 5


def test_an_axis_of_time_has_few_labels():
    """Of five minutes as of an hour."""
    assert [x_step(seconds) for seconds in (300, 900, 1800, 3600)] == [60, 300, 300, 600]


def test_rates_are_means_of_the_last_seconds():
    """None at first, then the growth; a total that shrinks begins again."""
    book = RateTracker()
    assert book.observe("stream", {"a": 100}, 0) == {"a": None}
    assert book.observe("stream", {"a": 100}, 10) == {"a": None}
    assert book.observe("stream", {"a": 300}, 2000) == {"a": 100.0}
    assert book.observe("group", {"a": 5}, 2000) == {"a": None}
    assert book.observe("stream", {"a": 0}, 3000) == {"a": None}
    for second in range(4, 60):
        found = book.observe("stream", {"a": 7 * second}, second * 1000)
    assert found == {"a": pytest.approx(7.0)}
    assert len(book._seen["stream", "a"]) <= RATE_MS_MAX / 1000 + 2
    book.observe("stream", {}, 10_000_000)
    assert not book._seen


def event(at_s, about="s/0", text="broker 2 leads", kind="election"):
    return ClusterEvent(at_ns=int(at_s * 1e9), kind=kind, about=about, text=text)


def test_what_several_brokers_noticed_is_one_event():
    """Near in time; what repeats later, or what a broker noticed about itself, is another."""
    found = merged_events(
        [
            (event(1), "1"),
            (event(2), "2"),
            (event(3, about="s/1"), "2"),
            (event(40), "1"),
            (event(50, "", "5 records rejected", "refusal"), "1"),
            (event(50, "", "5 records rejected", "refusal"), "2"),
        ]
    )
    assert [(each.event.at_ns // 10**9, each.seen_by) for each in found] == [
        (50, ("2",)),
        (50, ("1",)),
        (40, ("1",)),
        (3, ("2",)),
        (1, ("1", "2")),
    ]
