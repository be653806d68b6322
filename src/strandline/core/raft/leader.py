"""The leader role: replication, commits, read confirmation, membership, leadership transfer.

Invariants:
- an entry is committed when a quorum of voters has it on disk *and* it, or a later one, is of this
  term (paper, 5.4.2); the leader counts only what its own disk has;
- a read is confirmed by a quorum that answered after the request. It sees everything that earlier
  leaders committed, since an entry of this term is committed first (thesis 6.4);
- one membership change at a time, of one voter, and only after this term has committed an entry
  (thesis 4.1, and Ongaro's correction of 2015: else two leaders' changes can each find a quorum).

Must not know of elections: the winner of one creates a ``RaftLeader``.
"""

import msgspec

from strandline.core.raft.log import ENTRY_OVERHEAD_BYTES, encode_members
from strandline.core.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    Campaign,
    Index,
    InstallSnapshot,
    Kind,
    Members,
    RaftEntry,
    Term,
)
from strandline.core.raft.progress import RaftProgress
from strandline.core.raft.ready import ReadAllowed
from strandline.core.raft.state import RaftState
from strandline.errors import InvalidRequestError, UnavailableError
from strandline.types import BrokerId

_SNAPSHOT_WAITS = 4
"""A snapshot is sent again after this many election timeouts without an answer."""


class _ReadRequest(msgspec.Struct):
    """A read that waits to be confirmed.

    Attributes:
        context: the caller's value, returned with the answer.
        index: the entry that must be applied first; None until this term has committed one.
        round: the round of heartbeats whose answers confirm it.
    """

    context: object
    index: Index | None
    round: int


