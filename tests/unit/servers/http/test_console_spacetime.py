"""Traces as space-time diagrams."""

import pytest

from simulation.__main__ import main as simulate
from strandline.errors import InvalidRequestError
from strandline.servers.http.console.spacetime import (
    EVENTS_MAX,
    HOSTS_MAX,
    Arrow,
    diagram,
    parse_trace,
)

TRACE = """\
a {"a":1}
s/0: appends 0 to 0
b {"a":1,"b":1}
s/0: copies 0 to 0
b {"a":1,"b":2}
s/0: has synced to 1
a {"a":2,"b":2}
s/0: commits to 1
c {"a":2,"b":2,"c":1}
s/0: leads
"""


def named(drawn):
    """The arrows by the texts of their ends."""
    texts = {(dot.x, dot.y): dot.event.text.removeprefix("s/0: ") for dot in drawn.dots}
    return {(texts[a.x1, a.y1], texts[a.x2, a.y2]) for a in drawn.arrows}


def test_an_arrow_leads_to_who_first_knows_of_an_event():
    """Not from what was known already, nor from what another source knows, too."""
    drawn = diagram(parse_trace(TRACE))
    assert [host for host, _ in drawn.hosts] == ["a", "b", "c"]
    assert named(drawn) == {
        ("appends 0 to 0", "copies 0 to 0"),
        ("has synced to 1", "commits to 1"),
        ("commits to 1", "leads"),
    }
    assert all(isinstance(each, Arrow) and each.y1 < each.y2 for each in drawn.arrows)


def test_events_are_searched_and_limited():
    """The newest are drawn; how many are left out is said."""
    assert [d.event.text for d in diagram(parse_trace(TRACE), "SYNCED").dots] == [
        "s/0: has synced to 1"
    ]
    many = "".join(f'a {{"a":{n}}}\ne{n}\n' for n in range(1, EVENTS_MAX + 51))
    drawn = diagram(parse_trace(many))
    assert (len(drawn.dots), drawn.left_out) == (EVENTS_MAX, 50)
    assert drawn.dots[-1].event.text == f"e{EVENTS_MAX + 50}"


def test_the_same_event_of_two_files_counts_once():
    """Brokers of one machine may share a file, and each returns it."""
    assert parse_trace(TRACE + TRACE) == parse_trace(TRACE)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a {}\nx",
        'a {"a":0}\nx',
        'a {"b":1}\nx',
        "a {\nx",
        'a {"a":-1}\nx',
        'a {"a":"1"}\nx',
        "a " + "[" * 10_000 + "\nx",
        '{"a":1}\nx',
    ],
)
def test_what_is_not_a_trace_is_rejected(text):
    """Also hostile text, with an error for its sender."""
    with pytest.raises(InvalidRequestError):
        parse_trace(text)


def test_too_many_hosts_are_not_drawn():
    """A diagram has a limited width."""
    text = "".join(f'h{n} {{"h{n}":1}}\ne\n' for n in range(HOSTS_MAX + 1))
    with pytest.raises(InvalidRequestError, match="hosts"):
        diagram(parse_trace(text))


def test_a_simulated_cluster_is_drawn(capsys):
    """As docs/console.md and docs/traces.md say; every arrow points down."""
    simulate(["trace", "--seeds", "5:6", "--events", "400"])
    events = parse_trace(capsys.readouterr().out)
    drawn = diagram(events)
    assert len(drawn.dots) == min(EVENTS_MAX, len(events))
    assert len(drawn.arrows) > 20
    assert all(each.y1 < each.y2 for each in drawn.arrows)
