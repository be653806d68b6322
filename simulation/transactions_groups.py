"""The group coordinator in runs of transactions: it accepts markers and offsets.

Rules: the real state machine runs, built from the stored entries. It crashes and starts again;
requests that it had then are not answered.
"""

from collections import deque
from typing import Any, Final

from simulation.world import World
from strandline.core.coordinator_effects import Answer, EntriesStored, Reject, Store, restore
from strandline.core.groups import events as ev
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.state import GroupEntry, GroupsState
from strandline.core.groups.transactions import PendingOffsets, TransactionMark
from strandline.core.transactions.effects import SendMarker
from strandline.core.transactions.state import TransactionalProducer, TransactionPartition
from strandline.types import LogId

GROUPS_PLACE: Final = TransactionPartition("__groups", 0, LogId(1_000))
STREAM: Final = "in"
STORE_MS_MAX: Final = 4.0
DELAY_MS_MAX: Final = 5.0


class SimGroups:
    """The group coordinator, through several runs.

    Args:
        world: the history's world.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: list[GroupEntry] = []
        self._tokens = 0
        self._begin()

    def _begin(self) -> None:
        state = GroupsState()
        restore(state, self.entries)
        self.coordinator = GroupCoordinator(
            state, {}, created={}, now_ms=int(self.world.now_ms), sequence=len(self.entries)
        )
        self._unstored: deque[GroupEntry] = deque()
        self._waiting: dict[object, Any] = {}

    def crash(self) -> None:
        """Replace the coordinator; some of the entries in flight are stored."""
        for _ in range(self.world.rng.randint(0, len(self._unstored))):
            self.entries.append(self._unstored.popleft())
        waiting = list(self._waiting.values())
        self._begin()
        for answer in waiting:
            answer(None)

    def mark(self, mark: SendMarker, done: Any) -> None:
        """Accept a marker; ``done`` receives "ok" or "lost"."""
        who, kind = _transaction(mark.producer), TransactionMark(mark.kind.value)

        def answered(outcome: object) -> None:
            assert not isinstance(outcome, Reject), outcome
            done("lost" if outcome is None else "ok")

        self.ask(lambda token: ev.MarkTransaction(token, who, kind), answered)

    def commit(
        self, group: str, offset: int, producer: TransactionalProducer, *, answer: Any
    ) -> None:
        """Commit offsets, perhaps late; ``answer`` receives an effect, or None."""
        who, positions = _transaction(producer), {STREAM: {0: offset}}
        rng = self.world.rng
        delay_ms = rng.uniform(0.1, DELAY_MS_MAX) * rng.choice((1, 1, 1, 30))

        def make(token: object) -> ev.Request:
            return ev.Commit(token, group, positions, transaction=who)

        self.world.after(delay_ms, self.ask, make, answer)

    def position(self, group: str) -> int:
        """Return a group's committed offset; -1 if it has none."""
        known = self.coordinator.state.groups.get(group)
        return -1 if known is None else known.positions.get(STREAM, {}).get(0, -1)

    def is_undecided(self) -> bool:
        """Whether offsets still wait for a transaction."""
        return any(group.undecided for group in self.coordinator.state.groups.values())

    def ask(self, make: Any, answer: Any) -> None:
        """Ask the coordinator; ``answer`` receives an effect, or None if that is lost."""
        self._tokens += 1
        token = self._tokens
        self._waiting[token] = answer
        self._step(make(token))

    def _step(self, event: ev.Event) -> None:
        coordinator = self.coordinator
        for effect in coordinator.step(event, int(self.world.now_ms)):
            match effect:
                case Store(sequence, entry):
                    self._unstored.append(entry)
                    delay_ms = self.world.rng.uniform(0.1, STORE_MS_MAX)
                    self.world.after(delay_ms, self._store, coordinator, sequence)
                case Answer(token, _) | Reject(token, _):
                    waiting = self._waiting.pop(token, None)
                    if waiting is not None:
                        waiting(effect)

    def _store(self, coordinator: GroupCoordinator, sequence: int) -> None:
        """Store entries up to ``sequence``, unless their coordinator has crashed."""
        if coordinator is not self.coordinator or sequence < len(self.entries):
            return
        while len(self.entries) <= sequence:
            self.entries.append(self._unstored.popleft())
        self._step(EntriesStored(sequence))


def _transaction(producer: TransactionalProducer) -> PendingOffsets:
    return PendingOffsets(producer.producer_id, producer.epoch)
