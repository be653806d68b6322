"""Decisions: effects wait for entries, and entries do not grow without end."""

from typing import Any

import pytest

from strandline.core.coordinator_effects import Answer, DecisionLog, Forget, Store, restore


class Sum:
    """A state that numbers add up to; each item of it is an entry of its own."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)

    def apply(self, entry: int) -> None:
        """Take a number over."""
        self.numbers.add(entry)

    def entries(self, per_entry: int) -> list[int]:
        """The numbers."""
        assert per_entry == 7
        return sorted(self.numbers)


def log_of(state: Sum, *, sequence: int = 0, entries: int = 0) -> DecisionLog[int, Any]:
    """Return a log whose state is rewritten as numbers."""
    return DecisionLog(state, items_per_entry=7, sequence=sequence, entries=entries)


@pytest.fixture
def early(monkeypatch):
    """Rewrite the state from the fourth entry on."""
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 4)


def test_effects_wait_for_what_was_decided_before_them():
    """No decision is announced before it is stored, and effects keep their order."""
    state = Sum()
    log = log_of(state, sequence=10)
    log.give(Answer("at once"))
    log.store(1)
    log.give(Answer("a"), Answer("b"))
    log.store(2)
    log.give(Answer("c"))
    assert log.taken() == [Answer("at once"), Store(10, 1), Store(11, 2)]
    assert state.numbers == {1, 2}, "the coordinator itself knows already"
    log.stored(10)
    assert log.taken() == [Answer("a"), Answer("b")]
    log.stored(9)
    assert log.taken() == []
    log.stored(11)
    log.give(Answer("d"))
    assert log.taken() == [Answer("c"), Answer("d")]


def test_the_state_is_rewritten_when_entries_are_many_more(early):
    """Earlier entries may be deleted once the new ones are stored."""
    log = log_of(Sum())
    for _ in range(4):
        log.store(5)
        log.rewrite_if_due()
    assert log.taken()[-1] == Store(4, 5)
    log.stored(4)
    assert log.taken() == [Forget(4)]
    log.rewrite_if_due()
    assert log.taken() == [], "not again at once"
    for _ in range(3):
        log.store(5)
        log.rewrite_if_due()
    assert log.taken() == [Store(5, 5), Store(6, 5), Store(7, 5)], "not before the fourth entry"
    log.store(5)
    log.rewrite_if_due()
    assert log.taken() == [Store(8, 5), Store(9, 5)]


def test_a_large_state_waits_for_as_many_entries(early):
    """It is not rewritten while that would not make the log much shorter."""
    log = log_of(Sum(*range(3)))
    for _ in range(11):
        log.store(0)
        log.rewrite_if_due()
    assert len(log.taken()) == 11
    log.store(0)
    log.rewrite_if_due()
    assert [effect.entry for effect in log.taken()] == [0, 0, 1, 2]


def test_entries_of_an_earlier_coordinator_count(early):
    """Else a frequently replaced coordinator would never rewrite the state."""
    state = Sum()
    assert restore(state, [1, 1, 1, 1]) == 4
    log = log_of(state, sequence=4, entries=4)
    log.rewrite_if_due()
    assert log.taken() == [Store(4, 1)]
