"""A member of a group belongs to the principal that joined, until it has left."""

import pytest

from strandline.core.coordinator_effects import Answer, EntriesStored, Reject, Store
from strandline.core.groups import coordinator as coordinator_module
from strandline.core.groups import events as ev
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.state import GroupsState, decode_entry, encode_entry
from strandline.errors import NotAllowedError, UnknownMemberError
from strandline.types import PartitionName

HELD = frozenset({PartitionName("s", 0)})


class Run:
    """A coordinator whose entries are stored at once."""

    def __init__(self):
        self.entries = []
        self.begin()

    def begin(self):
        """Start another coordinator from the stored entries."""
        state = GroupsState()
        for entry in self.entries:
            state.apply(decode_entry(entry))
        self.coordinator = GroupCoordinator(
            state, {"s": 1}, created={"s": 1}, now_ms=0, sequence=len(self.entries)
        )

    def ask(self, kind, *values, **options):
        """The answer to a request."""
        effects = self.coordinator.step(kind("t", "g", *values, **options), 0)
        stored = [each for each in effects if isinstance(each, Store)]
        if stored:
            self.entries += [encode_entry(each.entry) for each in stored]
            effects += self.coordinator.step(EntriesStored(stored[-1].sequence), 0)
        [told] = [each for each in effects if isinstance(each, Answer | Reject)]
        if isinstance(told, Reject):
            raise told.error
        return told.value

    def join(self, member, **options):
        return self.ask(ev.Join, member, ("s",), 1000, **options)


def test_no_other_principal_speaks_for_a_member():
    """Nor at the next coordinator; another principal's commit is no repeat."""
    run = Run()
    epoch = run.join("m", owner="ann", instance="i").epoch
    run.begin()
    for owner in ("bob", ""):
        for refused in (
            lambda who=owner: run.join("m", owner=who),
            lambda who=owner: run.join("other", owner=who, instance="i"),
            lambda who=owner: run.ask(ev.Heartbeat, "m", epoch, HELD, owner=who),
            lambda who=owner: run.ask(ev.Leave, "m", owner=who),
            lambda who=owner: run.ask(ev.Commit, {"s": {0: 9}}, "m", epoch, 1, owner=who),
        ):
            with pytest.raises(NotAllowedError, match=r"member 'm'.*belongs to another principal"):
                refused()
    run.ask(ev.Commit, {"s": {0: 5}}, "m", epoch, 1, owner="ann")
    assert run.coordinator.state.groups["g"].positions == {"s": {0: 5}}


def test_a_name_is_free_again_when_its_member_has_left():
    """The principal that joins under it next is its owner."""
    run = Run()
    run.join("m", owner="ann", instance="i")
    run.join("n", owner="bob")  # who has the group kept
    run.ask(ev.Leave, "m", owner="ann")
    with pytest.raises(UnknownMemberError):
        run.ask(ev.Heartbeat, "m", 1, HELD, owner="ann")
    run.join("m", owner="bob", instance="i")
    assert run.coordinator.state.groups["g"].members["m"].owner == "bob"


def test_the_static_member_of_a_principal_is_succeeded_by_its_own():
    """A restart takes its place at once, as where access is not checked."""
    run = Run()
    run.join("m", owner="ann", instance="i")
    assert run.join("again", owner="ann", instance="i").partitions == HELD


REQUESTS = {
    "join": lambda group: ev.Join("t", group, "m", ("s",), 1000),
    "commit": lambda group: ev.Commit("t", group, {"s": {0: 5}}),
    "consumer": lambda group: ev.KeepConsumer("t", group, {"s": {0: 5}}, "{}", is_new=True),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_there_are_groups_enough_at_some_point(kind, monkeypatch):
    """Whatever would create one more is rejected; those that exist go on."""
    monkeypatch.setattr(coordinator_module, "GROUPS_MAX", 2)
    run, made = Run(), REQUESTS[kind]

    def answers(group):
        effects = run.coordinator.step(made(group), 0)
        stored = [each for each in effects if isinstance(each, Store)]
        if stored:
            effects += run.coordinator.step(EntriesStored(stored[-1].sequence), 0)
        return [type(each) for each in effects if isinstance(each, Answer | Reject)]

    assert [answers(group) for group in ("a", "b", "c")] == [[Answer], [Answer], [Reject]]
    if kind == "commit":
        assert answers("a") == [Answer]
