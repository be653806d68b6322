"""Any command on any image is applied or rejected; the image stays valid, a retry has no effect.

Hypothesis makes up commands with known and unknown names, ids, versions and runs, with no regard
for who would send them; ``test_metadata_life.py`` plays the roles.
"""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.config import StreamConfig
from strandline.core.metadata import commands as c
from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.check import check_image, check_settled, check_step
from strandline.core.metadata.controller import ControllerLimits, LastHeartbeat, View, decide
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRecordError

LIMITS = ControllerLimits(session_ms=1_000, reshare_delay_ms=1_000, moves_max=2)
NOW_MS = 10_000.0

brokers = st.integers(1, 5)
some_brokers = st.lists(brokers, max_size=4).map(tuple)
sets = st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple)
names = st.sampled_from(["a", "b", "__activity"])
incarnations = st.sampled_from(["r1", "r2", ""])
runs = st.builds(c.BrokerRun, brokers, incarnations)
log_throttle = st.integers(0, 4)
configs = st.builds(
    StreamConfig,
    name=names,
    subject=st.sampled_from(["s", "s.>", "s..t"]),
    partitions=st.sampled_from([1, 1, 2, 0]),
    replicas=st.integers(1, 3),
    min_isr=st.integers(1, 2),
)
ats = st.builds(c.PartitionAt, names, st.integers(0, 2), st.integers(1, 4), log_throttle)
registrations = st.builds(
    c.RegisterBroker,
    broker=brokers,
    directory_id=brokers.map("d{}".format),
    incarnation=incarnations,
    rack=st.sampled_from(["", "x", "y"]),
)
nonsense = st.one_of(
    registrations,
    st.builds(c.CreateStream, configs, st.just(1), st.lists(some_brokers, max_size=2).map(tuple)),
    st.builds(c.DeleteStream, names),
    st.builds(c.AddPartitions, names, log_throttle, st.lists(sets, max_size=2).map(tuple)),
    st.builds(c.Fence, st.lists(runs, max_size=2).map(tuple)),
    st.builds(c.Unfence, st.lists(runs, max_size=2).map(tuple)),
    st.builds(c.BeginShutdown, runs),
    st.builds(c.Drain, brokers, st.booleans()),
    st.builds(c.ForgetDirectory, brokers),
    st.builds(c.RemoveBroker, brokers),
    st.builds(
        c.ChangeIsr,
        runs,
        st.lists(st.builds(c.IsrChange, ats, log_throttle, some_brokers), max_size=2).map(tuple),
    ),
    st.builds(c.FinishReassignment, st.lists(ats, max_size=2).map(tuple)),
    st.builds(c.AdmitBroker, brokers, st.sampled_from(["", "host:1"])),
    st.builds(
        c.MoveLogStarts,
        st.lists(st.builds(c.LogStart, ats, st.integers(-1, 9)), max_size=2).map(tuple),
    ),
    st.builds(c.SkipTo, ats, st.integers(-1, 9)),
    st.builds(c.ForgetEvents, st.integers(-1, 9)),
    st.builds(c.AllocateProducerIds, st.integers(-1, 9)),
    st.just(c.OpenSession()),
)
reasons = st.sampled_from(["leader_lost", "operator", "unclean"])


