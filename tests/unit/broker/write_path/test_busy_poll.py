"""Whether the loop continues to poll, and for how long, round by round."""

import pytest

from strandline.broker.write_path import busy_poll
from strandline.broker.write_path.busy_poll import ROUNDS_MAX, SILENT_ROUNDS, SOON_MS, BusyPoll


class Rounds:
    """A loop whose rounds the test runs."""

    def __init__(self):
        self._due = []

    def call_soon(self, callback):
        self._due.append(callback)

    def go(self, rounds):
        """Go round at most so often, until there is nothing to do; how often it was."""
        for number in range(rounds):
            due, self._due = self._due, []
            if not due:
                return number
            assert len(due) == 1, "one callback is enough"
            due[0]()
        return rounds


@pytest.fixture
def rounds():
    return Rounds()


@pytest.fixture
def poll(monkeypatch, rounds):
    monkeypatch.setattr(busy_poll, "cpus", lambda: 2)
    return BusyPoll(rounds)


def test_who_answers_each_ack_is_polled_for(poll, rounds):
    """From the second record on, for a bounded number of rounds behind each."""
    poll.synced(0.0, 0.2)
    assert rounds.go(1000) == SILENT_ROUNDS
    poll.synced(0.4, 0.6)
    assert rounds.go(60) == 60
    poll.synced(0.7, 0.9)
    assert rounds.go(1000) == ROUNDS_MAX


def test_others_who_waited_are_not_kept_apart(poll, rounds):
    """A record that follows at once was sent before the ack: the next write may gather more."""
    poll.synced(0.0, 0.2)
    assert rounds.go(SILENT_ROUNDS - 1) == SILENT_ROUNDS - 1
    poll.synced(0.2, 0.4)
    assert rounds.go(1000) == SILENT_ROUNDS


def test_a_trickle_costs_nothing(poll, rounds):
    """A publisher that pauses between two records is not polled for."""
    for number in range(3):
        began_ms = number * (0.2 + 1.1 * SOON_MS)
        poll.synced(began_ms, began_ms + 0.2)
        assert rounds.go(1000) == SILENT_ROUNDS


def test_the_only_cpu_is_left_to_the_publisher(monkeypatch, rounds):
    """A poll would keep it from sending the record that is polled for."""
    monkeypatch.setattr(busy_poll, "cpus", lambda: 1)
    poll = BusyPoll(rounds)
    poll.synced(0.0, 0.2)
    poll.synced(0.4, 0.6)
    assert rounds.go(1000) == 0


def test_it_knows_how_many_cpus_there_are(monkeypatch):
    """Those of this process, where the system says; else those of the machine."""
    assert busy_poll.cpus() >= 1
    monkeypatch.delattr(busy_poll.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(busy_poll.os, "cpu_count", lambda: 7)
    assert busy_poll.cpus() == 7
