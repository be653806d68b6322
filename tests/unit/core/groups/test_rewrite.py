"""The coordinator's log is rewritten when it is much larger than the state."""

from strandline.core.coordinator_effects import EntriesStored, Forget, Store
from strandline.core.groups import events as ev
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.state import (
    GroupEntry,
    GroupsState,
    Undecided,
    decode_entry,
    encode_entry,
)
from strandline.core.groups.transactions import PendingOffsets, TransactionMark
from strandline.types import PartitionName


def test_what_may_be_forgotten_is_said_again_behind(monkeypatch):
    """Entries from the place that ``Forget`` names on give the same state as all of them."""
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 20)
    coordinator = GroupCoordinator(GroupsState(), {"s": 4}, created={"s": 1}, now_ms=0)
    entries, forgotten = [], []

    def step(event):
        for effect in coordinator.step(event, 0):
            if isinstance(effect, Store):
                assert effect.sequence == len(entries)
                entries.append(effect.entry)
            elif isinstance(effect, Forget):
                forgotten.append(effect.before)

    for number in range(4):
        step(ev.Join(object(), "g", f"m{number}", ("s",), 1000, keeps=True))
    for number in range(200):
        says = f"at {number}" if number % 3 == 0 else ""
        place = {"s": {number % 4: number}}
        step(ev.Commit(object(), f"cursor-{number % 3}", place, metadata=says))
        step(EntriesStored(len(entries) - 1))
    assert len(forgotten) > 1, "more than once"
    assert len(entries) < 500, "and not all the time"
    whole, rest = GroupsState(), GroupsState()
    for entry in entries:
        whole.apply(entry)
    for entry in entries[forgotten[-1] :]:
        rest.apply(entry)
    for state in (whole, rest):
        assert state.epoch == coordinator.state.epoch
        assert state.groups.keys() == coordinator.state.groups.keys()
        for name, group in coordinator.state.groups.items():
            assert state.groups[name].members == group.members
            assert state.groups[name].positions == group.positions
            assert state.groups[name].began_with == group.began_with == {"s": 4}
            assert state.groups[name].created == group.created == {"s": 1}
            assert state.groups[name].keeps == group.keeps == (name == "g")
            says = {"g": "", "cursor-0": "at 198", "cursor-1": "", "cursor-2": ""}[name]
            assert state.groups[name].metadata == group.metadata == says


def test_positions_that_wait_for_transactions_are_said_again(monkeypatch):
    """So is which transactions have begun and which have ended: none begins a second time."""
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 20)
    coordinator = GroupCoordinator(GroupsState(), {"s": 4}, created={"s": 1}, now_ms=0)
    entries = []

    def step(event):
        effects = coordinator.step(event, 0)
        entries.extend(effect.entry for effect in effects if isinstance(effect, Store))

    waiting, ended = PendingOffsets(1, 0), PendingOffsets(2, 7)
    for transaction, partition in ((waiting, 0), (ended, 1)):
        step(ev.MarkTransaction(object(), transaction, TransactionMark.BEGIN))
        says, where = f"in {transaction}", {"s": {partition: 5}}
        step(ev.Commit(object(), "g", where, transaction=transaction, metadata=says))
    step(ev.MarkTransaction(object(), ended, TransactionMark.COMMIT))
    for number in range(100):
        step(ev.Commit(object(), "busy", {"s": {2: number}}))
        step(ev.MarkTransaction(object(), ended, TransactionMark.BEGIN))  # late: it changes nothing
    assert first_kept(entries) > 0
    rest = GroupsState()
    for entry in entries[first_kept(entries) :]:
        rest.apply(decode_entry(encode_entry(entry)))
    assert rest.groups["g"].positions == {"s": {1: 5}}
    assert rest.groups["g"].undecided == {PartitionName("s", 0): Undecided(waiting, 5)}
    assert rest.groups["g"].metadata == "in 2.7"
    assert rest.transactions.is_open(waiting)
    assert rest.transactions.has_ended(ended)
    assert not rest.transactions.may_begin(ended)
    rest.apply(GroupEntry(transaction=waiting, mark=TransactionMark.COMMIT))
    assert rest.groups["g"].positions == {"s": {0: 5, 1: 5}}
    assert rest.groups["g"].metadata == "in 1.0"
    assert not rest.groups["g"].awaits_transactions


def first_kept(entries):
    """Where the last rewrite begins: with an entry that says the epoch alone."""
    return max(n for n, entry in enumerate(entries) if entry == GroupEntry(epoch=entry.epoch))
