"""Golden scripts of consumer groups: requests to the coordinator, and their effects.

A line that begins with ``>`` is a command, the lines after it are what came of it, ``#`` explains.
``GOLDEN_UPDATE=1`` writes what comes now into the scripts: read the difference before a commit.

Commands: ``streams NAME=PARTITIONS ...`` · ``join MEMBER stream ... [as=INSTANCE]`` ·
``beat MEMBER ...``: each says what it holds, gives up what it was told to, and takes what it gets ·
``slow MEMBER``: it gives nothing up yet · ``leave MEMBER`` · ``commit MEMBER place=offset ...
[epoch=N] [number=N] [in=P.E]`` (``-``: nobody; in: a transaction) ·
``mark begin|commit|abort P.E`` · ``new|keep STATE place=offset epoch=N``: a NATS consumer ·
``claim EPOCH`` · ``delete`` · ``positions`` · ``store``: what was to be
stored is · ``time MS`` · ``crash``: a new coordinator begins from what is stored · ``status``.
Sessions last 1000 ms; the group is ``g``.
"""

from pathlib import Path

import pytest

from strandline.core.coordinator_effects import Answer, EntriesStored, Forget, Reject, Store, Tick
from strandline.core.groups import effects as fx
from strandline.core.groups import events as ev
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.state import GroupsState, decode_entry, encode_entry
from strandline.core.groups.transactions import PendingOffsets, TransactionMark
from strandline.types import PartitionName

SCRIPTS = sorted((Path(__file__).parent / "groups").glob("*.txt"))
GROUP = "g"


def place(text):
    stream, number = text.split("/")
    return PartitionName(stream, int(number))


def transaction(text):
    return None if text is None else PendingOffsets(*map(int, text.split(".")))


def shown(partitions):
    return " ".join(str(name) for name in sorted(partitions)) or "nothing"


class Consumer:
    """A member's own view of its group."""

    def __init__(self, instance):
        self.instance = instance
        self.epoch = 0
        self.held = frozenset()
        self.assigned = frozenset()
        self.commits = 0


