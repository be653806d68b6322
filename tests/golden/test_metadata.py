"""Golden scripts of operating a cluster: commands, and the controller's decisions.

A line that begins with ``>`` is a command, the lines after it are what came of it, ``#`` explains.
``GOLDEN_UPDATE=1`` writes what comes now into the scripts: read the difference before a commit.

Commands: ``brokers 1 2 3 [racks=a,b,a]``: they register and are heard · ``admit b`` ·
``register b [directory]`` · ``silent b``, ``heard b``: whether heartbeats of b come · ``stream s
1,2,3 2,3,1 [min_isr=n]``: the replicas of each partition · ``drain b [off]`` · ``remove b`` ·
``forget b``: its disk is lost · ``move s/0 4,2,3`` · ``isr s/0 1,2``: the leader wants it ·
``elect s/0 b [unclean]`` · ``shorten s/0 offset`` · ``decide``: the controller, for a while ·
``successor``: the controller dies, another decides from then on · ``status``.
"""

import textwrap
from pathlib import Path

import msgspec
import pytest

from strandline.config import StreamConfig
from strandline.core.metadata import commands as c
from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.check import check_image, check_step
from strandline.core.metadata.controller import Controller, ControllerLimits
from strandline.core.metadata.election import at
from strandline.core.metadata.image import MetadataImage
from strandline.types import PartitionName

SCRIPTS = sorted((Path(__file__).parent / "metadata").glob("*.txt"))
LIMITS = ControllerLimits(session_ms=1_000, reshare_delay_ms=5_000, moves_max=1)
TICK_MS = 400


def listed(brokers):
    return ",".join(map(str, brokers)) or "none"


def numbers(text):
    return tuple(int(number) for number in text.split(","))


class Story:
    """An image, a controller and the heartbeats of brokers."""

    def __init__(self):
        self.image = MetadataImage()
        self.now_ms = 0
        self.controller = Controller(0, LIMITS)
        self.heard = set()
        self.said = []

    def play(self, line):
        """Run a line's command; return its effects."""
        self.said = []
        word, *arguments = line.split()
        options = dict(each.split("=") for each in arguments if "=" in each)
        getattr(self, f"do_{word}")(*(each for each in arguments if "=" not in each), **options)
        return self.said

    def propose(self, command):
        before = self.image
        self.image, outcome = apply_entry(before, command)
        assert [*check_image(self.image), *check_step(before, self.image)] == []
        if outcome.code:
            rejection = f"refused, {outcome.reason}: {outcome.message}"
            self.said += textwrap.wrap(rejection, 96, subsequent_indent="  ")
        return outcome

    def at(self, where):
        stream, _, number = where.partition("/")
        name = PartitionName(stream, int(number))
        return at(name, self.image.partition(*name))

    # Brokers

    def do_brokers(self, *brokers, racks=""):
        for broker, rack in zip(
            brokers, (racks or "," * (len(brokers) - 1)).split(","), strict=True
        ):
            self.do_register(broker, rack=rack)
        self.do_decide()
        self.said = []

    def do_register(self, broker, directory="", rack=""):
        number = int(broker)
        run = f"r{self.now_ms}"
        command = c.RegisterBroker(
            broker=number, directory_id=directory or f"d{number}", incarnation=run, rack=rack
        )
        if self.propose(command).is_applied:
            self.heard.add(number)

    def do_admit(self, broker):
        self.propose(c.AdmitBroker(int(broker), f"host{broker}:9295"))

    def do_silent(self, broker):
        self.heard.discard(int(broker))

    def do_heard(self, broker):
        self.heard.add(int(broker))

    def do_drain(self, broker, off=""):
        self.propose(c.Drain(int(broker), not off))

    def do_remove(self, broker):
        self.propose(c.RemoveBroker(int(broker)))

    def do_forget(self, broker):
        self.propose(c.ForgetDirectory(int(broker)))

    # Partitions

    def do_stream(self, name, *assignment, min_isr="1"):
        placed = tuple(map(numbers, assignment))
        config = StreamConfig(
            name=name,
            subject=name,
            partitions=len(placed),
            replicas=len(placed[0]),
            min_isr=int(min_isr),
        )
        self.propose(c.CreateStream(config, 1, placed))

    def do_move(self, where, to):
        self.propose(c.ReassignReplicas((c.Move(self.at(where), numbers(to)),)))

    def do_isr(self, where, isr):
        place = self.at(where)
        found = self.image.partition(*place.name)
        run = c.BrokerRun(found.leader, self.image.brokers[found.leader].incarnation)
        change = c.IsrChange(place, found.leader_epoch, numbers(isr))
        self.propose(c.ChangeIsr(run, (change,)))

    def do_elect(self, where, leader, unclean=""):
        reason = "unclean" if unclean else "operator"
        self.propose(c.ElectLeader((c.LeaderChange(self.at(where), int(leader)),), reason))

    def do_shorten(self, where, offset):
        self.propose(c.MoveLogStarts((c.LogStart(self.at(where), int(offset)),)))

    # The controller

    def do_successor(self):
        self.controller = Controller(self.now_ms, LIMITS)

    def do_decide(self):
        """Time passes until nothing more is proposed, and leaders may be shared again."""
        for _ in range(1 + LIMITS.reshare_delay_ms // TICK_MS):
            self.now_ms += TICK_MS
            for broker in self.heard & self.image.brokers.keys():
                run = c.BrokerRun(broker, self.image.brokers[broker].incarnation)
                self.controller.heartbeat(run, self.now_ms)
            for command in self.controller.decide(self.image, self.now_ms):
                self.said.append(told(command))
                self.propose(command)

    def do_status(self):
        for broker in self.image.brokers.values():
            has_disk = "" if broker.directory_id else ", no directory"
            self.said.append(f"broker {broker.id}: {broker.state}{has_disk}")
        if self.image.removed:
            self.said.append(f"removed: {listed(self.image.removed)}")
        for name, p in self.image.partitions():
            moves = "".join(
                f" {word} {listed(who)}"
                for word, who in (("adding", p.adding), ("removing", p.removing))
                if who
            )
            start = f" from {p.log_start_offset}" if p.log_start_offset else ""
            led = p.leader if p.leader is not None else "nobody"
            self.said.append(
                f"{name}: {led} leads e{p.leader_epoch}, replicas {listed(p.replicas)}, "
                f"ISR {listed(p.isr)}{moves}{start}"
            )


def told(command):
    """A command of the controller as scripts show it."""
    match command:
        case c.Fence(runs):
            return f"fence {listed(run.broker for run in runs)}"
        case c.Unfence(runs):
            return f"unfence {listed(run.broker for run in runs)}"
        case c.ElectLeader(changes, reason):
            chosen = " ".join(f"{change.at.name}={change.leader}" for change in changes)
            return f"elect {chosen}, {reason}"
        case c.ReassignReplicas(moves):
            return "move " + " ".join(f"{each.at.name}={listed(each.target)}" for each in moves)
        case c.FinishReassignment(partitions):
            return "finish " + " ".join(str(each.name) for each in partitions)
    raise AssertionError(msgspec.to_builtins(command))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_story_is_as_told(script, golden):
    """Each command of a script has the outcome that the script states."""
    golden.judge(script, Story().play)


def test_there_are_stories():
    """An empty folder would tell nothing."""
    assert len(SCRIPTS) >= 5
