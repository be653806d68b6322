"""Seeded bugs of a consensus core: mistakes known from other projects, or likely here."""

from typing import Final

from simulation.bugs import SourceRewrite

_RAFT: Final = "strandline.core.raft.raft:Raft."
_LEADER: Final = "strandline.core.raft.leader:RaftLeader."
_LOG: Final = "strandline.core.raft.log:RaftLog."
_STATE: Final = "strandline.core.raft.state:RaftState."

CONSENSUS_BUGS: Final = (
    SourceRewrite(
        "answers are sent before their entries are on disk",
        _STATE + "send",
        "(self._early if is_early else self._late).append",
        "self._early.append",
    ),
    SourceRewrite(
        "term and vote are not stored",
        _STATE + "take_ready",
        "hard_state=self.hard if self.hard != self._saved_hard else None",
        "hard_state=None",
    ),
    SourceRewrite(
        "a membership outlives the truncation of its entry",
        _STATE + "truncate_from",
        "if self.members_index >= index:",
        "if False:",
    ),
    SourceRewrite(
        "entries of older terms are committed by counting (paper, figure 8)",
        _LEADER + "advance_commit",
        "index <= log.commit_index or log.term_at(index) != state.term",
        "index <= log.commit_index",
    ),
    SourceRewrite(
        "learners count towards the quorum",
        _LEADER + "advance_commit",
        "for voter in state.members.voters)",
        "for voter in state.members.everybody)",
    ),
    SourceRewrite(
        "the leader counts itself before its own sync",
        _LEADER + "_stored_by",
        "return self._state.log.stable_index",
        "return self._state.log.last_index",
    ),
    SourceRewrite(
        "reads are not confirmed by a quorum",
        _LEADER + "_confirm_reads",
        "if confirmed < members.quorum:",
        "if confirmed < 1:",
    ),
    SourceRewrite(
        "reads before this term has committed anything",
        _LEADER + "_confirm_reads",
        "if self._reads and not self._has_committed_own_term:",
        "if False:",
    ),
    SourceRewrite(
        "answers to earlier rounds confirm a read",
        _LEADER + "_confirm_reads",
        "self._confirmed_by(voter) >= read.round",
        "self._confirmed_by(voter) >= read.round - 1",
    ),
    SourceRewrite(
        "a voter that is being removed stops voting at once (found by seed 180)",
        _STATE + "may_stand",
        "if self.is_voter or self.members_index <= self.log.commit_index:",
        "if True:",
    ),
    SourceRewrite(
        "two voters change at once",
        _LEADER + "change_members",
        "len(changed) > 1",
        "len(changed) > 2",
    ),
    SourceRewrite(
        "a second membership change before the first is committed",
        _LEADER + "change_members",
        "if not self._has_committed_own_term or self._state.members_index > log.commit_index:",
        "if not self._has_committed_own_term:",
    ),
    SourceRewrite(
        "a membership change before this term has committed anything (Ongaro, 2015)",
        _LEADER + "change_members",
        "if not self._has_committed_own_term or self._state.members_index > log.commit_index:",
        "if self._state.members_index > log.commit_index:",
    ),
    SourceRewrite(
        "a quorum of half",
        "strandline.core.raft.messages:Members.quorum",
        "len(self.voters) // 2 + 1",
        "max(1, len(self.voters) // 2)",
    ),
    SourceRewrite(
        "a follower takes the leader's commit index for its own, unchecked log",
        _RAFT + "_on_append",
        "min(message.commit, index)",
        "min(message.commit, log.last_index)",
    ),
    SourceRewrite(
        "a follower acknowledges entries that the leader did not send",
        _RAFT + "_on_append",
        "index = Index(message.prev_index + len(message.entries))",
        "index = log.last_index",
    ),
    SourceRewrite(
        "late messages truncate the log again",
        _RAFT + "_take",
        "if log.has(entry.index, entry.term):",
        "if False:",
    ),
    SourceRewrite(
        "a vote for an older log",
        _RAFT + "_on_vote_request",
        "granted = is_new and is_free",
        "granted = is_free",
    ),
    SourceRewrite(
        "two votes in a term",
        _RAFT + "_on_vote_request",
        "granted = is_new and is_free",
        "granted = is_new",
    ),
    SourceRewrite(
        "a pre-vote counts as a vote",
        _RAFT + "_on_vote_reply",
        "or reply.pre != role.pre",
        "",
    ),
    SourceRewrite(
        "answers to an earlier leadership count for this one",
        _RAFT + "step",
        "elif message.term < self.state.term:",
        "elif message.term < self.state.term and not isinstance(message, AppendReply):",
    ),
    SourceRewrite(
        "entries that were replaced meanwhile count as synced",
        _LOG + "mark_stable",
        "if self.has(index, term):",
        "if index <= self.last_index:",
    ),
    SourceRewrite(
        "truncated entries still count as synced",
        _LOG + "truncate_from",
        "self.stable_index = Index(min(self.stable_index, index - 1))",
        "pass",
    ),
    SourceRewrite(
        "a snapshot loses the membership in the entries that it covers",
        _LOG + "compact",
        "members = decode_members(entry.data)",
        "pass",
    ),
    SourceRewrite(
        "a leader without a quorum does not step down",
        _LEADER + "_check_quorum",
        "if active < members.quorum:",
        "if False:",
    ),
    SourceRewrite(
        "a voter that answered once counts for ever",
        _LEADER + "_check_quorum",
        "progress.active = False",
        "pass",
    ),
    SourceRewrite(
        "votes are given while a leader is alive",
        _RAFT + "step",
        "if isinstance(message, VoteRequest) and self._is_content and not message.forced:",
        "if False:",
    ),
    SourceRewrite(
        "a candidate skips the pre-vote",
        _RAFT + "tick",
        "self._campaign(pre=True)",
        "self._campaign(pre=False)",
    ),
    SourceRewrite(
        "an election that the leader asked for gets no votes",
        _RAFT + "step",
        "self._is_content and not message.forced",
        "self._is_content",
    ),
    SourceRewrite(
        "leadership is never handed over",
        _LEADER + "_hand_over_if_ready",
        "self._state.send(self._successor, Campaign(self._state.term))",
        "pass",
    ),
    SourceRewrite(
        "leadership is handed over to a member that is behind",
        _LEADER + "_hand_over_if_ready",
        "if self.followers[self._successor].match == self._state.log.last_index:",
        "if True:",
    ),
)
