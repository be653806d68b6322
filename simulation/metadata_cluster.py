"""A simulated cluster as seen by its metadata: broker processes, and the log they all apply.

Rules: every entry is encoded and decoded, and every image and step is checked
(``core/metadata/check.py``). Every command is proposed in a session and may come again; it must
then be answered as before. A model of the records runs beside the image. ``metadata`` and
``metadata_orders`` decide what happens, and when.
"""

from dataclasses import dataclass

from simulation.records import Records
from simulation.world import World
from strandline.core.metadata import check
from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.commands import (
    BrokerRun,
    Command,
    Entry,
    OpenSession,
    Proposed,
    decode_entry,
    encode_entry,
)
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.core.metadata.outcome import CommandOutcome
from strandline.testing.history import ViolationError
from strandline.types import BrokerId, PartitionName

CLIENTS = 3


@dataclass(slots=True)
class Process:
    """A broker's real state, which the metadata may not know."""

    id: BrokerId
    directory: str
    incarnation: str = ""
    is_running: bool = False
    is_removed: bool = False
    stored_index: int = 0
    """The last committed entry of the metadata log that is on its disk."""

    @property
    def run(self) -> BrokerRun:
        """The broker's present or last run."""
        return BrokerRun(self.id, self.incarnation)


class MetadataCluster:
    """Brokers, their metadata and their records.

    Args:
        seed: determines everything.
        brokers: the most brokers there may be.
    """

    def __init__(self, seed: int, *, brokers: int = 4) -> None:
        self.world = World(seed)
        self.rng = self.world.rng
        self.image = MetadataImage()
        self.records = Records()
        self.processes = [
            Process(BrokerId(number), f"dir{number}.0") for number in range(1, brokers + 1)
        ]
        self._made = 0
        self.log_index = 0
        self._sequences: dict[int, int] = {}
        self._late: list[Proposed] = []
        self._answers: dict[tuple[int, int], CommandOutcome] = {}

    # The metadata log

    def propose(self, command: Command) -> CommandOutcome:
        """Append a command in one of the sessions; it may come again later."""
        if len(self._sequences) < CLIENTS:
            self._sequences[self._append(OpenSession()).value] = 0
        client = self.rng.choice(sorted(self._sequences))
        self._sequences[client] += 1
        entry = Proposed(client, self._sequences[client], command)
        outcome = self._append(entry)
        if outcome.reason == "session_expired":  # the command was not applied, and never will be
            del self._sequences[client]
            return self.propose(command)
        self._answers[entry.client_id, entry.sequence] = outcome
        if self.rng.random() < 0.2:
            self._late.append(entry)
        if self.rng.random() < 0.1:
            self._append_again(entry)
        return outcome

    def retry(self) -> None:
        """Append an old entry a second time, and check the answer."""
        if self._late:
            self._append_again(self._late.pop(self.rng.randrange(len(self._late))))

    def _append_again(self, entry: Proposed) -> None:
        before = self.image
        outcome = self._append(entry)
        if self.image != before:
            raise ViolationError(f"{entry} was applied twice")
        recorded = self._answers[entry.client_id, entry.sequence]
        if outcome != recorded and outcome.reason not in ("sequence_passed", "session_expired"):
            raise ViolationError(f"{entry} was answered {recorded}, then {outcome}")

    def _append(self, entry: Entry) -> CommandOutcome:
        """Apply an entry as every broker does, and check the invariants."""
        before = self.image
        self.log_index += 1
        self.image, outcome = apply_entry(before, decode_entry(encode_entry(entry)))
        command = entry.command if isinstance(entry, Proposed) else entry
        self.world.events += 1
        self.world.note(f"{command} {outcome}")
        wrong = [*check.check_image(self.image), *check.check_step(before, self.image)]
        if wrong:
            raise ViolationError(f"after {entry}: {'; '.join(wrong)}")
        self.records.note(before, self.image, command)
        return outcome

    # Brokers and partitions

    def lose_disk(self, process: Process) -> None:
        """Lose a broker's records and its metadata."""
        process.directory, process.stored_index = self.name("dir"), 0
        self.records.wipe(process.id)

    def leads(self, partition: PartitionImage) -> bool:
        """Whether a live broker leads a partition."""
        if partition.leader is None:
            return False
        process = self.process(partition.leader)
        return process.is_running and self.is_registered(partition.leader)

    def name(self, kind: str) -> str:
        """Return a new name for a run or a directory."""
        self._made += 1
        return f"{kind}{self._made}"

    def process(self, broker: BrokerId) -> Process:
        """Return the process of a broker."""
        return self.processes[broker - 1]

    def is_registered(self, broker: BrokerId) -> bool:
        """Whether the metadata has this run of a broker."""
        known = self.image.brokers.get(broker)
        return known is not None and known.incarnation == self.process(broker).incarnation

    def min_isr_of(self, name: PartitionName) -> int:
        """Return how many replicas have to be in sync for a commit."""
        return self.image.streams[name.stream].config.min_isr

    def some_partition(self) -> tuple[PartitionName, PartitionImage] | None:
        """Return any partition; None if there is none."""
        found = list(self.image.partitions())
        return self.rng.choice(found) if found else None

    def some_brokers(self, count: int) -> tuple[BrokerId, ...]:
        """Return this many brokers, or all, in any state."""
        everybody = [process.id for process in self.processes]
        return tuple(self.rng.sample(everybody, min(count, len(everybody))))
