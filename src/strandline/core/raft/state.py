"""State that a member keeps in every role, and its outgoing messages.

Invariants:
- the term only grows; within a term the vote is given once and never taken back;
- ``members`` is the newest membership in the log, committed or not;
- a message that depends on the term or vote is sent only after they are on disk.
"""

from collections.abc import Callable, Sequence

import msgspec

from strandline.core.raft.log import RaftLog
from strandline.core.raft.messages import Envelope, HardState, Index, Kind, Message, RaftEntry, Term
from strandline.core.raft.ready import ReadAllowed, Ready
from strandline.types import BrokerId


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ticks, whose length the driver chooses; sizes in bytes.

    Attributes:
        election_ticks: without a leader for this long (and up to twice, at random) a member stands
            for election; a leader that has not heard from a quorum for as long steps down.
        heartbeat_ticks: the time between two heartbeats.
        batch_bytes_max: the limit of entries in one message.
        pending_bytes_max: the limit of uncommitted proposals; more are rejected.
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 2
    batch_bytes_max: int = 256 << 10
    pending_bytes_max: int = 64 << 20


class RaftState:
    """The state that all roles share.

    Args:
        me: this member.
        log: as on disk.
        hard: as on disk.
        settings: timing and sizes.
        jitter: ``jitter(n)`` returns a random number from 0 to n - 1, so that members do not stand
            for election at the same time.
    """

    def __init__(
        self,
        me: BrokerId,
        log: RaftLog,
        *,
        hard: HardState,
        settings: RaftSettings,
        jitter: Callable[[int], int],
    ) -> None:
        self.me = me
        self.log = log
        self.hard = hard
        self.settings = settings
        self.jitter = jitter
        self.members, self.members_index = log.members()
        self._saved_hard = hard
        self._installed = False
        self._early: list[Envelope] = []
        self._late: list[Envelope] = []
        self._is_out = False
        self.reads: list[ReadAllowed] = []
        self.lost_reads: list[object] = []

    @property
    def term(self) -> Term:
        """The newest term known."""
        return self.hard.term

    @property
    def is_voter(self) -> bool:
        """Whether this member takes part in decisions."""
        return self.me in self.members.voters

    @property
    def may_stand(self) -> bool:
        """Whether this member may stand for election.

        A voter that is being removed may, until its removal is committed, but its own vote does not
        count: its log may be the only one that is new enough (thesis 4.2.2).
        """
        if self.is_voter or self.members_index <= self.log.commit_index:
            return self.is_voter
        before, _ = self.log.members(before=self.members_index)
        return self.me in before.voters

    # Outgoing messages

    def send(self, receiver: BrokerId, message: Message, *, early: bool = False) -> None:
        """Put a message into the next ``Ready``.

        Args:
            receiver: the receiver.
            message: the message.
            early: it depends on the term only, so it need not wait for entries. It does wait while
                the term itself is not on disk: a single voter elects itself at once, and after a
                crash would lead the same term a second time, with other entries.
        """
        is_early = early and self.hard == self._saved_hard
        (self._early if is_early else self._late).append(Envelope(self.me, receiver, message))

    def take_ready(self) -> Ready:
        """Return the work to do now; see ``ready.py``."""
        assert not self._is_out, "the Ready before was not reported as persisted"
        log = self.log
        ready = Ready(
            hard_state=self.hard if self.hard != self._saved_hard else None,
            snapshot=log.snapshot if self._installed else None,
            entries=tuple(log.between(log.stable_index + 1, log.last_index)),
            early=tuple(self._early),
            late=tuple(self._late),
            committed=log.take_committed(),
            reads=tuple(self.reads),
            lost_reads=tuple(self.lost_reads),
        )
        self._installed = False
        for taken in (self._early, self._late, self.reads, self.lost_reads):
            taken.clear()
        self._is_out = bool(ready)
        return ready

    def mark_persisted(self, ready: Ready) -> None:
        """Note that the contents of the last ``Ready`` are on disk."""
        assert self._is_out, "each Ready is reported once"
        self._is_out = False
        if ready.hard_state is not None:
            self._saved_hard = ready.hard_state
        if ready.entries:
            newest = ready.entries[-1]
            self.log.mark_stable(newest.index, newest.term)

    # The log

    def append(self, entries: Sequence[RaftEntry]) -> None:
        """Append entries; a membership among them is in force from now on (thesis 4.1)."""
        self.log.append(entries)
        if any(entry.kind is Kind.MEMBERS for entry in entries):
            self.members, self.members_index = self.log.members()

    def truncate_from(self, index: Index) -> None:
        """Truncate entries that the leader lacks; a membership among them is no longer in force."""
        self.log.truncate_from(index)
        if self.members_index >= index:
            self.members, self.members_index = self.log.members()

    def install(self) -> None:
        """Take over the members of a snapshot that the log has just installed."""
        self._installed = True
        self.members, self.members_index = self.log.members()
