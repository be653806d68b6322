"""How much a consumer works: each step costs the same, however many pulls and records wait.

Work is counted in instructions, not in time: so the tests are the same on every machine.
"""

from collections import OrderedDict

import pytest

from strandline.core.consumers.consumer import ConsumerPolicy, PullConsumer
from strandline.core.consumers.pulls import TIMERS_MIN, Pull
from strandline.core.consumers.state import ConsumerState, decode_state, encode_state
from tests.kit.opcodes import opcodes_of

FEW, MANY = 100, 800
GROWTH_MAX = 1.5
"""A heap's steps grow with the logarithm; a step that looks at everything grows 8-fold."""


def consumer(records=0, *, pulls=0, **policy):
    """Return a consumer with so many pending records, and then so many waiting pulls."""
    policy = {"max_ack_pending": 0, "max_waiting": 0, "ack_wait_ms": 100, **policy}
    found = PullConsumer(ConsumerPolicy(**policy), ConsumerState(), 0.0)
    if records:
        found.pull(Pull("first", batch=records), 0.0)
    for sequence in range(1, records + 1):
        found.deliver([sequence], [10], 0.0)
    for number in range(pulls):
        found.pull(Pull(number, expires_ms=1e6, heartbeat_ms=100_000, no_wait=True), 0.0)
    return found


def ack(found, sequence, kind="ack", now_ms=0.0):
    found.ack(kind, sequence, consumer_sequence=sequence, now_ms=now_ms)


def drop_each(found, count):
    for token in range(count):
        found.drop_pull(token)


def idle_rounds(found, count):
    for _ in range(count):
        assert found.exhausted() == []
        assert found.tick(1.0) == []
        assert found.next_due_ms == 100_000


def ack_overdue(found, count):
    found.tick(100.0)
    for sequence in range(count, 0, -1):
        ack(found, sequence, now_ms=100.0)


def ack_in_order(found, count):
    for sequence in range(1, count + 1):
        ack(found, sequence)


def nak_and_progress(found, count):
    for sequence in range(1, count + 1):
        ack(found, sequence, "progress")
        ack(found, sequence, "nak")
    for sequence in range(1, count + 1):
        ack(found, sequence, "progress")


@pytest.mark.parametrize("act", [drop_each, idle_rounds])
def test_a_step_does_not_look_at_every_waiting_pull(act):
    """A client with thousands of pulls that leaves, and rounds in which no pull is due."""
    costs = []
    for count in (FEW, MANY):
        found = consumer(pulls=count)
        costs.append(opcodes_of(lambda f=found, c=count: act(f, c)) / count)
        found.check()
    assert costs[1] < costs[0] * GROWTH_MAX


@pytest.mark.parametrize("act", [ack_overdue, ack_in_order, nak_and_progress])
@pytest.mark.parametrize("acks", ["explicit", "all"])
def test_an_acknowledgement_does_not_look_at_every_pending_record(act, acks):
    """Neither at those that are due again, nor at those that still wait."""
    costs = []
    for count in (FEW, MANY):
        found = consumer(count, acks=acks)
        costs.append(opcodes_of(lambda f=found, c=count: act(f, c)) / count)
        found.check()
    assert costs[1] < costs[0] * GROWTH_MAX


def test_the_first_pending_record_is_found_at_once():
    """Also of a stored state: a plain dict searches through all that was removed before it."""
    assert isinstance(consumer(3).state.pending, OrderedDict)
    stored = decode_state(encode_state(consumer(3).state))
    found = PullConsumer(ConsumerPolicy(), stored, 0.0)
    assert isinstance(found.state.pending, OrderedDict)
    ack(found, 2)
    assert list(decode_state(encode_state(found.state)).pending) == [1, 3]


def test_heartbeats_and_ends_come_when_they_are_due():
    """Whatever was served meanwhile; of those that are due at once, each comes once."""
    found = consumer()
    for number in range(3):
        found.pull(Pull(number, batch=9, expires_ms=50.0, heartbeat_ms=20), 0.0)
    found.deliver([1], [10], 15.0)  # puts off the heartbeat of the first one
    assert found.next_due_ms == 20.0
    assert [each.token for each in found.tick(20.0)] == [1, 2]
    assert [each.token for each in found.tick(35.0)] == [0]
    assert [each.token for each in found.tick(40.0)] == [1, 2]
    assert found.next_due_ms == 50.0
    found.drop_pull(1)
    assert sorted(each.token for each in found.tick(50.0)) == [0, 2]
    found.check()


def test_times_of_served_pulls_are_not_kept():
    """They would stay until they expire, and a client may ask thousands of times a second."""
    found = consumer(acks="none")
    for number in range(1, 3 * TIMERS_MIN):
        found.pull(Pull(number, expires_ms=1e9), 0.0)
        found.deliver([number], [10], 0.0)
    assert len(found.pulls._timers) <= TIMERS_MIN
    assert found.next_due_ms is None
    assert not found.pulls._timers
    found.check()
