"""Invariants of every run of a consensus group, checked from outside the core.

- one leader a term;
- one entry per index, for all members and all time; none is skipped;
- an acknowledged command is in the log once, and stays there;
- a read sees everything that was acknowledged before it was requested;
- a member's membership is the newest one in its log;
- after healing there is a leader, and all its members have applied the same entries.
"""

from collections.abc import Sequence

from simulation.world import World
from strandline.core.raft.leader import RaftLeader
from strandline.core.raft.log import decode_members
from strandline.core.raft.messages import Index, Kind, Members, RaftEntry, Term
from strandline.core.raft.raft import Raft
from strandline.testing.history import ViolationError
from strandline.types import BrokerId


class ConsensusChecker:
    """Records every answer, and raises ``ViolationError`` at the first contradiction.

    Args:
        world: its fingerprint includes all answers.
        founders: the members at the beginning.
    """

    def __init__(self, world: World, founders: Members) -> None:
        self._world = world
        self._memberships: list[tuple[Index, Members]] = [(Index(0), founders)]
        self._leaders: dict[Term, BrokerId] = {}
        self._entries: dict[Index, tuple[Term, Kind, bytes]] = {}
        self._chains: dict[Index, int] = {Index(0): 0}
        self._commands: dict[bytes, Index] = {}
        self._acked: dict[bytes, Index] = {}
        self.acked_index = Index(0)
        """The highest index that was acknowledged to a client."""

    def observe(self, me: BrokerId, raft: Raft) -> None:
        """Check a member between two events."""
        state = raft.state
        if isinstance(raft.role, RaftLeader):
            first = self._leaders.setdefault(state.term, me)
            if first != me:
                raise ViolationError(f"brokers {first} and {me} both lead term {state.term}")
        index = state.members_index
        if index > state.log.snapshot.index:
            held = state.log.between(index, index)
            if not held or held[0].kind is not Kind.MEMBERS:
                raise ViolationError(f"broker {me} uses a membership that is not in its log")
            if decode_members(held[0].data) != state.members:
                raise ViolationError(f"broker {me} does not use the newest membership in its log")

    def applied(self, entry: RaftEntry, chain: int) -> None:
        """Check an applied entry; ``chain`` is the member's checksum of all entries so far."""
        value = (entry.term, entry.kind, entry.data)
        if self._entries.setdefault(entry.index, value) != value:
            other = self._entries[entry.index]
            raise ViolationError(f"two values at {entry.index}: {other} and {value}")
        self.restored(entry.index, chain)
        if entry.kind is Kind.MEMBERS and entry.index > self._memberships[-1][0]:
            self._memberships.append((entry.index, decode_members(entry.data)))
        if entry.kind is Kind.COMMAND:
            first = self._commands.setdefault(entry.data, entry.index)
            if first != entry.index:
                raise ViolationError(f"{entry.data!r} is at {first} and at {entry.index}")
        self._world.note(f"{entry.index} {entry.data!r}")

    def restored(self, index: Index, chain: int) -> None:
        """Check that a member's state after ``index`` has this checksum."""
        if self._chains.setdefault(index, chain) != chain:
            raise ViolationError(f"two states after entry {index}")

    def restored_members(self, index: Index, members: Members) -> None:
        """Check the membership in the snapshot from which a member restarts."""
        known = [each for at, each in self._memberships if at <= index]
        if known[-1] != members:
            raise ViolationError(f"the snapshot at {index} holds {members}, not {known[-1]}")

    def acked(self, command: bytes, index: Index) -> None:
        """Note that a client's command was acknowledged."""
        if command in self._acked:
            raise ViolationError(f"{command!r} was acked twice")
        self._acked[command] = index
        self.acked_index = max(self.acked_index, index)

    def read(self, applied: Index, *, must_see: Index) -> None:
        """Check a read that was answered from the state after ``applied``."""
        if applied < must_see:
            raise ViolationError(f"a read saw entry {applied}, but {must_see} was acked before")

    def judge_end(self, members: Sequence[Raft]) -> None:
        """Check the group some time after all faults have ended."""
        leading = [raft for raft in members if isinstance(raft.role, RaftLeader)]
        if not leading:
            raise ViolationError("no leader after healing")
        leader = max(leading, key=lambda raft: raft.state.term)
        applied = leader.state.log.applied_index
        if applied < self.acked_index:
            raise ViolationError(f"entry {self.acked_index} was acked; the log ends at {applied}")
        known = set(leader.state.members.everybody)
        for raft in members:
            if raft.state.me in known and raft.state.log.applied_index != applied:
                behind = raft.state.log.applied_index
                raise ViolationError(f"broker {raft.state.me} has applied {behind}, not {applied}")
        for command, index in self._acked.items():
            if self._entries[index][2] != command:
                raise ViolationError(f"{command!r} was acked, but is not at {index}")
        if len(self._acked) == 0 and len(self._commands) > 0:
            self._world.counts["histories without acks"] += 1
