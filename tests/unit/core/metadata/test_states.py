"""Readonly and paused partitions: which a command changes, and when they changed."""

import pytest

from strandline.core.metadata.commands import PausePartitions, SetReadonly
from strandline.core.metadata.states import affected


@pytest.fixture
def made(cluster):
    """Stream ``s`` with three partitions."""
    found = cluster()
    found.create("s", (1, 2, 3), (1, 2, 3), (1, 2, 3))
    return found


def pause(*numbers, is_on=True, now_ns=1, resumes_all=False):
    return PausePartitions("s", numbers, is_on, now_ns, resumes_all)


def paused(made):
    states = made.image.stream("s").states
    return sorted(number for number, state in states.items() if state.is_paused)


def test_without_numbers_all_are_meant(made):
    """Others keep their state."""
    made.must(SetReadonly("s", (1,), True, 5))
    assert made.image.stream("s").states[1].is_readonly
    assert 0 not in made.image.stream("s").states
    made.must(SetReadonly("s", (), True, 7))
    states = made.image.stream("s").states
    assert [states[number].is_readonly for number in range(3)] == [True] * 3
    assert [states[number].readonly_ns for number in range(3)] == [(7, 7), (5, 7), (7, 7)]
    made.must(SetReadonly("s", (2,), False, 9))
    states = made.image.stream("s").states
    assert [states[number].is_readonly for number in range(3)] == [True, True, False]
    assert states[2].readonly_ns == (7, 9)


def test_a_partition_that_is_not_there_is_an_error(made):
    """Nothing is changed."""
    for number in (-1, 3):
        assert made.do(pause(0, number)).code == "unknown_partition"
        assert made.do(SetReadonly("s", (number,), True, 1)).code == "unknown_partition"
    assert made.image.stream("s").states == {}


def test_resuming_changes_those_that_are_paused(made):
    """The times of the others stay."""
    made.must(pause(0, 2, now_ns=4))
    assert affected(made.image, pause(is_on=False)) == (0, 2)
    assert affected(made.image, pause(1, 2, is_on=False)) == (2,)
    made.must(pause(1, 2, is_on=False, now_ns=6))
    states = made.image.stream("s").states
    assert paused(made) == [0]
    assert (states[0].paused_ns, states[2].paused_ns) == ((4, 4), (4, 6))
    assert 1 not in states


def test_resuming_one_may_resume_all(made):
    """The last pause decides so for all that are paused, also for earlier ones."""
    made.must(pause(0, now_ns=1))
    assert affected(made.image, pause(0, is_on=False)) == (0,)
    made.must(pause(1, now_ns=2, resumes_all=True))
    assert affected(made.image, pause(0, is_on=False)) == (0, 1)
    assert affected(made.image, pause(2, is_on=False)) == ()
    made.must(pause(2, now_ns=3))
    assert affected(made.image, pause(0, is_on=False)) == (0,)
    made.must(pause(2, now_ns=4, resumes_all=True))
    made.must(pause(1, is_on=False, now_ns=5))
    assert paused(made) == []
    assert not any(state.resumes_all for state in made.image.stream("s").states.values())
