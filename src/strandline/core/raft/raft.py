"""A member of the group: messages, ticks and proposals in, ``Ready`` out.

Roles are types; a member has exactly one:

- ``RaftFollower``: follows a leader, or waits for one;
- ``RaftCandidate``: asks for votes, first in a pre-vote (so that an election that cannot be won
  disturbs nobody, thesis 9.6), then in the election;
- ``RaftLeader``: see ``leader.py``.

Rules: after a message of a newer term every role becomes a follower. A message of an older term is
ignored, or answered with the newer term. Nothing here waits, and nothing is promised before it is
on disk: ``ready.py`` has the order in which the driver works.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.log import RaftLog
from strandline.core.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    Campaign,
    Envelope,
    HardState,
    Index,
    InstallSnapshot,
    Members,
    Message,
    RaftEntry,
    Snapshot,
    Term,
    VoteReply,
    VoteRequest,
)
from strandline.core.raft.ready import Ready
from strandline.core.raft.state import RaftSettings, RaftState
from strandline.errors import NotLeaderError
from strandline.types import BrokerId


class RaftFollower(msgspec.Struct):
    """Waits for a leader's messages; ``leader`` is None until one is known."""

    leader: BrokerId | None = None


class RaftCandidate(msgspec.Struct):
    """Asks for votes; ``pre``: in a pre-vote, which changes no term."""

    pre: bool
    votes: set[BrokerId] = msgspec.field(default_factory=set)