class Machine(RuleBasedStateMachine):
    """An image, the entries that made it, and a session."""

    @initialize()
    def begin(self):
        self.image = MetadataImage()
        self.image, outcome = apply_entry(self.image, c.OpenSession())
        self.client, self.sequence = outcome.value, 0
        for broker in (1, 2, 3):
            self.apply(c.RegisterBroker(broker=broker, directory_id=f"d{broker}", incarnation="r1"))
        self.apply(c.Unfence(tuple(c.BrokerRun(broker, "r1") for broker in (1, 2, 3))))
        config = StreamConfig(name="a", subject="s.*", partitions=2, replicas=3, min_isr=2)
        self.apply(c.CreateStream(config, 1, ((1, 2, 3), (2, 3, 1))))

    def apply(self, command):
        """Propose a command twice; the second time it is only answered."""
        before = self.image
        if self.client not in before.sessions:
            before, outcome = apply_entry(before, c.OpenSession())
            self.client, self.sequence = outcome.value, 0
        self.sequence += 1
        entry = c.decode_entry(c.encode_entry(c.Proposed(self.client, self.sequence, command)))
        self.image, outcome = apply_entry(before, entry)
        assert check_step(before, self.image) == []
        again, answered = apply_entry(self.image, entry)
        assert again is self.image
        assert answered == outcome
        if outcome.code:
            assert outcome.message
            assert self.image.streams == before.streams
            assert self.image.brokers == before.brokers
        return outcome

    @property
    def partitions(self):
        return list(self.image.partitions())

    @rule(command=nonsense)
    def anything(self, command):
        """Whatever it says."""
        self.apply(command)

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), leader=brokers, reason=reasons)
    def elect(self, data, leader, reason):
        """A leader for a partition as it is."""
        self.apply(c.ElectLeader((c.LeaderChange(self.some_at(data), leader),), reason))

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), goal=sets)
    def move(self, data, goal):
        """A partition as it is, elsewhere."""
        self.apply(c.ReassignReplicas((c.Move(self.some_at(data), goal),)))

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), offset=st.integers(0, 9))
    def shorten(self, data, offset):
        """A partition as it is loses its first records."""
        self.apply(c.MoveLogStarts((c.LogStart(self.some_at(data), offset),)))

    @precondition(lambda self: self.partitions)
    @rule(data=st.data(), offset=st.integers(0, 9))
    def skip(self, data, offset):
        """Let a partition skip beyond its end, if the offset allows it."""
        self.apply(c.SkipTo(self.some_at(data), offset))

    @precondition(lambda self: any(p.leader for _, p in self.partitions))
    @rule(data=st.data(), isr=sets)
    def change_isr(self, data, isr):
        """A leader's wish, which may well be impossible."""
        led = [(name, p) for name, p in self.partitions if p.leader]
        name, partition = data.draw(st.sampled_from(led))
        run = c.BrokerRun(partition.leader, self.image.brokers[partition.leader].incarnation)
        at = c.PartitionAt(*name, partition.log_id, partition.version)
        self.apply(c.ChangeIsr(run, (c.IsrChange(at, partition.leader_epoch, isr),)))

    @rule(heard=st.sets(brokers), is_settled=st.booleans())
    def control(self, heard, is_settled):
        """The controller decides once, and then has nothing to do."""
        known = {b: self.image.brokers[b] for b in heard if b in self.image.brokers}
        view = View(
            now_ms=NOW_MS,
            heartbeats={
                b: LastHeartbeat(broker.incarnation, NOW_MS) for b, broker in known.items()
            },
            listening_since_ms=0,
            settled_since_ms=0 if is_settled else NOW_MS,
        )
        for command in decide(self.image, view, LIMITS):
            outcome = self.apply(command)
            assert outcome.is_applied, outcome
            assert not outcome.rejected
        assert decide(self.image, view, LIMITS) == ()
        assert check_settled(self.image) == []

    def some_at(self, data):
        name, partition = data.draw(st.sampled_from(self.partitions))
        return c.PartitionAt(*name, partition.log_id, partition.version)

    @invariant()
    def is_right(self):
        """Nothing is wrong with the image, and a snapshot of it is it."""
        if hasattr(self, "image"):
            assert check_image(self.image) == []
            assert decode_image(encode_image(self.image)) == self.image
            assert decode_json(encode_json(self.image)) == self.image


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMetadataMachine = Machine.TestCase


@given(st.one_of(nonsense, st.builds(c.Proposed, st.integers(0, 9), log_throttle, nonsense)))
def test_every_entry_survives_the_log(entry):
    """Every command decodes to the value that was encoded."""
    assert c.decode_entry(c.encode_entry(entry)) == entry


@given(st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_rejected(data):
    """No bytes raise anything but the typed error."""
    try:
        entry = c.decode_entry(data)
    except InvalidRecordError:
        return
    assert isinstance(entry, msgspec.Struct)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_snapshot_or_rejected(data):
    """Neither form raises anything but the typed error."""
    for decode in (decode_image, decode_json):
        try:
            image = decode(data)
        except InvalidRecordError:
            continue
        assert isinstance(image, MetadataImage)