class RaftLeader:
    """The leader role of one term; replaced when the member steps down.

    Args:
        state: the member's state; an entry of this term is appended to its log at once.
    """

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._heartbeat_ticks = 0
        self._quorum_ticks = 0
        self._round = 0
        self._reads: list[_ReadRequest] = []
        waiting = state.log.between(state.log.commit_index + 1, state.log.last_index)
        self._pending_bytes = sum(_size(entry) for entry in waiting)
        self._successor: BrokerId | None = None
        self._successor_ticks = 0
        self.is_deposed = False
        """Whether this leader must step down: it lost its quorum, or is no longer a voter."""
        self.followers: dict[BrokerId, RaftProgress] = {}
        self._follow_members()
        self._append(Kind.NOTHING, b"")

    # Inputs

    def tick(self) -> None:
        """Send repeats and heartbeats, and check that a quorum still answers."""
        settings = self._state.settings
        self._successor_ticks = max(self._successor_ticks - 1, 0)
        if not self._successor_ticks:
            self._successor = None
        for follower, progress in self.followers.items():
            if progress.wait_ticks:
                progress.wait_ticks -= 1
                if not progress.wait_ticks:
                    self._replicate(follower)
        self._heartbeat_ticks += 1
        if self._heartbeat_ticks >= settings.heartbeat_ticks:
            self._send_heartbeats()
        self._quorum_ticks += 1
        if self._quorum_ticks >= settings.election_ticks:
            self._check_quorum()

    def propose(self, data: bytes) -> tuple[Index, Term]:
        """Append a command; it is committed when an entry with this index and term is applied.

        Raises:
            UnavailableError: too many proposals wait, or leadership is being handed over.
        """
        if self._successor is not None:
            raise UnavailableError("the controller is handing over its leadership; retry")
        if self._pending_bytes > self._state.settings.pending_bytes_max:
            raise UnavailableError("too many metadata changes wait; retry later")
        return self._append(Kind.COMMAND, data)

    def read(self, context: object) -> None:
        """Confirm with a quorum that we still lead, then return ``context`` in a ``Ready``."""
        self._round += 1
        index = self._state.log.commit_index if self._has_committed_own_term else None
        self._reads.append(_ReadRequest(context, index, self._round))
        self._send_heartbeats()
        self._confirm_reads()

    def change_members(self, members: Members) -> tuple[Index, Term]:
        """Propose another membership.

        Raises:
            InvalidRequestError: more than one voter changes, no voter would be left, a new voter
                was no learner before, or a member is listed twice.
            UnavailableError: an earlier change or this term's first entry is not committed, or the
                new voter has not caught up; retry.
        """
        old = self._state.members
        changed = set(members.voters) ^ set(old.voters)
        if len(set(members.everybody)) != len(members.everybody):
            raise InvalidRequestError("a member is listed twice")
        if not members.voters or len(changed) > 1:
            raise InvalidRequestError("change one voter at a time, and keep at least one")
        log = self._state.log
        if not self._has_committed_own_term or self._state.members_index > log.commit_index:
            raise UnavailableError("the previous membership change is not committed yet; retry")
        for new in changed - set(old.voters):
            if new not in old.learners:
                raise InvalidRequestError(f"broker {new} must be a learner first")
            if self.followers[new].match < log.commit_index:
                raise UnavailableError(f"broker {new} has not caught up yet; retry")
        return self._append(Kind.MEMBERS, encode_members(members))

    def hand_over(self, successor: BrokerId) -> None:
        """Let ``successor`` take over as soon as it has all entries; reject proposals meanwhile.

        Raises:
            InvalidRequestError: ``successor`` is not another voter.
        """
        if successor not in self.followers or successor not in self._state.members.voters:
            raise InvalidRequestError(f"broker {successor} is not another voter")
        self._successor, self._successor_ticks = successor, self._state.settings.election_ticks
        self._hand_over_if_ready()

    def on_reply(self, follower: BrokerId, reply: AppendEntriesReply) -> None:
        """Handle a follower's answer to entries or a snapshot."""
        progress = self.followers.get(follower)
        if progress is None:
            return
        progress.active = True
        progress.round = max(progress.round, reply.round)
        if not reply.accepted:
            if reply.hint < progress.match and follower in self._state.members.learners:
                # It lost its disk. That is safe for a learner, which has no vote. Of a voter it is
                # not believed.
                self.followers[follower] = progress = RaftProgress(Index(reply.hint + 1))
            progress.refused(reply.index, reply.hint)
        elif progress.accepted(reply.index):
            self.advance_commit()
            self._hand_over_if_ready()
        self._confirm_reads()
        if follower in self.followers:
            self._replicate(follower)

    # Committing

    def advance_commit(self) -> None:
        """Commit the entries that a quorum of voters has on disk."""
        state, log = self._state, self._state.log
        stored = sorted(self._stored_by(voter) for voter in state.members.voters)
        index = stored[-state.members.quorum]
        # An entry of an earlier term may still be replaced, though a quorum has it (paper, 5.4.2).
        if index <= log.commit_index or log.term_at(index) != state.term:
            return
        committed = log.between(log.commit_index + 1, index)
        self._pending_bytes -= sum(_size(entry) for entry in committed)
        log.commit_index = index
        self._confirm_reads()
        self._send_heartbeats()
        if state.members_index <= index:
            if not state.is_voter:
                self.is_deposed = True
            for gone in self.followers.keys() - set(state.members.everybody):
                del self.followers[gone]

    def _stored_by(self, voter: BrokerId) -> Index:
        """Return the last index that a voter has on its disk."""
        if voter == self._state.me:
            return self._state.log.stable_index
        return self.followers[voter].match

    @property
    def _has_committed_own_term(self) -> bool:
        return self._state.log.term_at(self._state.log.commit_index) == self._state.term

    def _append(self, kind: Kind, data: bytes) -> tuple[Index, Term]:
        state = self._state
        entry = RaftEntry(Index(state.log.last_index + 1), state.term, kind, data)
        state.append((entry,))
        self._pending_bytes += _size(entry)
        if kind is Kind.MEMBERS:
            self._follow_members()
        for follower in self.followers:
            self._replicate(follower)
        return entry.index, entry.term

    # Reads

    def _confirm_reads(self) -> None:
        """Put the reads that a quorum has confirmed into the next ``Ready``, in order."""
        members = self._state.members
        if self._reads and not self._has_committed_own_term:
            return
        while self._reads:
            read = self._reads[0]
            if read.index is None:
                read.index = self._state.log.commit_index
            confirmed = sum(self._confirmed_by(voter) >= read.round for voter in members.voters)
            if confirmed < members.quorum:
                return
            self._reads.pop(0)
            self._state.reads.append(ReadAllowed(read.context, read.index))

    def _confirmed_by(self, voter: BrokerId) -> int:
        return self._round if voter == self._state.me else self.followers[voter].round

    def give_up_reads(self) -> list[object]:
        """Return the contexts of unconfirmed reads, because this member no longer leads."""
        lost, self._reads = [read.context for read in self._reads], []
        return lost

    # Replicating

    def _follow_members(self) -> None:
        """Replicate to all members of the newest membership.

        A removed member still gets entries until its removal is committed, and so learns of it.
        """
        for member in self._state.members.everybody:
            if member != self._state.me and member not in self.followers:
                self.followers[member] = RaftProgress(Index(self._state.log.last_index + 1))

    def _send_heartbeats(self) -> None:
        """Send heartbeats without entries: only answers to entries may move progress back."""
        state, log = self._state, self._state.log
        self._heartbeat_ticks = 0
        for follower, progress in self.followers.items():
            previous = progress.match if progress.match >= log.base_index else Index(0)
            message = AppendEntries(
                state.term,
                previous,
                log.term_at(previous) or Term(0),
                commit=Index(min(log.commit_index, previous)),
                round=self._round,
            )
            state.send(follower, message, early=True)

    def _replicate(self, follower: BrokerId) -> None:
        """Send the next entries or the snapshot, unless an answer is outstanding."""
        state, log, progress = self._state, self._state.log, self.followers[follower]
        if progress.wait_ticks or progress.next > log.last_index:
            return
        if progress.next <= log.base_index:
            progress.wait_ticks = _SNAPSHOT_WAITS * state.settings.election_ticks
            message = InstallSnapshot(state.term, log.snapshot, self._round)
            state.send(follower, message, early=True)
            return
        previous = Index(progress.next - 1)
        previous_term = log.term_at(previous)
        assert previous_term is not None, "at or above the base"
        progress.wait_ticks = state.settings.election_ticks
        entries = log.batch_from(progress.next, state.settings.batch_bytes_max)
        append = AppendEntries(
            state.term, previous, previous_term, log.commit_index, entries, self._round
        )
        state.send(follower, append, early=True)

    def _check_quorum(self) -> None:
        """Step down if no quorum has answered lately: another member may lead (thesis 6.2)."""
        self._quorum_ticks = 0
        members, me = self._state.members, self._state.me
        active = sum(voter == me or self.followers[voter].active for voter in members.voters)
        for progress in self.followers.values():
            progress.active = False
        if active < members.quorum:
            self.is_deposed = True

    def _hand_over_if_ready(self) -> None:
        if self._successor is None or self._successor not in self.followers:
            return
        if self.followers[self._successor].match == self._state.log.last_index:
            self._state.send(self._successor, Campaign(self._state.term))


def _size(entry: RaftEntry) -> int:
    """Return the bytes that an entry counts against the limit of pending proposals."""
    return len(entry.data) + ENTRY_OVERHEAD_BYTES