class Raft:
    """One member of the group, restored from its disk.

    Args:
        me: this member.
        jitter: ``jitter(n)`` returns a random number from 0 to n - 1.
        hard: term and vote.
        snapshot: the newest one; for a new group, one at index 0 with its first members.
        base: index and term of the entry before ``entries``; the snapshot's by default.
        entries: the log after ``base``.
        settings: timing and sizes.
    """

    def __init__(
        self,
        me: BrokerId,
        jitter: Callable[[int], int],
        *,
        snapshot: Snapshot,
        hard: HardState = HardState(),  # noqa: B008 -- frozen
        base: tuple[Index, Term] | None = None,
        entries: Iterable[RaftEntry] = (),
        settings: RaftSettings = RaftSettings(),  # noqa: B008 -- frozen
    ) -> None:
        log = RaftLog(snapshot, base=base or (snapshot.index, snapshot.term), entries=entries)
        self.state = RaftState(me, log, hard=hard, settings=settings, jitter=jitter)
        self.role: RaftFollower | RaftCandidate | RaftLeader = RaftFollower()
        self._quiet_ticks = 0
        self._patience_ticks = 0
        self._restart_timer()

    @property
    def leader(self) -> BrokerId | None:
        """The leader known to this member."""
        match self.role:
            case RaftLeader():
                return self.state.me
            case RaftFollower(leader):
                return leader
            case _:
                return None

    # Inputs

    def tick(self) -> None:
        """Let one tick pass."""
        if isinstance(self.role, RaftLeader):
            self.role.tick()
            self._step_down_if_deposed()
            return
        self._quiet_ticks += 1
        if self._quiet_ticks >= self._patience_ticks and self.state.may_stand:
            self._campaign(pre=True)

    def propose(self, data: bytes) -> tuple[Index, Term]:
        """Append a command to the log; its outcome is known when an entry is applied at its index.

        Returns:
            Index and term of its entry.

        Raises:
            NotLeaderError: another member leads, or none.
            UnavailableError: too many proposals wait, or leadership is being handed over.
        """
        index, term = self._leader().propose(data)
        return index, term

    def read(self, context: object) -> None:
        """Request a linearizable read; ``context`` is returned in a ``Ready``.

        Raises:
            NotLeaderError: another member leads, or none.
        """
        self._leader().read(context)

    def change_members(self, members: Members) -> tuple[Index, Term]:
        """Propose another membership: one voter more or less, and any learners.

        Raises:
            NotLeaderError: another member leads, or none.
            InvalidRequestError: no such change is allowed.
            UnavailableError: another change is not committed yet; retry.
        """
        return self._leader().change_members(members)

    def hand_over(self, successor: BrokerId) -> None:
        """Transfer the leadership to another voter.

        Raises:
            NotLeaderError: another member leads, or none.
            InvalidRequestError: ``successor`` is no other voter.
        """
        self._leader().hand_over(successor)

    def compact(self, index: Index, data: bytes, *, keep: int = 0) -> Snapshot:
        """Replace the entries up to ``index`` (applied) by the state after it; see ``RaftLog``."""
        return self.state.log.compact(index, data, keep=keep)

    def _leader(self) -> RaftLeader:
        if not isinstance(self.role, RaftLeader):
            known = self.leader
            where = f"broker {known} is" if known is not None else "none is known now"
            raise NotLeaderError(f"this broker is not the controller; {where}")
        return self.role

    # Outputs

    def ready(self) -> Ready:
        """Return the work to do now; it is falsy when there is none."""
        return self.state.take_ready()

    def persisted(self, ready: Ready) -> None:
        """Note that the durable parts of the ``Ready`` are on disk."""
        self.state.mark_persisted(ready)
        if isinstance(self.role, RaftLeader):
            self.role.advance_commit()
            self._step_down_if_deposed()

    # Elections

    def _restart_timer(self) -> None:
        ticks = self.state.settings.election_ticks
        self._quiet_ticks, self._patience_ticks = 0, ticks + self.state.jitter(ticks)

    def _become_follower(self, term: Term, leader: BrokerId | None) -> None:
        if isinstance(self.role, RaftLeader):
            self.state.lost_reads += self.role.give_up_reads()
        if term != self.state.term:
            self.state.hard = HardState(term)
        self.role = RaftFollower(leader)
        self._restart_timer()

    def _step_down_if_deposed(self) -> None:
        if isinstance(self.role, RaftLeader) and self.role.is_deposed:
            self._become_follower(self.state.term, None)

    def _campaign(self, *, pre: bool, forced: bool = False) -> None:
        """Ask every voter for its vote."""
        state = self.state
        term = Term(state.term + 1)
        if not pre:
            state.hard = HardState(term, state.me)
        self.role = RaftCandidate(pre)
        self._restart_timer()
        log = state.log
        request = VoteRequest(term, log.last_index, log.last_term, pre, forced)
        for voter in state.members.voters:
            if voter != state.me:
                state.send(voter, request)
        self._count_vote(self.role, state.me)

    def _count_vote(self, candidate: RaftCandidate, voter: BrokerId) -> None:
        members = self.state.members
        if voter in members.voters:
            candidate.votes.add(voter)
        if len(candidate.votes) < members.quorum:
            return
        if candidate.pre:
            self._campaign(pre=False)
        else:
            self.role = RaftLeader(self.state)

    # Messages

    def step(self, envelope: Envelope) -> None:
        """Handle a message from another member."""
        sender, message = envelope.sender, envelope.message
        assert envelope.receiver == self.state.me, "delivered to its receiver"
        if isinstance(message, VoteRequest) and self._is_content and not message.forced:
            return  # our leader is alive: a member that lost it must not depose it (thesis 4.2.3)
        if message.term > self.state.term:
            if not _is_trial(message):
                leads = isinstance(message, AppendEntries | InstallSnapshot)
                self._become_follower(message.term, sender if leads else None)
        elif message.term < self.state.term:
            self._answer_stale(sender, message)
            return
        self._handle(sender, message)
        self._step_down_if_deposed()

    @property
    def _is_content(self) -> bool:
        """Whether a message from the leader arrived within the election timeout."""
        if isinstance(self.role, RaftLeader):
            return True
        return self.leader is not None and self._quiet_ticks < self.state.settings.election_ticks

    def _answer_stale(self, sender: BrokerId, message: Message) -> None:
        """Answer a message of an older term with the newer term, where that helps the sender."""
        term = self.state.term
        if isinstance(message, AppendEntries | InstallSnapshot):
            self.state.send(sender, AppendEntriesReply(term, accepted=False, index=Index(0)))
        elif isinstance(message, VoteRequest) and message.pre:
            self.state.send(sender, VoteReply(term, granted=False, pre=True))

    def _handle(self, sender: BrokerId, message: Message) -> None:
        """Handle a message of our term, or a pre-vote for the next."""
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message)
            case VoteReply():
                self._on_vote_reply(sender, message)
            case AppendEntries():
                self._follow(sender)
                self._on_append(sender, message)
            case InstallSnapshot():
                self._follow(sender)
                self._on_snapshot(sender, message)
            case AppendEntriesReply():
                if isinstance(self.role, RaftLeader):
                    self.role.on_reply(sender, message)
            case Campaign():
                if self.leader == sender and self.state.is_voter:
                    self._campaign(pre=False, forced=True)
            case _:
                assert_never(message)

    def _follow(self, leader: BrokerId) -> None:
        """Follow the leader of this term."""
        assert not isinstance(self.role, RaftLeader), "one leader in a term"
        if isinstance(self.role, RaftFollower):
            self.role.leader = leader
            self._restart_timer()
        else:
            self._become_follower(self.state.term, leader)

    def _on_vote_request(self, candidate: BrokerId, request: VoteRequest) -> None:
        """Vote for a candidate whose log is at least as new as ours (paper, 5.4.1)."""
        state, log = self.state, self.state.log
        is_new = (request.last_term, request.last_index) >= (log.last_term, log.last_index)
        is_free = request.term > state.term or state.hard.vote in (None, candidate)
        granted = is_new and is_free
        if granted and not request.pre:
            state.hard = HardState(state.term, candidate)
            self._restart_timer()
        term = request.term if granted else state.term
        state.send(candidate, VoteReply(term, granted, request.pre))

    def _on_vote_reply(self, voter: BrokerId, reply: VoteReply) -> None:
        role = self.role
        if not isinstance(role, RaftCandidate) or not reply.granted or reply.pre != role.pre:
            return
        asked = self.state.term + 1 if role.pre else self.state.term
        if reply.term == asked:
            self._count_vote(role, voter)

    def _on_append(self, leader: BrokerId, message: AppendEntries) -> None:
        """Append entries that continue our log; answer after they are on disk."""
        state, log = self.state, self.state.log
        if message.prev_index < log.commit_index:
            # Committed entries are equal everywhere, and may be compacted here.
            reply = AppendEntriesReply(state.term, accepted=True, index=log.commit_index)
        elif log.has(message.prev_index, message.prev_term):
            self._take(message.entries)
            index = Index(message.prev_index + len(message.entries))
            log.commit_index = max(log.commit_index, min(message.commit, index))
            reply = AppendEntriesReply(state.term, accepted=True, index=index)
        else:
            hint = self._last_possible(message.prev_index, message.prev_term)
            reply = AppendEntriesReply(
                state.term, accepted=False, index=message.prev_index, hint=hint
            )
        state.send(leader, _with_round(reply, message.round))

    def _take(self, entries: tuple[RaftEntry, ...]) -> None:
        """Append new entries; truncate only where they differ, since late messages have fewer."""
        log = self.state.log
        for position, entry in enumerate(entries):
            if log.has(entry.index, entry.term):
                continue
            if entry.index <= log.last_index:
                self.state.truncate_from(entry.index)
            self.state.append(entries[position:])
            return

    def _last_possible(self, prev_index: Index, prev_term: Term) -> Index:
        """Return the last index that may be equal, skipping terms that the leader lacks."""
        log = self.state.log
        index = min(prev_index - 1, log.last_index)
        term = log.term_at(index)
        while index > log.commit_index and term is not None and term > prev_term:
            index -= 1
            term = log.term_at(index)
        return Index(index)

    def _on_snapshot(self, leader: BrokerId, message: InstallSnapshot) -> None:
        """Install the leader's snapshot, because it has compacted the entries we need."""
        state = self.state
        if message.snapshot.index > state.log.commit_index:
            state.log.install(message.snapshot)
            state.install()
        reply = AppendEntriesReply(state.term, accepted=True, index=state.log.commit_index)
        state.send(leader, _with_round(reply, message.round))


def _is_trial(message: Message) -> bool:
    """Return whether a message belongs to a pre-vote: its term is not in force."""
    if isinstance(message, VoteRequest):
        return message.pre
    return isinstance(message, VoteReply) and message.pre and message.granted


def _with_round(reply: AppendEntriesReply, read_round: int) -> AppendEntriesReply:
    return AppendEntriesReply(reply.term, reply.accepted, reply.index, reply.hint, read_round)