class Story:
    """One coordinator and the members of one group."""

    def __init__(self):
        self.now_ms = 0
        self.partitions = {}
        self.stored = []
        self.unstored = []
        self.consumers = {}
        self.made = 0
        self.created = {}
        self.coordinator = GroupCoordinator(GroupsState(), {}, created={}, now_ms=0)

    def run(self, line):
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        return getattr(self, f"do_{name}")(*plain, options=options)

    def step(self, event):
        lines = []
        for effect in self.coordinator.step(event, self.now_ms):
            match effect:
                case Store():
                    self.unstored.append(effect)
                case Answer(token, fx.GroupAssignment() as assigned):
                    lines.append(f"{token}: {self.assigned(token.split()[1], assigned)}")
                case Answer(token, value):
                    lines.append(f"{token}: " + ("done" if value is None else str(value)))
                case Reject(token, error):
                    lines.append(f"{token}: {error.code}")
                case fx.Expired(_, member):
                    lines.append(f"{member} expired")
                case Forget(before):
                    lines.append(f"entries before {before} may go")
        return lines

    def assigned(self, member, answer):
        consumer = self.consumers[member]
        consumer.epoch, consumer.assigned = answer.epoch, answer.partitions
        consumer.held |= answer.partitions
        lost = consumer.held - answer.partitions
        text = f"epoch {answer.epoch}, {shown(answer.partitions)}"
        if lost:
            text += f", to give up {shown(lost)}"
        if answer.positions:
            text += f", from {answer.positions}"
        counts = answer.began_with
        added = {
            name for name in answer.partitions if name.partition >= counts.get(name.stream, 99)
        }
        if added:
            text += f", added {shown(added)}"
        return text

    def do_streams(self, options):
        self.partitions = {name: int(count) for name, count in options.items()}
        self.made += 1
        self.created = {name: self.created.get(name, self.made) for name in self.partitions}
        return self.step(ev.StreamsChanged(self.partitions, self.created))

    def do_join(self, member, *streams, options):
        consumer = self.consumers.setdefault(member, Consumer(options.get("as", "")))
        token = f"join {member}"
        keeps = "keeps" in options
        return self.step(ev.Join(token, GROUP, member, streams, 1000, consumer.instance, keeps))

    def _beat(self, member):
        consumer = self.consumers[member]
        event = ev.Heartbeat(
            f"beat {member}", GROUP, member, consumer.epoch, consumer.held, consumer.instance
        )
        return self.step(event)

    def do_beat(self, *members, options):
        lines = []
        for member in members:
            consumer = self.consumers[member]
            consumer.held &= consumer.assigned
            lines += self._beat(member)
        return lines

    def do_slow(self, member, options):
        return self._beat(member)

    def do_leave(self, member, options):
        return self.step(ev.Leave(f"leave {member}", GROUP, member))

    def do_commit(self, member, options):
        epoch, number = options.pop("epoch", None), options.pop("number", None)
        inside = transaction(options.pop("in", None))
        positions = {}
        for name, offset in options.items():
            at = place(name)
            positions.setdefault(at.stream, {})[at.partition] = int(offset)
        token = f"commit {member}"
        if member == "-":
            return self.step(ev.Commit(token, GROUP, positions, transaction=inside))
        consumer = self.consumers[member]
        epoch = int(epoch or consumer.epoch)
        consumer.commits = int(number or consumer.commits + 1)
        event = ev.Commit(token, GROUP, positions, member, epoch, consumer.commits, inside)
        return self.step(event)

    def _consumer(self, what, state, options):
        epoch = int(options.pop("epoch"))
        [(name, offset)] = options.items()
        at = place(name)
        positions = {at.stream: {at.partition: int(offset)}}
        is_new = what == "new"
        return self.step(ev.KeepConsumer(what, GROUP, positions, state, is_new, epoch))

    def do_new(self, state, options):
        return self._consumer("new", state, options)

    def do_keep(self, state, options):
        return self._consumer("keep", state, options)

    def do_claim(self, epoch, options):
        return self.step(ev.ClaimConsumers("claim", GROUP, int(epoch)))

    def do_mark(self, mark, who, options):
        return self.step(
            ev.MarkTransaction(f"{mark} {who}", transaction(who), TransactionMark(mark))
        )

    def do_delete(self, options):
        return self.step(ev.Delete("delete", GROUP))

    def do_positions(self, options):
        return self.step(ev.QueryGroups("positions", lambda s: s.groups[GROUP].positions))

    def do_store(self, options):
        stored, self.unstored = self.unstored, []
        self.stored += [encode_entry(each.entry) for each in stored]
        return self.step(EntriesStored(stored[-1].sequence)) if stored else []

    def do_time(self, ms, options):
        self.now_ms += int(ms)
        return self.step(Tick())

    def do_crash(self, options):
        self.unstored = []
        state = GroupsState()
        for entry in self.stored:
            state.apply(decode_entry(entry))
        self.coordinator = GroupCoordinator(
            state, self.partitions, created=self.created, now_ms=self.now_ms
        )
        return []

    def do_status(self, options):
        group = self.coordinator.state.groups.get(GROUP)
        if group is None:
            return ["no group"]
        lines = [f"epoch {group.epoch}"]
        for name, member in sorted(group.members.items()):
            text = f"{name}: epoch {member.epoch}, {shown(member.assigned)}"
            if member.revoking:
                text += f", giving up {shown(member.revoking)}"
            lines.append(text)
        for at, (who, offset) in sorted(group.undecided.items()):
            lines.append(f"{at}: {offset} with transaction {who}")
        return [*lines, *([f"positions {group.positions}"] if group.positions else [])]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_stories_of_groups_go_as_they_are_told(path, golden):
    """Each script's commands have exactly the effects it lists."""
    golden.judge(path, Story().run)
