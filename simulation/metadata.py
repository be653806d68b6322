"""Random runs of a cluster's metadata, checked by their effect on records.

Brokers start, crash, lose their disks and return; operators create, delete, drain, move and elect
(``metadata_orders``); leaders change ISRs; the controller decides. Every command is proposed in a
session and may arrive late, when the image has changed, or twice. Beside this runs a simple model
of the records: each replica has a list; a record is committed when all of the ISR, and ``min_isr``
brokers, have it; a leader must have every committed record, unless its election was unclean.

Rules: everything random comes from the world's generator, so a seed repeats. Every image and every
step is checked (``core/metadata/check.py``). In the end there are no faults for a while, and the
cluster has to heal: preferred leaders everywhere, full ISRs, no move in progress.
"""

from simulation.metadata_cluster import Process
from simulation.metadata_orders import Orders
from simulation.world import World
from strandline.core.metadata import check
from strandline.core.metadata.commands import (
    BeginShutdown,
    ChangeIsr,
    Command,
    Drain,
    ForgetDirectory,
    IsrChange,
    ReassignReplicas,
    RegisterBroker,
    RemoveBroker,
    ReportStorage,
)
from strandline.core.metadata.controller import Controller, ControllerLimits
from strandline.core.metadata.election import at
from strandline.core.metadata.image import PartitionImage
from strandline.core.metadata.snapshot import decode_image, encode_image
from strandline.testing.history import ViolationError
from strandline.types import BrokerId, PartitionName

LIMITS = ControllerLimits(session_ms=2_000, reshare_delay_ms=5_000, moves_max=2)
CALM_ROUNDS = 60
STEPS = 300


