"""The page of events: which of them a filter leaves."""

from types import SimpleNamespace

import pytest

from strandline.api.monitoring import ClusterEvent
from strandline.servers.http.console import pages_load

SECOND_NS = 1_000_000_000
EVENTS = [
    ClusterEvent(at_ns=100 * SECOND_NS, kind="election", about="orders/0", text="Broker 2 leads"),
    ClusterEvent(at_ns=200 * SECOND_NS, kind="election", about="shops/1", text="broker 3 leads"),
    ClusterEvent(at_ns=300 * SECOND_NS, kind="isr", about="orders/1", text="broker 2 is back"),
]


@pytest.mark.parametrize(
    ("kind", "q", "shown"),
    [
        ("", "", ["orders/1", "shops/1", "orders/0"]),
        ("election", "", ["shops/1", "orders/0"]),
        ("", "ORDERS", ["orders/1", "orders/0"]),
        ("", "broker 2", ["orders/1", "orders/0"]),
        ("election", "broker 2", ["orders/0"]),
        ("isr", "shops", []),
        ("move", "", []),
    ],
)
def test_events_are_those_of_a_kind_and_with_a_text(monkeypatch, kind, q, shown):
    """Both have to fit, upper or lower case; the newest come first."""
    view = SimpleNamespace(brokers=[], is_cluster=True)
    monkeypatch.setattr(pages_load, "cluster_view", lambda _: view)
    monkeypatch.setattr(pages_load, "answers_of_all", lambda *_: {"127.0.0.1:1": EVENTS})
    request = SimpleNamespace(client=None, query={"kind": kind, "q": q})
    page = pages_load.events_page(request)
    assert [each.event.about for each in page.values["events"]] == shown
    assert (page.values["kind"], page.values["q"]) == (kind, q)
