"""The log in memory: marks, truncation, snapshots."""

import pytest

from strandline.core.raft.log import RaftLog, decode_members, encode_members
from strandline.core.raft.messages import Kind, Members, RaftEntry, Snapshot

ABC = Members(voters=(1, 2, 3))


def entries(*terms, first=1):
    """Commands with these terms."""
    return [RaftEntry(first + i, term, Kind.COMMAND, b"x%d" % i) for i, term in enumerate(terms)]


@pytest.fixture
def log():
    """Five entries of terms 1, 1, 2, 2, 4, all on disk."""
    return RaftLog(Snapshot(members=ABC), base=(0, 0), entries=entries(1, 1, 2, 2, 4))


def test_terms_are_known_from_the_base_to_the_end(log):
    """Outside, there is no term; index 0 has term 0."""
    assert [log.term_at(i) for i in range(-1, 7)] == [None, 0, 1, 1, 2, 2, 4, None]
    assert (log.last_index, log.last_term, log.stable_index) == (5, 4, 5)


def test_a_batch_has_one_entry_at_least_and_ends_at_the_limit(log):
    """Big entries still travel, one by one."""
    assert [e.index for e in log.batch_from(2, 1)] == [2]
    assert [e.index for e in log.batch_from(2, 60)] == [2, 3]
    assert [e.index for e in log.batch_from(2, 10_000)] == [2, 3, 4, 5]
    assert log.batch_from(6, 10_000) == ()


def test_committed_entries_are_handed_out_once_and_only_from_disk(log):
    """Entries that others have committed wait until they are on our disk."""
    log.append(entries(4, 4, first=6))
    log.commit_index = 6
    assert [e.index for e in log.take_committed()] == [1, 2, 3, 4, 5]
    assert log.take_committed() == ()
    log.mark_stable(7, 4)
    assert [e.index for e in log.take_committed()] == [6]


def test_truncation_takes_the_stable_mark_back(log):
    """New entries at the same indexes have to be written again."""
    log.truncate_from(4)
    assert (log.last_index, log.stable_index) == (3, 3)
    log.append(entries(5, 5, first=4))
    log.mark_stable(5, 4)  # an earlier write of what was there before
    assert log.stable_index == 3
    log.mark_stable(5, 5)
    assert log.stable_index == 5


def test_a_committed_entry_is_never_truncated(log):
    """A caller that asks for it has a bug."""
    log.commit_index = 4
    with pytest.raises(AssertionError, match="never removed"):
        log.truncate_from(4)


def test_compaction_keeps_the_end_and_what_is_asked_for(log):
    """The snapshot has its term; a few entries before it stay for followers."""
    log.commit_index = 4
    log.take_committed()
    snapshot = log.compact(4, b"state", keep=1)
    assert (snapshot.index, snapshot.term, snapshot.data) == (4, 2, b"state")
    assert (log.base_index, log.base_term, log.last_index) == (3, 2, 5)
    assert [e.index for e in log.between(1, 5)] == [4, 5]


def test_the_newest_membership_counts_and_snapshots_keep_it(log):
    """Committed or not; a snapshot holds the one at its index."""
    four = Members(voters=(1, 2, 3), learners=(4,))
    log.append([RaftEntry(6, 4, Kind.MEMBERS, encode_members(four))])
    assert log.members() == (four, 6)
    log.mark_stable(6, 4)
    log.commit_index = 6
    log.take_committed()
    assert log.compact(5, b"", keep=0).members == ABC
    assert log.members() == (four, 6)
    assert log.compact(6, b"", keep=0).members == four
    assert log.members() == (four, 6)
    log.append([RaftEntry(7, 4, Kind.MEMBERS, encode_members(ABC))])
    log.truncate_from(7)
    assert log.members() == (four, 6)


def test_a_snapshot_replaces_a_log_that_differs(log):
    """Entries of another history go; the marks are at the snapshot."""
    log.install(Snapshot(4, 3, ABC, b""))
    assert (log.last_index, log.last_term, log.stable_index, log.commit_index) == (4, 3, 4, 4)


def test_a_snapshot_keeps_the_entries_that_go_on_from_it(log):
    """They are equal to the leader's."""
    log.install(Snapshot(4, 2, ABC, b""))
    assert (log.base_index, log.last_index, log.stable_index) == (4, 5, 5)


def test_membership_round_trip():
    """Decoding returns the encoded membership."""
    members = Members(voters=(3, 1), learners=(9,))
    assert decode_members(encode_members(members)) == members
    assert members.quorum == 2
    assert members.everybody == (3, 1, 9)
