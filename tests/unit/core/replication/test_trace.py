"""Traces of replicas, and vector clocks that show what each host can know."""

import re
from pathlib import Path

import pytest

from simulation.__main__ import trace as simulated_trace
from strandline.core.replication import events as ev
from strandline.core.replication.messages import Acked, Fetch
from strandline.core.replication.state import LogState
from strandline.core.replication.trace import Trace, TracedReplica
from strandline.testing.history import ViolationError
from strandline.testing.shiviz import TraceEvent, check_clocks, read_trace

from .conftest import ref


def traced(limits, lines):
    """A replica of an empty log that traces into a list."""
    return TracedReplica(
        1,
        LogState(0, 0, high_watermark=0, epochs=()),
        name="orders/0",
        trace=Trace("broker-1.1", lines.append),
        limits=limits,
        session=0,
        incarnation="run",
    )


def test_a_leader_tells_its_election_and_its_writes(limits, assigned):
    """Two lines for each event; a repetition is no event."""
    lines = []
    leader = traced(limits, lines)
    leader.step(assigned(2, 1, isr=(1, 2), min_isr=2), 0)
    leader.step(assigned(2, 1, isr=(1, 2), min_isr=2), 0)
    leader.step(ev.Received(2, Fetch(2, 7, 0, -1, "run")), 0)
    leader.step(ev.Appended((ref(0, 3, epoch=2),), (b"x" * 10,)), 0)
    leader.trace.received({"broker-2.1": 5, "broker-1.1": 99})
    leader.step(ev.Flush(), 0)
    leader.step(ev.Received(2, Acked(2, 7, 3, 0)), 0)
    leader.step(ev.Synced(3), 0)
    assert "".join(lines).splitlines() == [
        'broker-1.1 {"broker-1.1":1}',
        "orders/0: epoch 2: leads, in sync 1 2",
        'broker-1.1 {"broker-1.1":2}',
        "orders/0: appends 0 to 2",
        'broker-1.1 {"broker-1.1":3,"broker-2.1":5}',
        "orders/0: has synced to 3; commits to 3",
    ]


def test_a_simulated_trace_has_right_clocks():
    """Each host counts its events; a follower's clock includes the leader's election."""
    events = read_trace("".join(simulated_trace(5, 3000)).splitlines())
    check_clocks(events)
    assert len(events) == 3000
    elected = {e.what.split(": elects")[0]: e for e in events if ": elects broker" in e.what}
    told = [e for e in events if ": follows" in e.what or ": leads" in e.what]
    assert told
    for event in told:
        assert event.knows(elected[": ".join(event.what.split(": ")[:2])]), event


def test_a_trace_adds_up():
    """The traced events of a log fit: each write begins at its end, and syncs do not exceed writes.

    With this seed copies are cut back, started anew and fall out of sync; no write fails.
    """
    ends, told = {}, set()
    for event in read_trace("".join(simulated_trace(16, 1 << 20)).splitlines()):
        name, _, whats = event.what.partition(": ")
        log = event.host, name
        for what in whats.split("; "):
            verb, numbers = what.split()[0], [int(each) for each in re.findall(r"\d+", what)]
            told.add(verb)
            if verb in ("appends", "copies"):
                assert ends.get(log, numbers[0]) == numbers[0] <= numbers[1], event
                ends[log] = numbers[1] + 1
            elif verb == "cuts":
                assert numbers[0] <= ends.get(log, numbers[0]), event
                ends[log] = numbers[0]
            elif verb == "starts":
                ends[log] = numbers[0]
            elif verb in ("has", "commits"):
                assert numbers[0] <= ends.get(log, numbers[0]), event
    assert told == {
        *("epoch", "appends", "copies", "cuts", "starts", "has", "commits", "wants", "in", "loses"),
    }


def test_clocks_are_heard_once():
    """Our own clock advances by itself, others only by receipt; a copy changes nothing here."""
    lines = []
    trace = Trace("broker-1.1", lines.append)
    trace.received({"broker-2.1": 5})
    trace.received({"broker-2.1": 3, "broker-1.1": 9})
    trace.clock["broker-3.1"] = 7
    trace.note("s/0: leads")
    assert lines == ['broker-1.1 {"broker-1.1":1,"broker-2.1":5}\ns/0: leads\n']
    assert trace.clock == {"broker-1.1": 1, "broker-2.1": 5}


def test_a_partition_without_a_leader_is_told(limits, assigned):
    """The loss of the leader is traced; its effects and links are not."""
    lines = []
    replica = traced(limits, lines)
    replica.step(assigned(2, None, isr=(1, 2)), 0)
    replica.step(ev.TimePassed(), 10)
    replica.step(ev.PeerDisconnected(2), 20)
    assert "".join(lines).splitlines()[1::2] == [
        "orders/0: epoch 2: nobody leads, in sync 1 2",
        "orders/0: loses the link to 2",
    ]


def test_the_documented_trace_is_that_of_its_seed():
    """docs/traces.md shows the output of its command."""
    page = (Path(__file__).parents[4] / "docs" / "traces.md").read_text("utf-8")
    shown = page.rpartition("```text\n")[2].partition("```")[0]
    assert shown == "".join(simulated_trace(5, 4))


@pytest.mark.parametrize(
    ("what", "clock"),
    [
        ("skips", {"a": 3, "b": 1}),
        ("repeats", {"a": 1, "b": 1}),
        ("forgets", {"a": 2}),
        ("foresees", {"a": 2, "b": 2}),
    ],
)
def test_a_wrong_clock_is_seen(what, clock):
    """The check rejects impossible clocks."""
    right = [TraceEvent("b", {"b": 1}, "sends"), TraceEvent("a", {"a": 1, "b": 1}, "hears")]
    check_clocks(right)
    with pytest.raises(ViolationError):
        check_clocks([*right, TraceEvent("a", clock, what)])