class MetadataRun(Orders):
    """One cluster's run; every method is one possible event.

    Args:
        seed: determines everything.
        brokers: the most brokers there may be.
    """

    def __init__(self, seed: int, *, brokers: int = 4) -> None:
        super().__init__(seed, brokers=brokers)
        self._controller = Controller(0, LIMITS)

    # Brokers

    def start(self) -> None:
        """Start and register a broker; if its disk is lost, an operator may report that."""
        process = self.rng.choice(self.processes)
        if process.is_removed:
            self._return_of_the_removed(process)
        elif not process.is_running:
            if self.rng.random() < 0.7:
                self._forget()
            command = self._start(process, slow_ticks=self.rng.choice((0, 0, 1, 4)))
            if process.is_running:
                self._repeat(command)

    def _return_of_the_removed(self, process: Process) -> None:
        """Start a removed broker again, with its old directory or another; it must be rejected."""
        directory = self.rng.choice((process.directory, self.name("dir")))
        command = RegisterBroker(
            broker=process.id, directory_id=directory, incarnation=self.name("run")
        )
        if self.propose(command).reason != "removed_broker":
            raise ViolationError(f"broker {process.id} was removed, but registered again")

    def _start(self, process: Process, *, slow_ticks: int = 0) -> RegisterBroker:
        """Start a broker; a slow one follows the metadata log long before it registers."""
        process.incarnation, found = self.name("run"), process.stored_index
        for _ in range(slow_ticks):
            self._hear(process)
            self.tick()
        process.is_running = True
        command = RegisterBroker(
            broker=process.id,
            directory_id=process.directory,
            incarnation=process.incarnation,
            rack="ab"[process.id % 2] if process.id < 4 else "",
            stored_index=found,
        )
        outcome = self.propose(command)
        if outcome.reason == "older_copy":
            raise ViolationError(f"broker {process.id} was rejected: {outcome.message}")
        if outcome.is_applied:
            self.records.let_in(process.id)
        else:
            process.is_running = False
        return command

    def _repeat(self, command: RegisterBroker) -> None:
        """Perhaps register a broker again, as if the answer was lost; its disk has more by now."""
        if self.rng.random() < 0.3:
            self._hear(self.process(command.broker))
            self.tick()
        if self.rng.random() < 0.3 and self.propose(command).reason == "older_copy":
            raise ViolationError(f"broker {command.broker} was rejected when it registered again")

    def _hear(self, process: Process) -> None:
        """Receive a heartbeat of a broker that follows the metadata log."""
        process.stored_index = self.rng.randint(process.stored_index, self.log_index)
        self._controller.heartbeat(process.run, self.world.now_ms, process.stored_index)

    def older_copy(self) -> None:
        """Start a broker with an older copy of its directory, which lacks reported entries."""
        known = self.image.brokers.get(self.rng.choice(self.processes).id)
        if known is None or not known.directory_id or not known.stored_index:
            return
        command = RegisterBroker(
            broker=known.id,
            directory_id=known.directory_id,
            incarnation=self.name("run"),
            stored_index=self.rng.randrange(known.stored_index),
        )
        if self.propose(command).reason != "older_copy":
            raise ViolationError(f"broker {known.id} registered with an older copy")

    def impostor(self) -> None:
        """Start a second broker with a known id on another directory."""
        if not self.image.brokers:
            return
        broker = self.rng.choice(sorted(self.image.brokers))
        if not self.image.brokers[broker].directory_id:
            return  # the disk is lost, so a new one is accepted: ``start`` does that
        command = RegisterBroker(
            broker=broker, directory_id=self.name("dir"), incarnation=self.name("run")
        )
        if self.propose(command).reason != "duplicate_broker":
            raise ViolationError(f"a second broker {broker} registered")

    def die(self) -> None:
        """Crash a broker, perhaps because its disk is lost."""
        process = self.rng.choice(self.processes)
        process.is_running = False
        if not process.is_removed and self.rng.random() < 0.3:
            self.lose_disk(process)

    def swap_disk(self) -> None:
        """Replace a follower's disk while it is proposed for the ISR."""
        joining = {b for command in self.records.mail for b in command.changes[0].isr}
        process = self.rng.choice(self.processes)
        if process.id not in joining:
            return
        process.is_running = False
        self.lose_disk(process)
        for _ in range(8):
            self.tick()
        self.propose(ForgetDirectory(process.id))
        self._start(process)
        self.tick()
        self.deliver()

    def stop(self) -> None:
        """Ask a broker to stop; it may continue for a while, and ends by itself."""
        process = self.rng.choice(self.processes)
        if process.is_running:
            self.propose(BeginShutdown(process.run))

    def tick(self) -> None:
        """Let time pass: live brokers send heartbeats, and the controller decides."""
        self.world.now_ms += self.rng.choice((100, 500, 900, 900))
        for process in self.processes:
            if process.is_running and self.rng.random() < 0.9:
                self._hear(process)
        if self.rng.random() < 0.05:
            self._controller = Controller(self.world.now_ms, LIMITS)
        commands = self._controller.decide(self.image, self.world.now_ms)
        moving = {name for name, p in self.image.partitions() if p.is_moving}
        if self.rng.random() < 0.3:  # another command comes first
            self.rng.choice((self.leader_acts, self.retry, self.deliver, self.operate))()
            for command in commands:
                self.propose(command)
            return
        for command in commands:
            outcome = self.propose(command)
            if outcome.code or outcome.rejected:
                raise ViolationError(f"the controller's {command} was rejected: {outcome}")
        self._check_settled()
        self._check_throttle(commands, moving)

    def _check_throttle(self, commands: tuple[Command, ...], before: set[PartitionName]) -> None:
        """Check that commands which begin moves keep the number of moves within the limit."""
        orders = [c for c in commands if isinstance(c, ReassignReplicas)]
        begun = {move.at.name for order in orders for move in order.moves} - before
        fenced = {b.id for b in self.image.brokers.values() if b.is_fenced}
        led = [p for _, p in self.image.partitions() if p.leader]
        active = [p for p in led if set(p.adding) - set(p.isr) - fenced]
        if begun and len(active) > LIMITS.moves_max:
            raise ViolationError(f"{len(active)} partitions move at once, too many")

    def _check_settled(self) -> None:
        more = self._controller.decide(self.image, self.world.now_ms)
        wrong = check.check_settled(self.image)
        if more or wrong:
            raise ViolationError(f"the controller left work to do: {more} {wrong}")

    # Leaders

    def leader_acts(self) -> None:
        """Let a leader append, a follower copy, records be committed, an ISR change be proposed."""
        found = self.some_partition()
        if found is None or not self.leads(found[1]):
            return
        name, partition = found
        if self.rng.random() < 0.5:
            self.records.append(partition)
        follower = self.rng.choice(partition.replicas)
        if self.process(follower).is_running and self.is_registered(follower):
            self.records.copy(partition, follower, self.rng.randint(1, 3))
        self.records.commit(partition, self.min_isr_of(name))
        if self.rng.random() < 0.5:
            self._propose_isr(name, partition)

    def _propose_isr(self, name: PartitionName, partition: PartitionImage) -> None:
        """Propose an ISR change; it arrives at once or later, and counts from now on."""
        if self.records.wanted_isr(partition):
            return  # one proposal at a time
        assert partition.leader is not None
        leader = partition.leader
        wanted = {b for b in partition.isr if b == leader or self.rng.random() < 0.7}
        wanted |= {b for b in partition.replicas if self.records.has_all(partition, b)}
        isr = tuple(sorted(wanted))
        run = self.process(leader).run
        change = IsrChange(at(name, partition), partition.leader_epoch, isr)
        command = ChangeIsr(run, (change,))
        if self.rng.random() < 0.6:
            self.propose(command)
        else:
            self.records.mail.append(command)

    def deliver(self) -> None:
        """Decide a proposed ISR change."""
        mail = self.records.mail
        if mail:
            self.propose(mail.pop(self.rng.randrange(len(mail))))

    # The whole run

    def run_steps(self, steps: int) -> str:
        """Run this many events, then heal; return a digest.

        Raises:
            ViolationError: a promise was broken.
        """
        often = (self.tick, self.tick, self.start, *(self.leader_acts,) * 5)
        log_throttle = (
            *(self.operate,) * 4,
            self.retry,
            self.deliver,
            self.die,
            self.swap_disk,
            self.stop,
            self.impostor,
            self.older_copy,
        )
        for process in self.processes[:3]:
            self._start(process)
        self.tick()
        self._create()
        for _ in range(steps):
            self.world.events += 1
            self.rng.choice(often if self.rng.random() < 0.8 else log_throttle)()
            if decode_image(encode_image(self.image)) != self.image:
                raise ViolationError("a decoded snapshot differs from the image")
        self.heal()
        return self.world.fingerprint

    def heal(self) -> None:
        """Run without faults for a while; then the controller must have nothing left to do."""
        for broker in sorted(self.image.brokers):
            self.propose(Drain(broker, is_on=False))
        for process in self.processes:
            known = self.image.brokers.get(process.id)
            if process.is_removed:
                continue
            if known is not None and known.directory_id not in ("", process.directory):
                process.is_running = False  # its disk is lost: an operator has to act
                continue
            if known is not None and known.is_impaired:
                self.propose(ReportStorage(process.run, is_impaired=False))
            is_stopping = known is not None and known.is_stopping
            if is_stopping or not process.is_running or not self.is_registered(process.id):
                self._start(process)
        self._be_calm()
        self._check_healed()
        self._empty_one()

    def _be_calm(self) -> None:
        for _ in range(CALM_ROUNDS):
            self.world.now_ms += 500
            self._calm_round()
        self._check_settled()

    def _empty_one(self) -> None:
        """Drain and remove a broker: its replicas must move, and the cluster must stay usable."""
        live = [b.id for b in self.image.brokers.values() if b.may_take_replicas]
        if not live:
            return
        leaving = self.rng.choice(live)
        well = {n for n, p in self.image.partitions() if p.leader and {*p.replicas} <= {*live}}
        self.propose(Drain(leaving))
        self._be_calm()
        kept = [item for item in self.image.partitions() if leaving in item[1].replicas]
        for name, partition in kept:
            if name in well and len(partition.target) < len(live):
                raise ViolationError(f"{name} did not leave the drained broker: {partition}")
        outcome = self.propose(RemoveBroker(leaving))
        if outcome.is_applied == bool(kept):
            raise ViolationError(f"broker {leaving} keeps {len(kept)} partitions: {outcome}")

    def _calm_round(self) -> None:
        for process in self.processes:
            if process.is_running:
                self._hear(process)
        while self.records.mail:
            self.deliver()
        for command in self._controller.decide(self.image, self.world.now_ms):
            self.propose(command)
        for name, partition in list(self.image.partitions()):
            if not self.leads(partition):
                continue
            for follower in partition.replicas:
                if self.process(follower).is_running:
                    self.records.copy(partition, follower, 1_000)
            self.records.commit(partition, self.min_isr_of(name))
            running = {b for b in partition.replicas if self.process(b).is_running}
            running = {b for b in running if not self.image.brokers[b].is_fenced}
            if set(partition.isr) != running:
                self._propose_isr_of(name, partition, tuple(sorted(running)))

    def _propose_isr_of(
        self, name: PartitionName, partition: PartitionImage, isr: tuple[BrokerId, ...]
    ) -> None:
        assert partition.leader is not None
        run = self.process(partition.leader).run
        change = IsrChange(at(name, partition), partition.leader_epoch, isr)
        self.propose(ChangeIsr(run, (change,)))

    def _check_healed(self) -> None:
        for process in self.processes:
            if process.is_running and self.image.brokers[process.id].state != "live":
                raise ViolationError(f"{process} was not unfenced")
        for name, partition in self.image.partitions():
            up = [b for b in partition.replicas if self.process(b).is_running]
            if not set(partition.isr) & set(up) and not set(partition.last_known_safe) & set(up):
                continue  # the last in-sync replica lost its disk: an operator has to act
            if sorted(partition.isr) != sorted(up) or partition.leader is None:
                raise ViolationError(f"{name} did not heal: {partition}")
            if partition.target[0] in up and partition.leader != partition.target[0]:
                raise ViolationError(f"{name} is not led by its preferred leader: {partition}")
            if partition.is_moving and set(partition.target) <= set(up):
                raise ViolationError(f"{name} is still moving: {partition}")


def run(seed: int) -> World:
    """Run a history of 300 events.

    Raises:
        ViolationError: a promise was broken.
    """
    history = MetadataRun(seed)
    history.run_steps(STEPS)
    return history.world
