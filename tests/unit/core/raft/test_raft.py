"""One member, message by message: its answers, and when they may be sent."""

import pytest

from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    Campaign,
    Envelope,
    HardState,
    InstallSnapshot,
    Kind,
    Members,
    RaftEntry,
    Snapshot,
    VoteReply,
    VoteRequest,
)
from strandline.core.raft.raft import Raft, RaftCandidate, RaftFollower
from strandline.core.raft.state import RaftSettings
from strandline.errors import InvalidRequestError, NotLeaderError, UnavailableError

SETTINGS = RaftSettings(election_ticks=10, heartbeat_ticks=2)


def member(me=1, *, voters=(1, 2, 3), learners=(), terms=(), hard=None, settings=SETTINGS):
    """A member whose disk holds commands of these terms; no jitter."""
    entries = [RaftEntry(i + 1, term, Kind.COMMAND, b"x") for i, term in enumerate(terms)]
    return Raft(
        me,
        lambda _: 0,
        snapshot=Snapshot(members=Members(voters, learners)),
        hard=HardState(*hard or (max(terms, default=0), None)),
        entries=entries,
        settings=settings,
    )


def tell(raft, sender, message):
    """A message arrives."""
    raft.step(Envelope(sender, raft.state.me, message))


def settle(raft):
    """Persist whatever is to be persisted; the messages, (receiver, message), in order."""
    sent = []
    while ready := raft.ready():
        raft.persisted(ready)
        sent += [(e.receiver, e.message) for e in (*ready.early, *ready.late)]
    return sent


def tick(raft, count):
    """Time passes."""
    for _ in range(count):
        raft.tick()


def elected(me=1, **options):
    """A member that has just won an election, its first entry on its own disk."""
    raft = member(me, **options)
    tick(raft, 10)
    settle(raft)
    others = [v for v in raft.state.members.voters if v != me]
    for pre in (True, False):
        for other in others:
            tell(raft, other, VoteReply(raft.state.term + pre, granted=True, pre=pre))
        settle(raft)
    assert isinstance(raft.role, RaftLeader)
    return raft


def accept(raft, follower, index=None, read_round=0):
    """A follower has everything up to ``index``."""
    at = raft.state.log.last_index if index is None else index
    tell(raft, follower, AppendEntriesReply(raft.state.term, True, at, round=read_round))


# Elections


def test_without_a_leader_it_asks_on_trial_first():
    """Its term does not change before a quorum would vote for it."""
    raft = member(terms=(1, 2))
    tick(raft, 9)
    assert settle(raft) == []
    raft.tick()
    request = VoteRequest(term=3, last_index=2, last_term=2, pre=True)
    assert settle(raft) == [(2, request), (3, request)]
    assert raft.state.term == 2
    assert raft.role == RaftCandidate(pre=True, votes={1})


def test_a_vote_leaves_only_after_it_is_on_disk():
    """Neither a candidate's own vote nor one it gives can be forgotten."""
    raft = member()
    tell(raft, 2, VoteRequest(term=3, last_index=0, last_term=0))
    ready = raft.ready()
    assert ready.hard_state == HardState(3, 2)
    assert ready.early == ()
    assert [e.message for e in ready.late] == [VoteReply(3, granted=True)]


def test_one_vote_a_term_but_the_same_again():
    """A second candidate is rejected, a repeated request is not."""
    raft = member(hard=(3, 2))
    tell(raft, 3, VoteRequest(term=3, last_index=9, last_term=2))
    tell(raft, 2, VoteRequest(term=3, last_index=0, last_term=0))
    assert [m.granted for _, m in settle(raft)] == [False, True]


@pytest.mark.parametrize(
    ("last_term", "last_index", "granted"),
    [(1, 9, False), (2, 1, False), (2, 2, True), (3, 1, True)],
)
def test_votes_go_to_logs_no_older_than_ours(last_term, last_index, granted):
    """The later last term wins, then the longer log."""
    raft = member(terms=(1, 2))
    tell(raft, 2, VoteRequest(term=5, last_index=last_index, last_term=last_term))
    assert [m.granted for _, m in settle(raft)] == [granted]


