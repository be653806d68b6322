"""Log entries and the messages between members of the group.

Values only. Indexes count entries from 1, 0 means "before the first"; terms count elections from 1.
Every message carries the sender's term, so that the receiver recognises outdated messages.
"""

from enum import IntEnum
from typing import NewType

import msgspec

from strandline.types import BrokerId

Term = NewType("Term", int)
"""Number of an election; at most one leader in each."""

Index = NewType("Index", int)
"""Number of an entry in the log, from 1."""


class Kind(IntEnum):
    """The purpose of an entry."""

    NOTHING = 0
    """The first entry of each leader: once it is committed, so is everything before it."""
    COMMAND = 1
    MEMBERS = 2


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The voters and learners of the group.

    Attributes:
        voters: elect and commit, by majority.
        learners: receive the log, but have no vote.
    """

    voters: tuple[BrokerId, ...] = ()
    learners: tuple[BrokerId, ...] = ()

    @property
    def everybody(self) -> tuple[BrokerId, ...]:
        """Voters, then learners."""
        return (*self.voters, *self.learners)

    @property
    def quorum(self) -> int:
        """The number of votes that decides."""
        return len(self.voters) // 2 + 1


class RaftEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the log."""

    index: Index
    term: Term
    kind: Kind
    data: bytes = b""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after entry ``index``, instead of the entries up to it."""

    index: Index = Index(0)
    term: Term = Term(0)
    members: Members = Members()
    data: bytes = b""


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """Election state that must be on disk before a member answers (Raft §5.1: term and vote)."""

    term: Term = Term(0)
    vote: BrokerId | None = None


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A candidate asks for a vote in ``term``; a pre-vote asks whether it would get one.

    Attributes:
        last_index: of the candidate's log.
        last_term: of the candidate's log.
        pre: whether it is a pre-vote, which binds nobody; its term is the next one.
        forced: the leader itself asked for this election, so vote even though it is alive.
    """

    term: Term
    last_index: Index
    last_term: Term
    pre: bool = False
    forced: bool = False


class VoteReply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to a vote request; a rejection carries the voter's own term."""

    term: Term
    granted: bool
    pre: bool = False


class AppendEntries(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Entries after ``prev_index``, or none: then it is a heartbeat.

    Attributes:
        prev_index: the entry before the first; the follower must have it with ``prev_term``.
        prev_term: of that entry.
        commit: the leader's commit index.
        entries: in order.
        round: the round of heartbeats; its echo confirms the leader for the reads of that round.
    """

    term: Term
    prev_index: Index
    prev_term: Term
    commit: Index
    entries: tuple[RaftEntry, ...] = ()
    round: int = 0


class AppendEntriesReply(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A follower's answer: whether the entries are in its log, on disk.

    Attributes:
        accepted: whether they fit.
        index: accepted: everything up to here equals the leader's log. Rejected: ``prev_index``.
        hint: rejected: the last index that may be equal.
        round: as in the request.
    """

    term: Term
    accepted: bool
    index: Index
    hint: Index = Index(0)
    round: int = 0


class InstallSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The leader's snapshot, for a follower whose next entries the leader has dropped."""

    term: Term
    snapshot: Snapshot
    round: int = 0


class Campaign(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The leader transfers its leadership: start an election at once."""

    term: Term


Message = VoteRequest | VoteReply | AppendEntries | AppendEntriesReply | InstallSnapshot | Campaign


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message with its sender and receiver."""

    sender: BrokerId
    receiver: BrokerId
    message: Message
