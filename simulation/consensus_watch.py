"""Checks that a quorum has answered a leader recently, in ticks of the leader.

Rules: an election, or a change of the membership, counts as an answer of everybody; otherwise only
answers of the leader's own term count. A leader that received no answers of a quorum for two
election timeouts must have stepped down: another member may lead, and its clients wait in vain.
"""

from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.messages import AppendEntriesReply, Envelope, Index, Term
from strandline.core.raft.raft import Raft
from strandline.testing.history import ViolationError
from strandline.types import BrokerId

PATIENCE: int = 2
"""After this many election timeouts without a quorum a leader must have stepped down."""


class QuorumWatch:
    """The watch of one member, in one run."""

    def __init__(self) -> None:
        self._ticks = 0
        self._era: tuple[Term, Index] | None = None
        self._since = 0
        self._heard: dict[BrokerId, int] = {}

    def note(self, raft: Raft, envelope: Envelope | None) -> None:
        """Note a message that the member has received, or a tick if None.

        Raises:
            ViolationError: the member leads, although it had no quorum for too long.
        """
        self._ticks += envelope is None
        if not isinstance(raft.role, RaftLeader):
            self._era = None
            return
        era = (raft.state.term, raft.state.members_index)
        if era != self._era:
            self._era, self._since, self._heard = era, self._ticks, {}
        if envelope is None:
            self._judge(raft)
        elif isinstance(envelope.message, AppendEntriesReply) and envelope.message.term == era[0]:
            self._heard[envelope.sender] = self._ticks

    def _judge(self, raft: Raft) -> None:
        state = raft.state
        oldest = self._ticks - PATIENCE * state.settings.election_ticks
        voters = state.members.voters
        heard = [v for v in voters if v == state.me or self._heard.get(v, self._since) >= oldest]
        if len(heard) < state.members.quorum:
            raise ViolationError(
                f"broker {state.me} still leads term {state.term}, although only {heard} of "
                f"{voters} answered in {PATIENCE} election timeouts"
            )