def test_who_hears_from_a_leader_does_not_vote():
    """An isolated member disturbs nobody, unless the leader asked it to stand."""
    raft = member()
    tell(raft, 2, AppendEntries(1, 0, 0, 0))
    settle(raft)
    tell(raft, 3, VoteRequest(term=9, last_index=9, last_term=1))
    assert settle(raft) == []
    assert raft.state.term == 1
    tell(raft, 3, VoteRequest(term=9, last_index=9, last_term=1, forced=True))
    assert settle(raft) == [(3, VoteReply(9, granted=True))]


def test_a_sole_voter_leads_at_once_and_commits_from_its_own_disk():
    """Its learners receive the term only after it is on disk."""
    raft = member(voters=(1,), learners=(2,))
    tick(raft, 10)
    ready = raft.ready()
    assert ready.hard_state == HardState(1, 1)
    assert ready.early == ()
    assert raft.state.log.commit_index == 0
    raft.persisted(ready)
    assert raft.state.log.commit_index == 1


def test_a_learner_never_stands():
    """It only listens."""
    raft = member(2, voters=(1,), learners=(2,))
    tick(raft, 100)
    assert settle(raft) == []
    assert raft.role == RaftFollower(None)


def test_a_leader_without_quorum_steps_down_and_gives_up_reads():
    """Another member may lead by now."""
    raft = elected()
    raft.read("mine")
    tick(raft, 20)
    assert raft.role == RaftFollower(None)
    assert raft.ready().lost_reads == ("mine",)
    with pytest.raises(NotLeaderError, match="none is known"):
        raft.propose(b"")


def test_an_older_leader_is_told_of_the_newer_term():
    """Its entries are not taken."""
    raft = member(terms=(1,), hard=(5, None))
    tell(raft, 2, AppendEntries(4, 1, 1, 1, (RaftEntry(2, 4, Kind.COMMAND, b"late"),)))
    assert settle(raft) == [(2, AppendEntriesReply(5, accepted=False, index=0))]
    assert raft.state.log.last_index == 1


# Replication


def test_entries_are_vouched_for_only_once_they_are_on_disk():
    """The answer is late, the leader's own messages are early."""
    raft = member(hard=(1, None))
    tell(raft, 2, AppendEntries(1, 0, 0, 0, (RaftEntry(1, 1, Kind.COMMAND, b"a"),)))
    ready = raft.ready()
    assert [e.data for e in ready.entries] == [b"a"]
    assert ready.early == ()
    assert [e.message for e in ready.late] == [AppendEntriesReply(1, accepted=True, index=1)]
    leader = elected()
    accept(leader, 2)
    settle(leader)
    leader.propose(b"b")
    assert [e.receiver for e in leader.ready().early] == [2]  # 3 has not answered the first yet


def test_a_late_message_does_not_cut_what_came_after_it():
    """Only a difference does."""
    raft = member(terms=(1, 1, 1), hard=(1, None))
    tell(raft, 2, AppendEntries(1, 0, 0, 0, (RaftEntry(1, 1, Kind.COMMAND, b"x"),)))
    assert raft.state.log.last_index == 3
    tell(raft, 2, AppendEntries(2, 1, 1, 0, (RaftEntry(2, 2, Kind.COMMAND, b"other"),)))
    assert (raft.state.log.last_index, raft.state.log.last_term) == (2, 2)


def test_a_follower_takes_no_more_as_committed_than_it_has_checked():
    """Its own tail may be another leader's."""
    raft = member(terms=(1, 1, 1), hard=(2, None))
    tell(raft, 2, AppendEntries(2, 1, 1, 3))
    assert raft.state.log.commit_index == 1


def test_a_rejection_names_where_they_may_agree():
    """A whole term that the leader cannot have is skipped at once."""
    raft = member(terms=(1, 1, 4, 4, 4), hard=(6, None))
    tell(raft, 2, AppendEntries(6, 5, 3, 0))
    assert settle(raft) == [(2, AppendEntriesReply(6, accepted=False, index=5, hint=2))]


def test_commit_needs_a_quorum_and_an_entry_of_this_term():
    """Entries of earlier terms are committed with it, never by counting (paper, figure 8)."""
    raft = elected(terms=(1, 1))
    accept(raft, 2, 2)
    assert raft.state.log.commit_index == 0
    accept(raft, 2, 3)
    assert raft.state.log.commit_index == 3


