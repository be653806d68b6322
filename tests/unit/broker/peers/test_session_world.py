"""Two sessions and the network between them, in any order of events: no silent gap, no livelock.

The world is what ``peer`` and ``connection`` make of a session, without sockets: each side calls
the other again when its call has ended; each direction of a connection keeps its order, and nothing
else does. Frames carry the sender's session and a number, as in the integration tests.
"""

import random

import pytest

from strandline.broker.peers.session import Back, Close, Lost, PeerSession

STEPS = 600
SETTLING_STEPS_MAX = 3000


class End:
    """One end of a connection."""

    def __init__(self, owner, direction, incarnation):
        self.owner = owner
        self.direction = direction
        self.incarnation = incarnation
        self.is_open = True
        self.inbox = []
        self.held = []
        self.other = None


class Side:
    """A broker: its session, its connection attempts, and its notifications."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.incarnation = f"{name}-0"
        self.peer = None
        self.reset()

    def reset(self):
        self.session = PeerSession()
        self.call = None
        self.out = None
        self.in_ = None
        self.era = 0
        self.sent = 0
        self.expected = None
        self.is_told_up = False

    def dial(self):
        out = End(self, "out", "")
        accepting = End(self.peer, "in", self.incarnation)
        out.other, accepting.other = accepting, out
        self.call = out
        accepting.inbox.append(("hello",))
        self.world.ends += [out, accepting]

    def received(self, end, message):
        match message:
            case ("hello",):
                end.other.inbox.append(("answer", self.incarnation))
                self.in_ = end
                self.carry_out(self.session.opened("in", end))
            case ("answer", incarnation):
                end.incarnation = incarnation
                self.out = end
                self.carry_out(self.session.opened("out", end))
            case ("frame", era, number):
                if end.held is None:
                    self.deliver(era, number)
                else:
                    end.held.append((era, number))
            case ("end",):
                end.is_open = False
                if end is self.call:
                    self.call = None
                self.carry_out(self.session.closed(end))

    def deliver(self, era, number):
        assert self.is_told_up, "a frame from a peer that is not there"
        assert (era, number) == (self.expected or (era, 0)), "a gap that nobody was told of"
        self.expected = (era, number + 1)
        self.world.delivered += 1

    def send(self):
        if self.session.is_up and self.out.is_open:
            self.out.other.inbox.append(("frame", self.era, self.sent))
            self.sent += 1

    def carry_out(self, effects):
        for effect in effects:
            match effect:
                case Close(end):
                    self.world.close(end)
                case Lost():
                    assert self.is_told_up
                    self.is_told_up = False
                case Back():
                    assert not self.is_told_up
                    self.is_told_up = True
                    self.era += 1
                    self.sent = 0
                    self.expected = None
                    held, self.in_.held = self.in_.held, None
                    for frame in held:
                        self.deliver(*frame)


class World:
    """Both sides, every end of every connection, and chance."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.ends = []
        self.delivered = 0
        self.one, self.two = Side(self, "one"), Side(self, "two")
        self.one.peer, self.two.peer = self.two, self.one
        self.sides = (self.one, self.two)

    def close(self, end):
        """Abort: data in flight from here may be lost; both ends are notified later."""
        if end.is_open:
            end.is_open = False
            if self.rng.random() < 0.5:
                end.other.inbox.clear()
            end.other.inbox.append(("end",))
            end.inbox = [("end",)]

    def crash(self, side):
        """A process dies and starts again: it remembers nothing, its connections just end."""
        for end in self.ends:
            if end.owner is side:
                self.close(end)
                end.inbox.clear()
        side.reset()
        side.incarnation = f"{side.name}-{self.rng.random()}"

    def step(self, *, faults):
        """One thing happens, any that can."""
        rng = self.rng
        if faults and rng.random() < 0.05:
            if rng.random() < 0.2:
                self.crash(rng.choice(self.sides))
            elif self.ends:
                # The network breaks a connection: as an abort of both ends, but neither knows why.
                end = rng.choice(self.ends)
                for each in (end, end.other):
                    if each.is_open:
                        each.inbox = [*each.inbox[: rng.randrange(3)], ("end",)]
        ready = [end for end in self.ends if end.inbox]
        chances = [lambda side=side: side.send() for side in self.sides if side.session.is_up]
        chances += [lambda side=side: side.dial() for side in self.sides if side.call is None]
        chances += [lambda end=end: self.hand_over(end) for end in ready]
        rng.choice(chances)()
        self.ends = [end for end in self.ends if end.inbox or end.is_open or end.other.is_open]

    def hand_over(self, end):
        message = end.inbox.pop(0)
        if message == ("end",) or end.is_open:
            end.owner.received(end, message)

    def is_settled(self):
        return all(side.session.is_up and side.is_told_up for side in self.sides)


@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_nothing_is_lost_in_silence_and_peace_returns(seed):
    """Breaks and crashes at any moment: no session has a gap; without faults both come back."""
    world = World(seed)
    for _ in range(STEPS):
        world.step(faults=True)
    steps = 0
    while not world.is_settled():
        world.step(faults=False)
        steps += 1
        assert steps < SETTLING_STEPS_MAX, "they call each other for ever"
    before = world.delivered
    for _ in range(200):
        world.step(faults=False)
    assert world.is_settled(), "a session without faults stays"
    assert world.delivered > before
