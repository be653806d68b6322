"""Seeded bugs: the proof that the simulators' checkers see. ``make sim-mutants`` looks for all."""

import contextlib

import pytest

from simulation.__main__ import SIMULATIONS, find_bug
from simulation.bugs import Replacement, SourceRewrite

QUICK = {
    "a follower acks what it has not synced",
    "the leader commits on a majority of the ISR",
    "truncation to the high watermark",
    "gaps are ignored",
    "placeholders lose epochs",
    "compaction goes beyond the high watermark",
    "any replica is elected",
    "term and vote are not stored",
    "a quorum of half",
    "a vote for an older log",
    "a pre-vote counts as a vote",
    "a leader without a quorum does not step down",
    "votes are given while a leader is alive",
    "leadership is never handed over",
    "a written record without a commit is reported as rejected",
    "fencing empties the ISR",
    "a retry is applied again",
    "a decision on an old image applies",
    "aborted records count",
    "reading goes past open transactions",
    "a new coordinator forgets pending markers",
    "a group commit is acked before the journal is synced",
    "a torn entry of the journal counts",
    "a checkpoint is written before the segments are synced",
    "the names of new segments are not synced",
    "a record is sent before its delivery is stored",
    "a broker that leads no longer answers repeated acknowledgements",
    "a new leader does not wait for acknowledgements",
    "new records are delivered before those due for redelivery",
    "any number of records is pending",
    "a record whose partition cannot be read counts as deleted",
}
ALL = [(name, bug) for name, simulation in SIMULATIONS.items() for bug in simulation.bugs]


@pytest.mark.timeout(1200)  # the search is bounded by the time of a core, which may be shared
@pytest.mark.parametrize(
    ("name", "bug"),
    [each for each in ALL if each[1].name in QUICK],
    ids=lambda each: getattr(each, "name", None),
)
def test_the_checkers_see_it(name, bug):
    """Some history with the bug breaks a promise, soon."""
    assert find_bug(name, bug, seconds=240).seen


@pytest.mark.parametrize("bug", [bug for _, bug in ALL], ids=lambda bug: bug.name)
def test_a_bug_is_up_to_date_and_gone_afterwards(bug):
    """The source that the bug changes exists, and is restored afterwards."""
    with bug.planted():
        pass
    with bug.planted():
        pass


def test_there_are_enough_bugs_each_with_a_name_of_its_own():
    """At least 25, over consensus, replication, recovery and metadata."""
    assert len({bug.name for _, bug in ALL}) == len(ALL) >= 25
    assert (
        {name for name, _ in ALL}
        == set(SIMULATIONS)
        >= {*("consensus", "consumers", "metadata", "recovery", "replication", "transactions")}
    )
    assert {bug.name for _, bug in ALL} >= QUICK


def test_a_rewrite_whose_place_has_changed_is_an_error():
    """It would pass for found or not found at random."""
    bug = SourceRewrite("gone", "strandline.core.raft.raft:Raft.tick", "no such text", "")
    with pytest.raises(ValueError, match="0 times"), bug.planted():
        raise AssertionError("not reached")


def test_a_replacement_is_undone_whatever_happens():
    """The next history runs the right code."""

    class Owner:
        def answer(self):
            return 42

    wrong = Replacement("wrong", "answer", lambda _: 0, (Owner,))
    with contextlib.suppress(KeyError), wrong.planted():
        assert Owner().answer() == 0
        raise KeyError
    assert Owner().answer() == 42
