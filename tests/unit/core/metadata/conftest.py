"""Images to start from: clusters of live brokers, and streams placed on them."""

import msgspec
import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.apply import apply, apply_entry
from strandline.core.metadata.check import check_image, check_step
from strandline.core.metadata.commands import (
    BrokerRun,
    ChangeIsr,
    CreateStream,
    ElectLeader,
    Fence,
    IsrChange,
    LeaderChange,
    RegisterBroker,
    Unfence,
)
from strandline.core.metadata.election import at
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.placement import place
from strandline.types import PartitionName
from tests.kit.opcodes import opcodes_of


class Cluster:
    """An image and short ways to change it; every step is checked."""

    def __init__(self):
        self.image = MetadataImage()

    def do(self, entry):
        """Apply an entry; its outcome."""
        before = self.image
        self.image, outcome = apply_entry(before, entry)
        assert check_image(self.image) == []
        assert check_step(before, self.image) == []
        return outcome

    def must(self, command):
        """Apply a command that has to be applied."""
        outcome = self.do(command)
        assert outcome.is_applied, outcome
        assert not outcome.rejected, outcome

    def register(self, broker, *, run="r1", directory=None, rack=""):
        """A broker presents itself."""
        return self.do(
            RegisterBroker(
                broker=broker, directory_id=directory or f"d{broker}", incarnation=run, rack=rack
            )
        )

    def run(self, broker):
        """The run of a broker that is registered."""
        return BrokerRun(broker, self.image.brokers[broker].incarnation)

    def fence(self, *brokers):
        self.must(Fence(tuple(self.run(b) for b in brokers)))

    def unfence(self, *brokers):
        self.must(Unfence(tuple(self.run(b) for b in brokers)))

    def create(self, name="s", *assignment, **settings):
        """Create a stream, placed by the rules unless an assignment is given."""
        replicas = len(assignment[0]) if assignment else settings.pop("replicas", 3)
        partitions = len(assignment) if assignment else settings.pop("partitions", 1)
        config = StreamConfig(
            name=name, subject=name, replicas=replicas, partitions=partitions, **settings
        )
        placed = assignment or place(self.image, partitions=partitions, replicas=replicas)
        self.must(CreateStream(config, 1, placed))

    def partition(self, number=0, name="s"):
        return self.image.partition(name, number)

    def at(self, number=0, name="s"):
        return at(PartitionName(name, number), self.partition(number, name))

    def isr(self, *isr, number=0):
        """The leader of a partition changes its ISR."""
        found = self.partition(number)
        change = IsrChange(self.at(number), found.leader_epoch, isr)
        return self.do(ChangeIsr(self.run(found.leader), (change,)))

    def elect(self, leader, *, number=0, reason="operator"):
        return self.do(ElectLeader((LeaderChange(self.at(number), leader),), reason))

    def edit(self, broker, **fields):
        """Set fields of a broker as no command would."""
        changed = msgspec.structs.replace(self.image.brokers[broker], **fields)
        self.image = self.image.with_broker(changed)


@pytest.fixture
def cluster():
    """A function that makes a cluster of live brokers, ids from 1."""

    def make(brokers=3, racks=None):
        made = Cluster()
        for broker in range(1, brokers + 1):
            made.register(broker, rack=racks[broker - 1] if racks else "")
        made.unfence(*range(1, brokers + 1))
        return made

    return make


@pytest.fixture
def alone():
    """A broker alone: the function that applies commands for it, and its first image."""
    return apply, MetadataImage()


@pytest.fixture
def opcodes():
    """A function that counts the work of an action, which no other load disturbs."""
    return opcodes_of
