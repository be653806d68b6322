"""The group coordinator against any order of events, lost answers and crashes.

Members are simulated as clients behave: they begin what they are given, give up what they are told
to when they feel like it, commit what they consumed, and repeat what was not answered. Any request
may arrive once more, much later.
"""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.core.coordinator_effects import Answer, EntriesStored, Reject, Store, Tick
from strandline.core.groups import events as ev
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.state import GroupsState, decode_entry, encode_entry
from strandline.errors import StrandlineError
from strandline.types import PartitionName

GROUP = "g"
SESSION_MS = 1000
NOTHING = frozenset()
members = st.integers(0, 4)


class Client:
    """A member as it sees itself."""

    def __init__(self, name, instance):
        self.name = name
        self.instance = instance
        self.epoch = 0
        self.is_member = False
        self.assigned = NOTHING
        self.held = NOTHING
        self.at = {}
        self.commits = 0


class Groups(RuleBasedStateMachine):
    """Entries are stored one after the other; a crash loses those that are not yet."""

    def __init__(self):
        super().__init__()
        self.now_ms = 0
        self.partitions = {"a": 3, "b": 2}
        self.created = {"a": 1, "b": 1}
        self.stored = []
        self.unstored = []
        self.answers = {}
        self.names = itertools.count()
        self.clients = {}
        self.late = []
        """Requests that may arrive once more."""
        self.truth = {}
        """What was committed for certain."""
        self.coordinator = GroupCoordinator(
            GroupsState(), self.partitions, created=self.created, now_ms=0
        )

    def step(self, event):
        for effect in self.coordinator.step(event, self.now_ms):
            if isinstance(effect, Store):
                self.unstored.append(effect)
            elif isinstance(effect, Answer):
                self.answers[effect.token] = effect.value
            elif isinstance(effect, Reject):
                self.answers[effect.token] = effect.error

    def store(self, count):
        now, self.unstored = self.unstored[:count], self.unstored[count:]
        self.stored += [encode_entry(each.entry) for each in now]
        if now:
            self.step(EntriesStored(now[-1].sequence))

    def ask(self, make, *, is_lost=False):
        """Ask, let everything be stored, and return the answer; None if that was lost."""
        token = object()
        self.late.append(make)
        self.step(make(token))
        assert token not in self.answers or not self.unstored, "told before it was stored"
        self.store(len(self.unstored))
        answer = self.answers.pop(token)
        return None if is_lost else answer

    def told(self, client, answer):
        if answer is None:
            return
        if isinstance(answer, StrandlineError):
            assert answer.code in ("unknown_member", "member_fenced")
            client.is_member, client.held, client.assigned, client.at = False, NOTHING, NOTHING, {}
            return
        client.epoch, client.assigned = answer.epoch, answer.partitions
        for name in answer.partitions - client.held:
            start = answer.positions.get(name.stream, {}).get(name.partition, 0)
            assert start == self.truth.get(name, 0), "it begins where the group has come to"
            client.at[name] = start
        client.held |= answer.partitions

    @rule(number=members, is_static=st.booleans(), is_lost=st.booleans(), both=st.booleans())
    def join(self, number, is_static, is_lost, both):
        """A member joins with a new id; its earlier one just disappears."""
        instance = f"i{number}" if is_static else ""
        client = self.clients[number] = Client(f"m{next(self.names)}", instance)
        streams = ("a", "b") if both else ("a",)
        for _ in range(2 if is_lost else 1):
            answer = self.ask(
                lambda token: ev.Join(token, GROUP, client.name, streams, SESSION_MS, instance),
            )
        client.is_member = True
        self.told(client, answer)

    @precondition(lambda self: self.clients)
    @rule(number=members, gives_up=st.booleans(), is_lost=st.booleans())
    def heartbeat(self, number, gives_up, is_lost):
        """A member may give up partitions, and may not receive the answer."""
        client = self.clients.get(number)
        if client is None or not client.is_member:
            return
        if gives_up:
            client.held &= client.assigned
        epoch, held = client.epoch, client.held
        answer = self.ask(
            lambda token: ev.Heartbeat(token, GROUP, client.name, epoch, held, client.instance),
            is_lost=is_lost,
        )
        if gives_up:
            client.held &= client.assigned  # also while the answer was on its way
        self.told(client, answer)

    @precondition(lambda self: self.clients)
    @rule(number=members, records=st.integers(1, 5), is_lost=st.booleans())
    def commit(self, number, records, is_lost):
        """A member consumes some of its partitions, and commits."""
        client = self.clients.get(number)
        if client is None or not client.held:
            return
        name = min(client.held)
        at = client.at[name] + records
        positions = {name.stream: {name.partition: at}}
        client.commits += 1
        epoch, number = client.epoch, client.commits
        answer = self.ask(
            lambda token: ev.Commit(token, GROUP, positions, client.name, epoch, number)
        )
        if answer is None:
            assert at >= self.truth.get(name, 0), "positions never go back"
            self.truth[name] = at
            client.at[name] = at
        elif not is_lost:
            assert answer.code in ("unknown_member", "stale_member")

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def something_arrives_late(self, data):
        """A delayed request; a join is not repeated that late, because it has a time limit."""
        make = data.draw(st.sampled_from(self.late[-12:]))
        if not isinstance(make(None), ev.Join):
            self.step(make(object()))
            self.store(len(self.unstored))

    @invariant()
    def positions_are_as_was_told(self):
        """Committed offsets are those that were acknowledged."""
        if self.unstored:
            return
        group = self.coordinator.state.groups.get(GROUP)
        found = group.positions if group is not None else {}
        plain = {PartitionName(s, n): at for s, o in found.items() for n, at in o.items()}
        assert plain == self.truth

    @precondition(lambda self: self.clients)
    @rule(number=members)
    def leave(self, number):
        """A member leaves after its last commit."""
        client = self.clients.pop(number, None)
        if client is not None:
            self.ask(lambda token: ev.Leave(token, GROUP, client.name))

    @rule(ms=st.integers(1, 600))
    def time_passes(self, ms):
        """A member without heartbeats is removed."""
        self.now_ms += ms
        self.step(Tick())
        self.store(len(self.unstored))

    @rule(a=st.integers(0, 4), b=st.integers(0, 3), is_whole=st.booleans())
    def streams_change(self, a, b, is_whole):
        """Streams grow, and are deleted and made again; all are named, or those that changed."""
        before = self.partitions
        self.partitions = {name: count for name, count in (("a", a), ("b", b)) if count}
        self.partitions.setdefault("a", 1)
        self.partitions.setdefault("b", 1)
        changed = {name for name in before if before[name] != self.partitions[name]}
        told = {name: self.partitions[name] for name in changed}
        names = None if is_whole else changed
        self.step(ev.StreamsChanged(self.partitions if is_whole else told, self.created, names))

    @rule(keep=st.integers(0, 3), number=members)
    def crash_while_committing(self, keep, number):
        """Some decisions are stored, and nobody was notified."""
        client = self.clients.get(number)
        if client is not None and client.is_member:
            self.step(
                ev.Heartbeat("x", GROUP, client.name, client.epoch, client.held, client.instance)
            )
            self.store(min(keep, len(self.unstored)))
        self.unstored = []
        state = GroupsState()
        for entry in self.stored:
            state.apply(decode_entry(entry))
        self.coordinator = GroupCoordinator(
            state, self.partitions, created=self.created, now_ms=self.now_ms
        )

    @invariant()
    def nothing_has_two_holders(self):
        """No partition has two holders, for the coordinator and for its present members."""
        group = self.coordinator.state.groups.get(GROUP)
        known = group.members if group is not None else {}
        held = [name for member in known.values() for name in member.held]
        assert len(held) == len(set(held))
        for client in self.clients.values():
            if client.is_member and client.name in known:
                assert client.held <= known[client.name].held | NOTHING

    @invariant()
    def entries_say_everything(self):
        """A coordinator restored from the entries, rewritten or not, has the same state."""
        if self.unstored:
            return
        replayed, rewritten = GroupsState(), GroupsState()
        for entry in self.stored:
            replayed.apply(decode_entry(entry))
        for entry in self.coordinator.state.entries(2):
            rewritten.apply(decode_entry(encode_entry(entry)))
        for state in (replayed, rewritten):
            assert state.epoch == self.coordinator.state.epoch
            assert _plain(state) == _plain(self.coordinator.state)

    def teardown(self):
        """Without further events the members share everything evenly."""
        for _ in range(12):
            for client in self.clients.values():
                if client.is_member:
                    client.held &= client.assigned
                    self.told(
                        client,
                        self.ask(
                            lambda token, c=client, epoch=client.epoch, held=client.held: (
                                ev.Heartbeat(token, GROUP, c.name, epoch, held, c.instance)
                            )
                        ),
                    )
            self.now_ms += SESSION_MS // 6
            self.step(Tick())
            self.store(len(self.unstored))
        there = [client for client in self.clients.values() if client.is_member]
        group = self.coordinator.state.groups.get(GROUP)
        assert {c.name for c in there} == set(group.members if group is not None else ())
        subscribed = {s for m in (group.members.values() if group else ()) for s in m.streams}
        wanted = {
            PartitionName(stream, number)
            for stream in subscribed
            for number in range(self.partitions.get(stream, 0))
        }
        assert set().union(*(client.held for client in there)) == wanted


def _plain(state):
    return {
        name: (group.epoch, group.members, group.positions, group.commit_numbers, group.began_with)
        for name, group in state.groups.items()
    }


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