def test_a_follower_that_lost_its_log_gets_the_snapshot():
    """It continues after the snapshot."""
    raft = elected()
    for _ in range(5):
        raft.propose(b"x")
    settle(raft)
    accept(raft, 2)
    settle(raft)
    raft.compact(6, b"state")
    tell(raft, 3, AppendEntriesReply(raft.state.term, accepted=False, index=0, hint=0))
    raft.role.followers[3].next = 1
    raft.role.followers[3].wait_ticks = 0
    tell(raft, 3, AppendEntriesReply(raft.state.term, accepted=True, index=0))
    (receiver, message), *_ = [s for s in settle(raft) if isinstance(s[1], InstallSnapshot)]
    assert (receiver, message.snapshot.index) == (3, 6)
    other = member(3)
    tell(other, 1, message)
    ready = other.ready()
    assert ready.snapshot == message.snapshot
    other.persisted(ready)
    assert [e.message for e in ready.late] == [AppendEntriesReply(1, accepted=True, index=6)]


def test_proposals_are_rejected_when_too_much_waits():
    """Memory is bounded while no quorum answers."""
    raft = elected(settings=RaftSettings(pending_bytes_max=1000))
    for _ in range(8):
        raft.propose(bytes(100))
    with pytest.raises(UnavailableError, match="too many metadata changes"):
        raft.propose(bytes(100))
    accept(raft, 2)
    raft.propose(b"again")


# Reads


def test_a_read_needs_a_quorum_that_answers_after_it():
    """An answer to an earlier heartbeat says nothing."""
    raft = elected()
    accept(raft, 2)
    settle(raft)
    raft.read("a")
    accept(raft, 2, read_round=0)
    assert raft.ready().reads == ()
    accept(raft, 3, read_round=1)
    settled = raft.state.reads
    assert [(r.context, r.after) for r in settled] == [("a", 1)]


def test_a_new_leader_reads_only_after_it_has_committed():
    """It has its predecessors' committed entries, but does not know how far they go."""
    raft = elected(terms=(1, 1))
    raft.read("early")
    accept(raft, 2, 2, read_round=1)
    assert raft.state.reads == []
    accept(raft, 2, 3, read_round=1)
    assert [(r.context, r.after) for r in raft.state.reads] == [("early", 3)]


# Members and hand-over


def test_a_new_voter_is_a_learner_first_and_has_caught_up():
    """Otherwise it could stop the group from committing."""
    raft = elected()
    accept(raft, 2)
    with pytest.raises(InvalidRequestError, match="learner first"):
        raft.change_members(Members((1, 2, 3, 4)))
    raft.change_members(Members((1, 2, 3), (4,)))
    settle(raft)
    accept(raft, 2)
    with pytest.raises(UnavailableError, match="caught up"):
        raft.change_members(Members((1, 2, 3, 4)))
    accept(raft, 4)
    raft.change_members(Members((1, 2, 3, 4)))
    assert raft.state.members.quorum == 3


def test_a_learner_that_lost_its_disk_is_sent_everything_again():
    """A learner counts for nothing, so it may forget; of a voter that is not believed."""
    raft = elected(voters=(1, 2, 3), learners=(4,))
    for follower in (2, 3, 4):
        accept(raft, follower)
    settle(raft)
    known = raft.state.log.last_index
    for follower in (3, 4):
        refused = AppendEntriesReply(raft.state.term, accepted=False, index=known, hint=0)
        tell(raft, follower, refused)
    sent = {to: m for to, m in settle(raft) if isinstance(m, AppendEntries) and m.entries}
    assert sent.keys() == {4}
    assert sent[4].prev_index == 0
    with pytest.raises(UnavailableError, match="caught up"):
        raft.change_members(Members((1, 2, 3, 4)))


def test_one_membership_change_at_a_time_by_a_leader_that_has_committed():
    """Two concurrent changes could each find a quorum of their own."""
    raft = elected()
    with pytest.raises(UnavailableError, match="not committed"):
        raft.change_members(Members((1, 2)))
    accept(raft, 2)
    raft.change_members(Members((1, 2)))
    with pytest.raises(UnavailableError, match="not committed"):
        raft.change_members(Members((1,)))
    settle(raft)
    with pytest.raises(InvalidRequestError, match="one voter at a time"):
        elected(voters=(1, 2, 3)).change_members(Members((1,)))
    with pytest.raises(InvalidRequestError, match="twice"):
        raft.change_members(Members((1, 2), (2,)))


