"""Liveness checks for a healed group, each in a bounded time.

- There is one leader, and it commits a command.
- A voter is isolated, or receives from everybody except the leader, and returns: the leader is the
  same, since a candidate without a majority deposes nobody.
- The leader transfers its leadership to a voter that lacks its last commands: that voter leads the
  next term, with these commands.

Rules: meanwhile the network loses nothing and delays little, and every member runs. Only role, term
and membership of a member are read.
"""

from typing import TYPE_CHECKING, Final

from strandline.core.raft.messages import Index, Term
from strandline.testing.history import ViolationError
from strandline.types import BrokerId

if TYPE_CHECKING:
    from simulation.consensus import ConsensusGroup
    from simulation.consensus_member import SimMember

COMMIT_MS: Final = 200.0
AWAY_MS: Final = 700.0
"""More than two election timeouts of the slowest clock."""
BACK_MS: Final = 500.0
HAND_OVER_MS: Final = 400.0


class Trials:
    """The checks at the end of a history.

    Args:
        group: a group without faults and without work left.
    """

    def __init__(self, group: "ConsensusGroup") -> None:
        self._group = group
        self._world = group.world
        self._ordered: set[tuple[Index, Term]] = set()

    def run(self) -> None:
        """Run every check for which there are enough members.

        Raises:
            ViolationError: the group failed a check.
        """
        leader = self._the_leader()
        self._commit(leader)
        others = [voter for voter in leader.raft.state.members.voters if voter != leader.me]
        if len(others) > 1:  # the rest is a quorum without one of them
            self._send_away(leader, self._world.rng.choice(others))
        if others:
            self._hand_over(leader, self._world.rng.choice(others))

    def _pass(self, time_ms: float) -> None:
        self._world.run_until(self._world.now_ms + time_ms)

    def _the_leader(self) -> "SimMember":
        leading = self._group.leading()
        if len(leading) != 1:
            raise ViolationError(f"a healed group has the leaders {[m.me for m in leading]}")
        return leading[0]

    def _check_leader(self, broker: BrokerId, term: int, *, after: str) -> None:
        now = self._the_leader()
        led = now.raft.state.term
        if (now.me, led) != (broker, term):
            raise ViolationError(
                f"after {after} broker {now.me} leads term {led}, not {broker} term {term}"
            )

    def _order(self, leader: "SimMember") -> None:
        """Propose a command; fail if the leader does not accept it."""
        before = set(leader.proposed)
        self._group.command(leader)
        ordered = leader.proposed.keys() - before
        self._ordered |= ordered
        if not ordered:
            raise ViolationError(f"broker {leader.me} leads a healed group but accepts no command")

    def _check_done(self, leader: "SimMember") -> None:
        """Check that every command proposed here is applied."""
        for entry in sorted(self._ordered & leader.proposed.keys()):
            raise ViolationError(f"broker {leader.me} accepted {entry}, which was not applied")

    def _commit(self, leader: "SimMember") -> None:
        self._order(leader)
        self._pass(COMMIT_MS)
        self._check_done(leader)

    def _send_away(self, leader: "SimMember", away: BrokerId) -> None:
        """Isolate a voter from the others, or from the leader's messages."""
        term = leader.raft.state.term
        if self._world.rng.random() < 0.5:
            self._world.partition([away], self._group.ids, one_way=0)
        else:
            self._world.cut([(leader.me, away)])
        self._pass(AWAY_MS)
        self._world.heal()
        self._pass(BACK_MS)
        self._check_leader(leader.me, term, after=f"broker {away} was away")

    def _hand_over(self, leader: "SimMember", successor: BrokerId) -> None:
        term = leader.raft.state.term
        for _ in range(2):  # the second command waits for the answer to the first
            self._order(leader)
        leader.hand_over(successor)
        self._pass(HAND_OVER_MS)
        self._check_leader(
            successor, term + 1, after=f"broker {leader.me} handed over to {successor}"
        )
        self._check_done(leader)
