"""Directed scenarios of the consensus group, for mistakes that random runs rarely meet.

Rules: a scenario chooses the group's parameters and what happens right after an election. The rest,
with faults and checks, is as in any history. Every fourth seed runs one of ``AIMS``, in rotation.
"""

from typing import Final

from simulation.consensus import ConsensusGroup
from simulation.consensus_member import SimMember
from simulation.world import NetworkFaults, World
from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.messages import Members, RaftEntry
from strandline.core.raft.state import RaftSettings
from strandline.types import BrokerId


class Figure8(ConsensusGroup):
    """The paper's figure 8: leaders are isolated before any other member has their first entry.

    One leader is isolated, then the next, in a newer term. The first returns and replicates its
    old entry to a majority. The second may still replace that, until an entry of the first
    leader's new term is replicated, too.
    """

    def choose(self) -> int:
        """Choose three voters, fast disks, and one entry in a message."""
        super().choose()
        self.changes_members, self.is_stormy = False, False
        self.sync_ms = (0.1, 1)
        self.snapshot_every = 10**9
        self.pace_ms = 1_500
        self.settings = RaftSettings(batch_bytes_max=1)
        self.world.faults = NetworkFaults(delay_ms_max=2.0)
        return 3

    def client(self) -> None:
        """Issue nothing: each leadership leaves its own entry only, so nobody has to catch up."""

    def elected(self, member: SimMember) -> None:
        """Isolate the new leader, or let it continue."""
        self.world.note(f"{member.me} leads {member.raft.state.term}")
        if not self.is_over and self.world.rng.random() < 0.6:
            self.cut_off([member.me], one_way=0)

    def applied(self, member: SimMember, entry: RaftEntry) -> None:
        """Isolate a leader at the moment at which it considers an old entry committed."""
        is_old = entry.term < member.raft.state.term
        if is_old and isinstance(member.raft.role, RaftLeader) and not self.is_over:
            self.cut_off([member.me], one_way=0)


class TwoChanges(ConsensusGroup):
    """A leader that promotes two learners at once, and is isolated with them.

    The other two of three old voters are a majority and elect. With both changes, the leader and
    the learners would be a majority of five, too.
    """

    def choose(self) -> int:
        """Choose three voters and two spare members."""
        super().choose()
        self.changes_members, self.is_stormy = True, False
        self.sync_ms = (0.1, 1)
        self.snapshot_every = 10**9
        self.pace_ms = 1_500
        self.world.faults = NetworkFaults(delay_ms_max=2.0)
        return 3

    def elected(self, member: SimMember) -> None:
        """Make both spare members learners, then voters."""
        self.world.note(f"{member.me} leads {member.raft.state.term}")
        if self.is_over:
            return
        self.command(member)
        self.world.after(60, self.teach, member)
        self.world.after(150, self.promote_both, member)

    def teach(self, member: SimMember) -> None:
        """Restore the three old voters, and make the others learners."""
        members = member.raft.state.members
        if self.is_over or not member.is_up:
            return
        learners = [each for each in self.ids if each not in members.voters]
        if len(members.voters) == 3 and set(learners) != set(members.learners):
            member.change_members(Members(members.voters, tuple(learners)))

    def promote_both(self, member: SimMember) -> None:
        """Make two changes at once, and isolate the leader and the new voters."""
        if self.is_over or not member.is_up or member.pause_ms:
            return
        voters, learners = member.raft.state.members.voters, member.raft.state.members.learners
        side: list[BrokerId] = [member.me, *learners]
        while learners:
            voters, learners = tuple(sorted((*voters, learners[0]))), learners[1:]
            member.change_members(Members(voters, learners))
        self.cut_off(side, one_way=0)


AIMS: Final = (Figure8, TwoChanges)


def group(seed: int) -> ConsensusGroup:
    """Return the group whose run a seed determines."""
    if seed % 4 == 3:
        return AIMS[seed // 4 % len(AIMS)](seed)
    return ConsensusGroup(seed)


def run(seed: int) -> World:
    """Run the history of a seed.

    Raises:
        ViolationError: a promise was broken.
        AssertionError: an invariant of the core was violated.
    """
    return group(seed).run()
