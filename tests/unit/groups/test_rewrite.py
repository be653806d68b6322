"""The coordinator's log is written anew when it says far more than the state takes."""

from strandline.groups import coordinator as module
from strandline.groups import effects as fx
from strandline.groups import events as ev
from strandline.groups.coordinator import GroupCoordinator
from strandline.groups.state import GroupsState


def test_what_may_be_forgotten_is_said_again_behind(monkeypatch):
    """Entries from the place that ``Forget`` names on give the same state as all of them."""
    monkeypatch.setattr(module, "REWRITE_ENTRIES_MIN", 20)
    coordinator = GroupCoordinator(GroupsState(), {"s": 4}, now_ms=0)
    entries, forgotten = [], []

    def step(event):
        for effect in coordinator.step(event, 0):
            if isinstance(effect, fx.Store):
                assert effect.sequence == len(entries)
                entries.append(effect.entry)
            elif isinstance(effect, fx.Forget):
                forgotten.append(effect.before)

    for number in range(4):
        step(ev.Join(object(), "g", f"m{number}", ("s",), 1000))
    for number in range(200):
        step(ev.Commit(object(), f"cursor-{number % 3}", {"s": {number % 4: number}}))
        step(ev.Stored(len(entries) - 1))
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
