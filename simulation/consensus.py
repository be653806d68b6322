"""Runs of the consensus group: real ``Raft`` cores on simulated disks, clocks and network.

Faults: messages lost, repeated, late and out of order; links blocked one way or both; crashes of
one member or all, which lose any part of the unsynced writes; slow syncs; clocks that run at
different speeds; snapshots; leadership transfers; membership changes, many of them right after
elections. ``ConsensusChecker`` judges, and ``QuorumWatch`` finds leaders without a quorum. After
some time all faults end, and then the group has to agree again and to make progress: see
``Trials``.
"""

from collections.abc import Sequence

from simulation.consensus_checker import ConsensusChecker
from simulation.consensus_member import SimMember
from simulation.consensus_trials import Trials
from simulation.world import NetworkFaults, World
from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.messages import Envelope, Members, RaftEntry
from strandline.core.raft.state import RaftSettings
from strandline.types import BrokerId

FAULTY_MS = 6_000.0
HEALED_MS = 5_000.0


class ConsensusGroup:
    """A simulated group and its history.

    Args:
        seed: determines everything.
    """

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        voters = self.choose()
        spares = 2 if self.changes_members else 0
        self.ids = tuple(BrokerId(number) for number in range(1, voters + spares + 1))
        members = Members(voters=self.ids[:voters])
        self.checker = ConsensusChecker(self.world, members)
        self.members = {me: SimMember(self, me, members) for me in self.ids}
        self.commands = 0

    def choose(self) -> int:
        """Choose limits and speeds; return the number of voters at the beginning."""
        rng = self.world.rng
        voters: int = rng.choice((1, 2, 3, 3, 4, 5))
        self.changes_members = rng.random() < 0.5
        self.sync_ms: Sequence[float] = rng.choice(
            ((0.1,), (0.1, 1, 5, 20), (5, 20, 60), (1, 1, 1, 200))
        )
        self.snapshot_every = rng.choice((8, 30, 10**9))
        self.pace_ms = rng.choice((1_500, 500, 150, 50))
        self.laziness = rng.choice((0, 0.3))
        self.is_stormy = rng.random() < 0.3
        self.settings = RaftSettings(batch_bytes_max=rng.choice((30, 100, 256 << 10)))
        self.world.faults = NetworkFaults(
            loss=rng.choice((0, 0.02, 0.15)),
            repeat=rng.choice((0, 0.02, 0.1)),
            delay_ms_max=rng.choice((2, 10, 30)),
            straggler=rng.choice((0.03, 0.15)),
        )
        return voters

    def run(self) -> World:
        """Run the history: faults, then healing, then checks.

        Raises:
            ViolationError: a promise was broken.
            AssertionError: an invariant of the core was violated.
        """
        world = self.world
        for _ in range(3):
            world.after(200, self.client)
        world.after(300, self.chaos)
        world.run_until(FAULTY_MS)
        world.calm()
        self.sync_ms = (0.1, 1)
        for member in self.members.values():
            self.restart(member)
        world.run_until(FAULTY_MS + HEALED_MS)
        self.judge_end()
        Trials(self).run()
        self.judge_end()
        return world

    def judge_end(self) -> None:
        """Check the group some time after all faults have ended."""
        self.checker.judge_end([member.raft for member in self.members.values()])

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Send messages over the network."""
        for envelope in envelopes:
            link = (envelope.sender, envelope.receiver)
            self.world.send(link, self.members[envelope.receiver].receive, envelope)

    def restart(self, member: SimMember) -> None:
        """Start a member that is down."""
        if not member.is_up:
            member.start()

    # Events

    @property
    def is_over(self) -> bool:
        """Whether the faults have ended."""
        return self.world.now_ms >= FAULTY_MS

    def leading(self) -> list[SimMember]:
        """Members that believe they lead."""
        members = self.members.values()
        return [m for m in members if m.is_up and isinstance(m.raft.role, RaftLeader)]

    def client(self) -> None:
        """Issue a command or a read now, and again soon."""
        world, rng = self.world, self.world.rng
        if self.is_over:
            return
        world.after(rng.uniform(2, 40), self.client)
        up = self.leading() or [m for m in self.members.values() if m.is_up]
        if not up:
            return
        member = rng.choice(up)
        if rng.random() < 0.3:
            self.ask(member)
        elif not member.pause_ms:
            self.command(member)

    def command(self, member: SimMember) -> None:
        """Issue a client's command."""
        self.commands += 1
        member.propose(b"c%d" % self.commands)

    def ask(self, member: SimMember) -> None:
        """Issue a client's read."""
        if member.is_up and not member.pause_ms:
            self.commands += 1
            member.read(self.commands, self.checker.acked_index)

    def elected(self, member: SimMember) -> None:
        """Stress a new leader: propose at once, isolate it, or kill it."""
        rng = self.world.rng
        self.world.note(f"{member.me} leads {member.raft.state.term}")
        if self.is_over:
            return
        if rng.random() < 0.3:  # a client was waiting for a leader
            self.command(member)
        if rng.random() < (0.6 if self.is_stormy else 0.1):
            self.world.after(rng.uniform(0, 80 if self.is_stormy else 10), self.kill, member)
        if self.changes_members and rng.random() < 0.6:
            for _ in range(rng.choice((1, 1, 2))):
                self.world.after(0, self.change_members, member)
            if rng.random() < 0.6:
                self.world.after(rng.uniform(0, 15), self.isolate, member)

    def applied(self, member: SimMember, entry: RaftEntry) -> None:
        """Handle that a member has applied an entry; scenarios override this."""

    def isolate(self, member: SimMember) -> None:
        """Partition a member, with at most half of the others."""
        if self.is_over:
            return
        others = [each for each in self.ids if each != member.me]
        few = self.world.rng.randrange(0, max(1, len(others) // 2 + 1))
        self.cut_off([member.me, *self.world.rng.sample(others, few)], one_way=0)

    def cut_off(self, side: Sequence[BrokerId], *, one_way: float) -> None:
        """Partition ``side`` for a while: long enough for an election, short enough to continue.

        A partition that begins meanwhile replaces this one, and ends with it.
        """
        self.world.partition(side, self.ids, one_way=one_way)
        self.world.after(self.world.rng.uniform(20, 600), self.world.heal)

    def change_members(self, member: SimMember) -> None:
        """Add a learner, promote one, or remove a member."""
        rng = self.world.rng
        old = member.raft.state.members
        voters, learners = set(old.voters), set(old.learners)
        for someone in rng.sample(self.ids, rng.choice((1, 1, 1, 2))):  # two must be rejected
            if someone in voters and len(voters) > 1:
                voters.remove(someone)
            elif someone in learners:
                learners.remove(someone)
                voters.add(someone)
            elif someone not in voters:
                learners.add(someone)
        member.change_members(Members(tuple(sorted(voters)), tuple(sorted(learners))))

    def chaos(self) -> None:
        """Cause a fault, and schedule the next one."""
        world, rng = self.world, self.world.rng
        if self.is_over:
            return
        world.after(rng.uniform(5, self.pace_ms), self.chaos)
        up, leading = [m for m in self.members.values() if m.is_up], self.leading()
        dice = rng.random()
        if leading and dice < 0.25:
            self.strike(rng.choice(leading))
        elif up and dice < 0.35:
            self.kill(rng.choice(up))
        elif dice < 0.37:
            for member in up:
                self.kill(member)
        elif dice < 0.5:
            side = rng.sample(self.ids, rng.randrange(len(self.ids)))
            self.cut_off(side, one_way=rng.choice((0, 0.3)))
        elif dice < 0.6:
            world.heal()
        elif leading:
            member = rng.choice(leading)
            if self.changes_members and rng.random() < 0.7:
                self.change_members(member)
            else:
                member.hand_over(rng.choice(self.ids))

    def strike(self, leader: SimMember) -> None:
        """Kill a leader, isolate it, or pause it through an election."""
        dice = self.world.rng.random()
        if dice < 0.35:
            self.kill(leader)
        elif dice < 0.7:
            self.isolate(leader)
        else:
            leader.pause(self.world.rng.uniform(50, 500))

    def kill(self, member: SimMember) -> None:
        """Crash a member, and start it again later."""
        member.crash()
        down_ms_max = 80 if self.is_stormy else 400
        self.world.after(self.world.rng.uniform(5, down_ms_max), self.restart, member)
