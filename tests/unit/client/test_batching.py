"""The producer's bookkeeping: lots become ready by size and age, and leave and return in order."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.client.batching import BatchAccumulator, Outbox, Record


def record(number: int) -> Record:
    """A record told apart by its value."""
    return Record(str(number).encode(), None, None, None, None)


def accumulator(**changes) -> BatchAccumulator:
    """An accumulator with small limits."""
    limits = {
        "batch_bytes": 100,
        "batch_records": 5,
        "linger_s": 1.0,
        "delivery_timeout_s": 30.0,
    }
    return BatchAccumulator(**{**limits, **changes})


def test_the_first_record_of_a_lot_is_news():
    """The sender must set its timer; the next records need no attention."""
    held = accumulator()
    assert held.add(0, record(1), None, size=10, now_s=0.0)
    assert not held.add(0, record(2), None, size=10, now_s=0.1)
    assert held.add(1, record(3), None, size=10, now_s=0.1)


@pytest.mark.parametrize(
    ("sizes", "ready"), [([60, 40], 1), ([1] * 5, 1), ([1] * 4, 0), ([500], 1)]
)
def test_a_lot_is_ready_when_it_is_large_enough(sizes, ready):
    """By bytes or by records, whichever comes first; one large record is a lot."""
    held = accumulator()
    for number, size in enumerate(sizes):
        held.add(0, record(number), None, size=size, now_s=0.0)
    assert len(list(held.take_ready(0.0))) == ready


def test_a_lot_is_ready_when_it_is_old_enough():
    """Lingering counts from the lot's first record."""
    held = accumulator()
    held.add(0, record(1), None, size=1, now_s=10.0)
    held.add(0, record(2), None, size=1, now_s=10.9)
    assert held.due_s() == 11.0
    assert not list(held.take_ready(10.9))
    [lot] = held.take_ready(11.0)
    assert [item.value for item in lot.records] == [b"1", b"2"]
    assert lot.deadline_s == 40.0
    assert not held
    assert held.size == 0
    assert held.due_s() is None


def test_flushing_takes_everything():
    """Whatever is open goes out at once."""
    held = accumulator()
    for partition in range(3):
        held.add(partition, record(partition), None, size=1, now_s=0.0)
    assert sorted(lot.partition for lot in held.take_ready(0.0, everything=True)) == [0, 1, 2]


def test_records_that_may_go_anywhere_fill_one_lot_after_another():
    """Spreading single records would make many small lots of one large."""
    held = accumulator()
    chosen = []
    for number in range(15):
        partition = held.anywhere(3)
        chosen.append(partition)
        held.add(partition, record(number), None, size=1, now_s=0.0)
    assert chosen == [1] * 5 + [2] * 5 + [0] * 5


@dataclass(eq=False)
class FakeLot:
    """A lot as the outbox sees it."""

    partition: int = 0
    size: int = 10
    deadline_s: float = 100.0


def test_the_window_limits_what_is_in_flight():
    """By bytes and by lots, but one lot always goes, however large."""
    box = Outbox(window_bytes=25, window_lots=10)
    for size in (100, 10, 10):
        box.put(FakeLot(size=size))
    assert box.send() is not None
    assert box.send() is None
    box.answered(0)
    assert [box.send() is not None, box.send() is not None] == [True, True]
    narrow = Outbox(window_bytes=1000, window_lots=1)
    narrow.put(FakeLot())
    narrow.put(FakeLot())
    assert narrow.send() is not None
    assert narrow.send() is None


def test_a_lost_connection_sends_again_in_order():
    """What was in flight comes before what was queued, in the order it was put."""
    box = Outbox(window_bytes=1000, window_lots=3)
    lots = [FakeLot() for _ in range(5)]
    for lot in lots:
        box.put(lot)
    sent = [box.send() for _ in range(3)]
    box.answered(1)
    box.rewind()
    box.put(FakeLot())
    again = []
    while (item := box.send()) is not None:
        again.append(item)
        box.answered(item[0])
    assert [sequence for sequence, _ in sent] == [0, 1, 2]
    assert [sequence for sequence, _ in again] == [0, 2, 3, 4, 5]
    assert not box
    assert box.size == 0


def test_a_late_ack_is_ignored():
    """After a timeout or a resend, an ack for what is not in flight changes nothing."""
    box = Outbox(window_bytes=1000, window_lots=3)
    box.put(FakeLot())
    assert box.answered(0) is None
    box.send()
    assert box.answered(0) is not None
    assert box.answered(0) is None


def test_lots_past_their_deadline_are_given_up():
    """Whether they were in flight is told, because then they may be stored."""
    box = Outbox(window_bytes=1000, window_lots=1)
    first, second, third = FakeLot(deadline_s=1.0), FakeLot(deadline_s=2.0), FakeLot(deadline_s=9.0)
    for lot in (first, second, third):
        box.put(lot)
    box.send()
    assert box.expire(0.5) == []
    assert box.expire(2.0) == [(first, True), (second, False)]
    assert box.send() == (2, third)
    assert box.drop_all() == [third]
    assert box.size == 0


def test_a_flush_waits_for_what_was_put_before_it():
    """Later lots do not hold it up."""
    box = Outbox(window_bytes=1000, window_lots=5)
    box.put(FakeLot())
    mark = box.next_sequence
    box.put(FakeLot())
    assert box.holds_below(mark)
    box.send()
    assert box.holds_below(mark)
    box.answered(0)
    assert not box.holds_below(mark)


class OutboxMachine(RuleBasedStateMachine):
    """Random puts, sends, acks and losses: every lot is answered once, sizes add up."""

    def __init__(self):
        super().__init__()
        self.box = Outbox(window_bytes=50, window_lots=4)
        self.held: list[int] = []
        self.in_flight: list[int] = []
        self.sent_up_to = -1

    @rule(size=st.integers(1, 40))
    def put(self, size):
        """A lot is ready."""
        self.held.append(self.box.next_sequence)
        self.box.put(FakeLot(size=size))

    @rule()
    def send(self):
        """The sender asks for the next."""
        item = self.box.send()
        if item is not None:
            waiting = [number for number in self.held if number not in self.in_flight]
            assert item[0] == waiting[0]
            self.in_flight.append(item[0])

    @rule(data=st.data())
    def answer(self, data):
        """An ack comes, in any order."""
        if self.in_flight:
            number = data.draw(st.sampled_from(self.in_flight))
            assert self.box.answered(number) is not None
            self.in_flight.remove(number)
            self.held.remove(number)

    @rule()
    def lose(self):
        """The connection is lost."""
        self.box.rewind()
        self.in_flight.clear()

    @invariant()
    def agrees(self):
        """The outbox holds what it was given and has not answered."""
        assert bool(self.box) == bool(self.held)
        assert self.box.in_flight == len(self.in_flight)
        assert (self.box.size == 0) == (not self.held)


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.__doc__ = OutboxMachine.__doc__
