"""Directed scenarios of the consensus group, for mistakes that random runs rarely meet.

Rules: an aim chooses how the group is made and what comes right after an election; all else is as
in any history, faults and judges too. Every fourth seed aims, at one of ``AIMS`` after the other.
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
    """Leaders of three that are isolated before any member has their first entry (paper, figure 8).

    One is cut off, then the next, in a newer term; the first comes back and gets its old entry to
    most. Until an entry of its new term follows there, the second may still replace it.
    """

    def choose(self) -> int:
        """Three voters, quick disks, one entry in a message."""
        super().choose()
        self.changes_members, self.is_stormy = False, False
        self.sync_ms = (0.1, 1)
        self.snapshot_every = 10**9
        self.pace_ms = 1_500
        self.settings = RaftSettings(batch_bytes_max=1)
        self.world.faults = NetworkFaults(delay_ms_max=2.0)
        return 3

    def client(self) -> None:
        """None: each leadership leaves one entry, its own, and nothing has to be caught up."""

    def elected(self, member: SimMember) -> None:
        """Be cut off, or get on."""
        self.world.note(f"{member.me} leads {member.raft.state.term}")
        if not self.is_over and self.world.rng.random() < 0.6:
            self.cut_off([member.me], one_way=0)

    def applied(self, member: SimMember, entry: RaftEntry) -> None:
        """A leader considers an old entry committed: isolate it at that moment."""
        is_old = entry.term < member.raft.state.term
        if is_old and isinstance(member.raft.role, RaftLeader) and not self.is_over:
            self.cut_off([member.me], one_way=0)


class TwoChanges(ConsensusGroup):
    """A leader that promotes two learners at once, and is isolated with them.

    Of three old voters the other two elect; three of five would go on without them.
    """

    def choose(self) -> int:
        """Three voters and two spares."""
        super().choose()
        self.changes_members, self.is_stormy = True, False
        self.sync_ms = (0.1, 1)
        self.snapshot_every = 10**9
        self.pace_ms = 1_500
        self.world.faults = NetworkFaults(delay_ms_max=2.0)
        return 3

    def elected(self, member: SimMember) -> None:
        """Get both spares to learn, then make voters of them."""
        self.world.note(f"{member.me} leads {member.raft.state.term}")
        if self.is_over:
            return
        self.command(member)
        self.world.after(60, self.teach, member)
        self.world.after(150, self.promote_both, member)

    def teach(self, member: SimMember) -> None:
        """Three old voters again, and the others learn."""
        members = member.raft.state.members
        if self.is_over or not member.is_up:
            return
        learners = [each for each in self.ids if each not in members.voters]
        if len(members.voters) == 3 and set(learners) != set(members.learners):
            member.change_members(Members(members.voters, tuple(learners)))

    def promote_both(self, member: SimMember) -> None:
        """Make two changes at once, and partition between old and new voters."""
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
    """One history of a group.

    Raises:
        ViolationError: a promise was broken.
        AssertionError: an invariant of the core was.
    """
    return group(seed).run()