def test_a_leader_that_removed_itself_steps_down_when_that_is_committed():
    """Until then it leads, without counting itself."""
    raft = elected()
    accept(raft, 2)
    raft.change_members(Members((2, 3)))
    settle(raft)
    accept(raft, 2)
    assert isinstance(raft.role, RaftLeader)
    accept(raft, 3)
    assert raft.role == RaftFollower(None)
    tick(raft, 100)
    assert raft.role == RaftFollower(None)


def test_a_voter_that_is_being_removed_may_still_be_needed():
    """If its log is the newest, only it can be elected, to lead once more."""
    raft = elected(voters=(1, 2))
    accept(raft, 2)
    raft.change_members(Members((2,)))
    settle(raft)
    tick(raft, 20)
    assert raft.role == RaftFollower(None)
    tick(raft, 20)
    request = VoteRequest(term=2, last_index=2, last_term=1, pre=True)
    assert (2, request) in settle(raft)
    assert raft.role == RaftCandidate(pre=True)
    tell(raft, 2, VoteReply(2, granted=True, pre=True))
    settle(raft)
    tell(raft, 2, VoteReply(2, granted=True))
    settle(raft)
    accept(raft, 2)
    assert raft.role == RaftFollower(None), "its removal is committed now"
    settle(raft)
    tick(raft, 100)
    assert settle(raft) == []


def test_handing_over_waits_for_the_successor_and_rejects_proposals():
    """The successor is asked to stand only when it has every entry."""
    raft = elected()
    accept(raft, 2)
    raft.propose(b"x")
    settle(raft)
    raft.hand_over(2)
    assert not [m for _, m in settle(raft) if isinstance(m, Campaign)]
    with pytest.raises(UnavailableError, match="handing over"):
        raft.propose(b"y")
    accept(raft, 2)
    assert (2, Campaign(1)) in settle(raft)
    successor = member(2, terms=(1, 1), hard=(1, 1))
    tell(successor, 1, AppendEntries(1, 2, 1, 2))
    tell(successor, 1, Campaign(1))
    assert (3, VoteRequest(2, 2, 1, forced=True)) in settle(successor)


def test_handing_over_ends_by_itself():
    """An heir that does not take over costs one election timeout."""
    raft = elected()
    accept(raft, 2)
    raft.hand_over(3)
    for _ in range(10):
        raft.tick()
        accept(raft, 2)
        accept(raft, 3, 0)
    raft.propose(b"z")
    with pytest.raises(InvalidRequestError, match="not another voter"):
        raft.hand_over(9)


def test_one_ready_at_a_time():
    """The next would hand out the same entries again."""
    raft = member()
    tick(raft, 10)
    ready = raft.ready()
    with pytest.raises(AssertionError, match="not reported"):
        raft.ready()
    raft.persisted(ready)
    with pytest.raises(AssertionError, match="once"):
        raft.persisted(ready)


@pytest.mark.parametrize(
    ("terms", "prev", "hint"),
    [
        ((1, 1, 4, 4, 4), (5, 3), 2),  # terms that the leader lacks
        ((1, 4, 4, 4, 4), (5, 3), 1),
        ((1, 1, 1), (7, 3), 3),  # all that there is may agree
        ((1, 2, 2), (3, 3), 2),  # the one before
        ((1, 2, 3), (2, 1), 1),
    ],
)
def test_the_last_entry_that_may_agree_is_named(terms, prev, hint):
    """No further back than needed, or entries are sent in vain."""
    raft = member(terms=terms, hard=(6, None))
    tell(raft, 2, AppendEntries(6, *prev, 0))
    [(_, reply)] = settle(raft)
    assert (reply.accepted, reply.hint) == (False, hint)


def test_a_leader_sends_heartbeats_at_its_interval():
    """Neither sooner nor later, also while nothing is proposed."""
    raft = elected()
    for other in (2, 3):
        accept(raft, other)
    settle(raft)
    sent = []
    for _ in range(3 * SETTINGS.heartbeat_ticks):
        raft.tick()
        sent.append(len(settle(raft)))
    waiting = [0] * (SETTINGS.heartbeat_ticks - 1)
    assert sent[-2 * SETTINGS.heartbeat_ticks :] == [*waiting, 2, *waiting, 2]
