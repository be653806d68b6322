"""Histories of transactions: the real coordinator and indexes over logs of batch headers.

Coordinators crash, partitions change leaders, producers crash and return as zombies, and a driver
publishes staged parts. Producers and driver commit offsets of consumer groups with their records.

Rules: as ``world``. ``transactions_check`` checks the answers to clients and the reads of readers.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulation.transactions_check import TransactionChecker
from simulation.transactions_clients import Zombie
from simulation.transactions_driver import Driver
from simulation.transactions_groups import GROUPS_PLACE, SimGroups
from simulation.world import World
from strandline.broker.read_path.transaction_visibility import (
    PartitionTransactions,
    marker_attributes,
)
from strandline.core.coordinator_effects import (
    Answer,
    EntriesStored,
    Forget,
    Reject,
    Store,
    Tick,
    restore,
)
from strandline.core.transactions import effects as fx
from strandline.core.transactions import events as ev
from strandline.core.transactions.coordinator import Coordinator
from strandline.core.transactions.effects import MarkerKind, SendMarker
from strandline.core.transactions.state import (
    CoordinatorState,
    TransactionalProducer,
    TransactionEntry,
    TransactionPartition,
)
from strandline.errors import ProducerFencedError
from strandline.record.batch import HEADER, HEADER_BYTES, MAGIC, VERSION, Attributes
from strandline.types import LogId, Offset

PARTITIONS = 3
STEPS = 600
STORE_MS_MAX = 4.0
COMMIT_MS_MAX = 15.0
TICK_MS = 50.0
BUSY_MS = 3_000.0
CALM_MS = 30_000.0


class Slice(NamedTuple):
    """The part of ``storage.log.LogSlice`` that transaction indexes use."""

    buffer: memoryview
    next_offset: Offset


class SimTransactionLog:
    """A log of headers, one batch for each offset."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.values: list[str] = []
        self.log_start_offset = Offset(0)

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next batch."""
        return Offset(len(self.batches))

    def append(self, attributes: int, producer: TransactionalProducer, value: str) -> bytes:
        """Append a batch, and return it."""
        who = producer.producer_id, producer.epoch
        head = (MAGIC, 0, HEADER_BYTES, VERSION, 0, attributes, len(self.batches), 1, 0, 0, 0, 0, 0)
        batch = HEADER.pack(*head, *who, 1, -1)
        self.batches.append(batch)
        self.values.append(value)
        return batch

    def truncate_to(self, offset: int) -> None:
        """Truncate the log."""
        del self.batches[offset:], self.values[offset:]

    def read(
        self, offset: int, bytes_max: int, *, below: int = 1 << 60, verify: bool = True
    ) -> Slice:
        """Return batches from ``offset`` on, a few at a time, so readers continue in between."""
        del bytes_max, verify
        end = min(len(self.batches), below, offset + 3)
        return Slice(memoryview(b"".join(self.batches[offset:end])), Offset(max(offset, end)))


class SimPartition:
    """A partition: its log, its high watermark, and its transaction index.

    A change of leaders truncates some of the uncommitted batches, and the new leader builds its
    transaction index from its log.
    """

    def __init__(self, world: World, place: TransactionPartition) -> None:
        self.world = world
        self.place = place
        self.log = SimTransactionLog()
        self.high_watermark = Offset(0)
        self.transaction_index = self._loaded()
        self.epoch = 0
        self.is_restless = True
        """Whether its leaders change, most often while a marker is being written."""
        self.waiting: deque[tuple[int, Any]] = deque()

    def _loaded(self) -> PartitionTransactions:
        log: Any = self.log
        return PartitionTransactions.loaded(
            log, start=Offset(0), high_watermark=self.high_watermark
        )

    def write(self, producer: TransactionalProducer, value: str, done: Any) -> None:
        """Accept a record of a transaction; ``done`` receives whether it is committed."""
        try:
            self.transaction_index.check(producer)
        except ProducerFencedError:
            done("fenced")
            return
        self._append(int(Attributes.TRANSACTIONAL), producer, value=value, done=done)

    def mark(self, mark: SendMarker, done: Any) -> None:
        """Write a marker, as ``Partition.mark`` does."""
        if not self.transaction_index.needs(mark.kind, mark.producer):
            done("ok")
            return
        attributes = marker_attributes(mark.kind)
        self._append(attributes, mark.producer, value=mark.kind.value, done=done)

    def _append(
        self, attributes: int, producer: TransactionalProducer, *, value: str, done: Any
    ) -> None:
        self.transaction_index.written(self.log.append(attributes, producer, value))
        self.waiting.append((len(self.log.batches), done))
        rng = self.world.rng
        self.world.after(rng.uniform(0.1, COMMIT_MS_MAX), self.commit, self.epoch)
        if self.is_restless and attributes & Attributes.MARKER and rng.random() < 0.05:
            self.world.after(rng.uniform(0.1, COMMIT_MS_MAX), self.change_leader)

    def commit(self, epoch: int) -> None:
        """Commit some more of the log, at last all of it, unless the leadership has ended."""
        if epoch != self.epoch or self.high_watermark == self.log.log_end_offset:
            return
        rng, end = self.world.rng, self.log.log_end_offset
        self.high_watermark = Offset(rng.randint(self.high_watermark + 1, end))
        self.transaction_index.commit(self.high_watermark)
        if self.high_watermark < end:
            self.world.after(rng.uniform(0.1, COMMIT_MS_MAX), self.commit, epoch)
        while self.waiting and self.waiting[0][0] <= self.high_watermark:
            _, done = self.waiting.popleft()
            done("ok")

    def change_leader(self) -> None:
        """Change the leader: some or all uncommitted records are lost."""
        self.epoch += 1
        self.world.counts["leaders"] += 1
        end = self.world.rng.randint(self.high_watermark, self.log.log_end_offset)
        self.log.truncate_to(end)
        self.transaction_index.forget_from(Offset(end))
        if self.world.rng.random() < 0.5:  # the new leader had no index in memory
            self.transaction_index = self._loaded()
        waiting, self.waiting = self.waiting, deque()
        for _, done in waiting:
            done("unknown")
        self.world.after(self.world.rng.uniform(0.1, COMMIT_MS_MAX), self.commit, self.epoch)

    def visible(self) -> list[str]:
        """Return all values that a reader sees now."""
        found: list[str] = []
        offset, end = Offset(0), self.transaction_index.last_stable_offset
        while offset < end:
            batches = bytes(self.transaction_index.readable(offset, 1, below=end))
            if not batches:
                break
            for at in range(0, len(batches), HEADER_BYTES):
                base = HEADER.unpack_from(batches, at)[6]
                found.append(self.log.values[base])
                offset = Offset(base + 1)
        return found


@dataclass
class SimCoordinator:
    """A coordinator and its requests in progress; one that has ended receives nothing."""

    number: int
    coordinator: Coordinator
    waiting: dict[int, Any] = field(default_factory=dict)
    is_over: bool = False


class TransactionHistory:
    """One history.

    Args:
        seed: determines everything.
    """

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.checker = TransactionChecker()
        places = [
            TransactionPartition("s", number, LogId(number + 1)) for number in range(PARTITIONS)
        ]
        self.partitions = {place: SimPartition(world, place) for place in places}
        self.groups = SimGroups(world)
        self.entries: list[TransactionEntry] = []
        self.fresh_id = 0
        self.tokens = 0
        self.runtime = self._new_runtime(0)
        self.clients = [Zombie(self, f"p{number}") for number in range(3)]
        self.driver = Driver(self, "job")
        self.is_calm = False

    # The coordinator

    def _new_runtime(self, number: int) -> SimCoordinator:
        state = CoordinatorState()
        restore(state, self.entries)
        coordinator = Coordinator(state, now_ms=int(self.world.now_ms), sequence=len(self.entries))
        runtime = SimCoordinator(number, coordinator)
        self.world.after(0.0, self._resume, runtime)
        self.world.after(TICK_MS, self._tick, runtime)
        return runtime

    def _resume(self, runtime: SimCoordinator) -> None:
        self._carry_out(runtime, runtime.coordinator.resume())

    def _tick(self, runtime: SimCoordinator) -> None:
        if not runtime.is_over:
            self._step(runtime, Tick())
            self.world.after(TICK_MS, self._tick, runtime)

    def _step(self, runtime: SimCoordinator, event: ev.Event) -> None:
        if not runtime.is_over:
            effects = runtime.coordinator.step(event, int(self.world.now_ms))
            self._carry_out(runtime, effects)

    def _carry_out(self, runtime: SimCoordinator, effects: list[fx.Effect]) -> None:
        world = self.world
        for effect in effects:
            match effect:
                case Store(sequence, entry):
                    if not self.is_calm and world.rng.random() < 0.02:  # before the entry is stored
                        world.after(world.rng.uniform(0.0, 1.0), self._crash_runtime, runtime)
                    world.after(world.rng.uniform(0.1, STORE_MS_MAX), self._store, runtime, effect)
                    runtime.waiting[-1 - sequence] = entry
                case Answer(token, value):
                    self._tell(runtime, token, (True, value))
                case Reject(token, error):
                    self._tell(runtime, token, (False, error))
                case fx.SendMarker():
                    delay_ms = world.rng.uniform(0.1, 8.0) * world.rng.choice((1, 1, 1, 20))
                    world.after(delay_ms, self._mark, runtime, effect)
                case fx.TimedOut():
                    world.counts["timed out"] += 1
                case Forget():
                    pass  # histories are too short for that

    def _store(self, runtime: SimCoordinator, store: Store[Any]) -> None:
        """Store an entry after earlier ones, unless its coordinator has crashed."""
        if runtime.is_over or store.sequence < len(self.entries):
            return
        for sequence in range(len(self.entries), store.sequence + 1):
            self.entries.append(runtime.waiting.pop(-1 - sequence))
        self._step(runtime, EntriesStored(store.sequence))

    def _crash_runtime(self, runtime: SimCoordinator) -> None:
        if runtime is self.runtime:
            self.crash_coordinator()

    def crash_coordinator(self) -> None:
        """Replace the coordinator; some or all entries in flight are lost."""
        runtime, runtime.is_over = self.runtime, True
        under_way = len([key for key in runtime.waiting if key < 0])
        for _ in range(self.world.rng.randint(0, under_way)):
            self.entries.append(runtime.waiting.pop(-1 - len(self.entries)))
        for token, answer in list(runtime.waiting.items()):
            if token >= 0:
                answer((False, None))
        self.world.counts["coordinators"] += 1
        self.runtime = self._new_runtime(runtime.number + 1)

    def ask(self, make: Any, answer: Any) -> None:
        """Send a request; ``answer`` receives (True, value), (False, error) or (False, None).

        Requests and answers may be lost: the client's request then times out.
        """
        self.tokens += 1
        token, world = self.tokens, self.world
        once = _Once(answer)
        if not self.is_calm and world.rng.random() < 0.03:
            world.after(20.0, once, (False, None))
            return
        loses_answer = not self.is_calm and world.rng.random() < 0.03

        def arrive() -> None:
            runtime = self.runtime
            runtime.waiting[token] = (lambda _: once((False, None))) if loses_answer else once
            self._step(runtime, make(token))

        world.after(world.rng.uniform(0.1, 4.0), arrive)

    def _tell(self, runtime: SimCoordinator, token: Any, answer: tuple[bool, Any]) -> None:
        waiting = runtime.waiting.pop(token, None)
        if waiting is not None:
            self.world.after(self.world.rng.uniform(0.1, 4.0), waiting, answer)

    def _mark(self, runtime: SimCoordinator, mark: SendMarker) -> None:
        """Send a marker to its partition, even from a crashed coordinator; or lose it."""
        is_begin = mark.kind is MarkerKind.BEGIN

        def done(how: str) -> None:
            kind = ev.Marked if how == "ok" else ev.NotMarked
            self._step(runtime, kind(mark.id, mark.producer, mark.place, is_begin))

        if not self.is_calm and self.world.rng.random() < 0.1:
            self.world.counts["lost markers"] += 1
            done("lost")
        elif mark.place == GROUPS_PLACE:
            self.groups.mark(mark, done)
        else:
            self.partitions[mark.place].mark(mark, done)

    # The history

    def run_steps(self, steps: int) -> None:
        """Run this many steps with faults, then some without, then check everything.

        Raises:
            ViolationError: a promise was broken.
        """
        for actor in (*self.clients, self.driver):
            actor.begin()
        for _ in range(steps):
            self.world.run_until(self.world.now_ms + self.world.rng.uniform(0.5, 8.0))
            self._happen()
        self._calm()

    def _happen(self) -> None:
        rng = self.world.rng
        chance = rng.random()
        if chance < 0.01:
            self.crash_coordinator()
        elif chance < 0.04:
            rng.choice(list(self.partitions.values())).change_leader()
        elif chance < 0.06:
            rng.choice([*self.clients, self.driver]).crash()
        elif chance < 0.07:
            self.groups.crash()
        elif chance < 0.3:
            place = rng.choice(list(self.partitions))
            self.checker.read(str(place), self.partitions[place].visible())

    def _calm(self) -> None:
        """Run without faults: all requests succeed. Then begin no more: nothing may stay open."""
        self.is_calm = True
        for partition in self.partitions.values():
            partition.is_restless = False
        before = [client.decided for client in (*self.clients, self.driver)]
        self.world.run_until(self.world.now_ms + BUSY_MS)
        for actor, decided in zip((*self.clients, self.driver), before, strict=True):
            self.checker.gets_on(actor.id, is_so=actor.decided > decided)
            actor.stop()
        self.world.run_until(self.world.now_ms + CALM_MS)
        final = {}
        for place, partition in self.partitions.items():
            final[str(place)] = partition.visible()
            self.checker.read(str(place), final[str(place)])
            is_open = partition.transaction_index.last_stable_offset < partition.log.log_end_offset
            self.checker.nothing_open(str(place), is_open=is_open)
        self.checker.nothing_open(str(GROUPS_PLACE), is_open=self.groups.is_undecided())
        self.checker.judge(final, self.groups.position)
        self.world.counts.update(self.checker.counts)
        self.world.note(str(sorted(final.items())))


class _Once:
    """An answer that is delivered once, whichever comes first."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self, outcome: tuple[bool, Any]) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(outcome)


def run(seed: int) -> World:
    """Run the history of a seed.

    Raises:
        ViolationError: a promise was broken.
    """
    history = TransactionHistory(seed)
    history.run_steps(STEPS)
    return history.world
