"""Batches in flight: order per partition across senders and losses, and correct sequences.

The last part is two brokers in a few lines: whatever is lost, refused, moved or given up on the
way, each lot is stored at most once, in order, and whoever was told "stored" finds it there.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.api.put import PRODUCER_EPOCH_MAX, SEQUENCE_MAX
from strandline.broker.write_path.producer_state import ProducerStates
from strandline.client.producer.in_flight_batch import ProducerSequence
from strandline.client.producer.in_flight_batches import InFlightBatches
from strandline.errors import (
    DiskFullError,
    InvalidRecordError,
    InvalidRequestError,
    LogPoisonedError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ReadonlyError,
    RecordTooLargeError,
    StillLoadingError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.types import ProducerStamp

UNKNOWN = "whether the record was stored is unknown"
GAP = OutOfOrderSequenceError("gap")


@dataclass(eq=False)
class FakeLot:
    """A batch as the in-flight tracking needs it."""

    partition: int = 0
    size: int = 10
    deadline_s: float = 100.0
    rows: int = 1
    has_ids: bool = False
    is_bad: bool = False


def in_flight_batches(**settings):
    """In-flight batches with a small window, numbered."""
    wide = {"window_bytes": 1000, "window_batches": 10, "is_numbered": True}
    return InFlightBatches(**{**wide, **settings})


def everything(_):
    return True


def take(box, sender="a", may_send=everything):
    """Put the next batch in flight; it is not written yet."""
    return box.next_batch(sender, may_send)


def send(box, sender="a", may_send=everything):
    """The senders send what they may, one after another; one may wait before it writes."""
    entry = take(box, sender, may_send)
    if entry is not None:
        assert box.writes(sender, entry)
    return entry


def send_all(box, sender="a", may_send=everything):
    found = []
    while (entry := send(box, sender, may_send)) is not None:
        found.append(entry)
    return found


def put(box, *batches):
    """Batches are ready; brokers always reject a bad one."""
    for batch in batches:
        box.put(batch)
    return batches


# Windows, lanes and deadlines


def test_the_window_limits_what_is_in_flight():
    """By bytes and by batches for each sender, but one batch is always allowed."""
    box = in_flight_batches(window_bytes=25)
    put(box, *(FakeLot(size=size) for size in (100, 10, 10)))
    assert send(box) is not None
    assert send(box) is None
    box.complete("a", 0)
    assert len(send_all(box)) == 2
    narrow = in_flight_batches(window_batches=1)
    put(narrow, FakeLot(), FakeLot(), FakeLot(partition=1))
    assert send(narrow).number == 0
    assert send(narrow) is None
    assert send(narrow, "b").number == 2


def test_a_lost_sender_sends_again_in_order_with_the_same_numbers():
    """In-flight batches come before queued ones, in their original order."""
    box = in_flight_batches(window_batches=3)
    put(box, *(FakeLot(rows=2) for _ in range(5)))
    sent = [(entry.number, entry.numbers) for entry in send_all(box)]
    box.complete("a", 1)
    box.lost("a")
    put(box, FakeLot())
    again = []
    while (entry := send(box)) is not None:
        again.append((entry.number, entry.numbers))
        box.complete("a", entry.number)
    assert sent == [
        (0, ProducerSequence(0, 0)),
        (1, ProducerSequence(0, 2)),
        (2, ProducerSequence(0, 4)),
    ]
    assert [number for number, _ in again] == [0, 2, 3, 4, 5]
    assert again[:2] == [sent[0], sent[2]]
    assert not box
    assert box.size == 0


def test_a_partition_moves_to_another_sender_when_nothing_of_it_is_in_flight():
    """Its order would be lost otherwise; other partitions are not held up."""
    box = in_flight_batches()
    put(box, FakeLot(), FakeLot(partition=1), FakeLot(), FakeLot(partition=1))
    first = send(box)
    assert [entry.batch.partition for entry in send_all(box, "b")] == [1, 1]
    box.complete("a", first.number, NotLeaderError("moved"))
    assert [entry.number for entry in send_all(box, "b")] == [0, 2]


def test_lanes_take_their_own_partitions():
    """In the order of each."""
    box = in_flight_batches()
    put(box, *(FakeLot(partition=number % 3) for number in range(9)))
    assert [e.number for e in send_all(box, "a", lambda p: p == 1)] == [1, 4, 7]
    assert [e.number for e in send_all(box, "b", lambda p: p != 1)] == [0, 2, 3, 5, 6, 8]


def test_a_late_ack_is_ignored():
    """After a timeout or a resend, an ack of a batch that is not in flight there has no effect."""
    box = in_flight_batches()
    [batch] = put(box, FakeLot())
    assert box.complete("a", 0) is None
    send(box)
    box.lost("a")
    send(box, "b")
    assert box.complete("a", 0) is None
    assert box.complete("b", 0) == (batch, None)
    assert box.complete("b", 0) is None


def test_batches_past_their_deadline_are_given_up():
    """The error says whether they may be stored, and the last rejection."""
    box = in_flight_batches(window_batches=1)
    first, second, third = put(box, *(FakeLot(deadline_s=at) for at in (1.0, 2.0, 9.0)))
    send(box)
    assert box.expire(0.5) == []
    found = box.expire(2.0)
    assert [(each.batch, each.is_in_flight, each.in_doubt) for each in found] == [
        (first, True, True),
        (second, False, False),
    ]
    assert send(box).batch is third
    error = UnavailableError("busy")
    box.complete("a", 2, error)
    [last] = box.expire(10.0)
    assert (last.is_in_flight, last.in_doubt, last.error) == (False, True, error)
    assert box.size == 0


def test_some_partitions_can_be_given_up():
    """The rest is sent."""
    box = in_flight_batches()
    batches = put(box, FakeLot(), FakeLot(partition=1), FakeLot())
    send(box)
    dropped = box.drop(lambda partition: partition == 0)
    assert [(each.batch, each.in_doubt) for each in dropped] == [
        (batches[0], True),
        (batches[2], False),
    ]
    assert send(box).batch is batches[1]
    assert box.partition_of(1) == 1
    assert box.partition_of(0) is None


def test_what_a_rejected_call_did_not_answer_was_not_taken():
    """A broker answers all that it has taken before it ends a call with an error."""
    box = in_flight_batches()
    batches = put(box, FakeLot(), FakeLot(), FakeLot())
    send(box)
    box.lost("a")
    send_all(box)
    box.refused("a")
    box.refused("never sent anything")
    dropped = box.drop(everything)
    assert [each.in_doubt for each in dropped] == [True, False, False], "the first was sent before"
    assert [each.batch for each in dropped] == list(batches)


@pytest.mark.parametrize(
    "error", [UnknownStreamError("gone"), ReadonlyError("r"), GAP, StrandlineError("a bug")]
)
def test_a_rejection_is_no_outcome_of_what_was_sent_before(error):
    """An earlier attempt without an answer may have stored the record."""
    box = in_flight_batches()
    [batch] = put(box, FakeLot())
    send(box)
    box.lost("a")
    send(box)
    answered, outcome = box.complete("a", 0, error)
    assert answered is batch
    assert (outcome.code, outcome.message) == ("timeout", f"{error.message}; {UNKNOWN}")


def test_a_record_that_is_wrong_was_never_stored():
    """An invalid record was invalid in earlier attempts, too."""
    box = in_flight_batches()
    put(box, FakeLot())
    send(box)
    box.lost("a")
    send(box)
    error = RecordTooLargeError("too large")
    assert box.complete("a", 0, error)[1] is error


def test_a_flush_waits_for_what_was_put_before_it():
    """Later batches do not delay it."""
    box = in_flight_batches()
    put(box, FakeLot())
    mark = box.next_number
    put(box, FakeLot())
    assert box.holds_below(mark)
    send(box)
    assert box.holds_below(mark)
    box.complete("a", 0)
    assert not box.holds_below(mark)
    assert not in_flight_batches().holds_below(0)


# Numbers


def test_batches_with_message_ids_have_no_numbers():
    """Nor has anything if the producer is not idempotent."""
    box = in_flight_batches()
    put(box, FakeLot(has_ids=True), FakeLot())
    assert [entry.numbers for entry in send_all(box)] == [None, ProducerSequence(0, 0)]
    plain = in_flight_batches(is_numbered=False)
    put(plain, FakeLot())
    assert send(plain).numbers is None


def test_a_batch_without_numbers_names_the_one_before_it():
    """It names the batch of its partition in flight before it, as later ones do."""
    box = in_flight_batches()
    ids = {"has_ids": True}
    put(box, FakeLot(), FakeLot(), FakeLot(partition=1), FakeLot(**ids), FakeLot(), FakeLot(**ids))
    sent = {entry.number: entry for entry in send_all(box)}
    assert {number: entry.after for number, entry in sent.items()} == {
        0: None,
        1: None,
        2: None,
        3: 1,
        4: 3,
        5: 4,
    }
    refused = StillLoadingError("l")
    for number in (0, 1, 3):
        assert box.complete("a", number, refused) is None
    put(box, FakeLot(**ids))
    again = send_all(box)
    assert [(entry.number, entry.after) for entry in again] == [(0, None), (1, 0), (3, 1), (6, 5)]
    assert not any(entry.in_doubt for entry in again)


@pytest.mark.parametrize(
    "error", [NotLeaderError("n"), StillLoadingError("l"), UnavailableError("u")]
)
def test_what_was_rejected_for_a_while_keeps_its_numbers(error):
    """And so do batches after it, rejected because it is missing."""
    box = in_flight_batches()
    put(box, FakeLot(), FakeLot())
    before = [entry.numbers for entry in send_all(box)]
    assert box.complete("a", 0, error) is None
    assert box.complete("a", 1, GAP) is None
    assert [entry.numbers for entry in send_all(box)] == before


@pytest.mark.parametrize("error", [InvalidRecordError("i"), RecordTooLargeError("r")])
def test_what_is_behind_a_rejected_batch_begins_an_epoch(error):
    """Even if it was sent before on a lane that was lost: without the first it was not stored."""
    box = in_flight_batches()
    batches = put(box, FakeLot(), FakeLot(), FakeLot())
    send_all(box)
    box.lost("a")
    send_all(box)
    assert box.complete("a", 0, error) == (batches[0], error)
    assert box.complete("a", 1, GAP) is None
    assert send(box) is None, "the old epoch is still in flight"
    assert box.complete("a", 2, GAP) is None
    assert [entry.numbers for entry in send_all(box)] == [
        ProducerSequence(1, 0),
        ProducerSequence(1, 1),
    ]


@pytest.mark.parametrize("error", [InvalidRecordError("i"), DiskFullError("d")])
def test_what_is_behind_a_rejected_batch_is_kept_when_its_sender_is_lost(error):
    """Its sequence cannot be stored, so it is sent again without doubt."""
    box = in_flight_batches()
    batches = put(box, FakeLot(), FakeLot(), FakeLot())
    send_all(box)
    assert box.complete("a", 0, error) == (batches[0], error)
    box.lost("a")
    assert [entry.numbers for entry in send_all(box)] == [
        ProducerSequence(0, 1),
        ProducerSequence(0, 2),
    ]
    assert box.complete("a", 1, GAP) is None
    assert box.complete("a", 2, UnavailableError("u")) is None
    assert [entry.numbers for entry in send_all(box)] == [
        ProducerSequence(1, 0),
        ProducerSequence(1, 1),
    ]
    box.lost("a")
    send(box)
    batch, outcome = box.complete("a", 1, GAP)
    assert (batch, outcome.code) == (batches[1], "timeout"), "these numbers are good"


def test_what_comes_after_a_rejected_batch_is_not_in_doubt_either():
    """Its sequence cannot be stored until a new epoch begins."""
    box = in_flight_batches()
    put(box, FakeLot(), FakeLot())
    send(box)
    box.complete("a", 0, DiskFullError("d"))
    assert send(box).numbers == ProducerSequence(0, 1)
    box.lost("a")
    send(box)
    assert box.complete("a", 1, GAP) is None
    assert send(box).numbers == ProducerSequence(1, 0)
    box.lost("a")
    [last] = box.expire(100.0)
    assert last.in_doubt


def test_rejections_use_up_no_epochs():
    """Epochs are limited, and a partition may be readonly for long."""
    box = in_flight_batches()
    for number in range(3):
        put(box, FakeLot())
        assert send(box).numbers == ProducerSequence(0, number)
        box.complete("a", number, ReadonlyError("r"))


def test_a_rejection_says_nothing_of_what_was_sent_before():
    """An invalid batch is answered at once, while earlier ones wait for the disk."""
    box = in_flight_batches()
    batches = put(box, FakeLot(deadline_s=1.0), FakeLot(), FakeLot())
    send_all(box)
    box.lost("a")
    box.expire(1.0)
    send_all(box)
    assert box.complete("a", 2, InvalidRecordError("i")) is not None
    batch, outcome = box.complete("a", 1, GAP)
    assert (batch, outcome.code) == (batches[1], "timeout"), "it and the first may be stored"


def test_a_full_disk_does_not_end_what_may_be_stored():
    """It was sent before: it and those behind it keep their numbers until they are answered."""
    box = in_flight_batches()
    batches = put(box, FakeLot(), FakeLot())
    before = [entry.numbers for entry in send_all(box)]
    box.lost("a")
    send_all(box)
    full = DiskFullError("d")
    assert box.complete("a", 0, full) is None
    assert box.complete("a", 1, GAP) is None
    assert [entry.numbers for entry in send_all(box)] == before
    assert box.complete("a", 0) == (batches[0], None)
    box.complete("a", 1, full)
    [last] = box.expire(100.0)
    assert (last.in_doubt, last.error) == (True, full)


def test_what_a_broker_does_not_take_now_may_be_stored_all_the_same():
    """A readonly partition does not check for repeats: later batches keep their sequence."""
    box = in_flight_batches()
    batches = put(box, FakeLot(), FakeLot())
    send_all(box)
    box.lost("a")
    send_all(box)
    assert box.complete("a", 0, ReadonlyError("r")) is not None
    batch, outcome = box.complete("a", 1, GAP)
    assert (batch, outcome.code) == (batches[1], "timeout")


def test_what_was_numbered_again_in_flight_is_not_in_doubt():
    """Its first sequence was rejected, whatever happens to its sender."""
    box = in_flight_batches()
    put(box, FakeLot(), FakeLot(), FakeLot(), FakeLot())
    send(box)
    box.complete("a", 0)
    send_all(box)
    assert box.complete("a", 1, GAP) is None
    assert box.complete("a", 2, UnavailableError("u")) is None
    box.lost("a")
    assert [each.in_doubt for each in box.expire(100.0)] == [False, False, False]


def test_what_was_given_up_for_certain_leaves_no_doubt_behind_it():
    """A broker that does not lead rejected it: no later batch was or will be stored."""
    box = in_flight_batches()
    put(box, FakeLot(deadline_s=1.0), FakeLot(), FakeLot())
    send_all(box)
    assert box.complete("a", 0, NotLeaderError("n")) is None
    assert box.complete("a", 1, NotLeaderError("n")) is None
    [first] = box.expire(1.0)
    assert not first.in_doubt
    send(box)
    box.lost("a")
    send_all(box)
    assert box.complete("a", 1, GAP) is None
    assert box.complete("a", 2, GAP) is None
    assert [entry.numbers for entry in send_all(box)] == [
        ProducerSequence(1, 0),
        ProducerSequence(1, 1),
    ]


def test_a_rejection_says_nothing_of_what_has_no_numbers():
    """Batches with message ids, or without idempotence, are stored without the first."""
    for is_numbered in (True, False):
        box = in_flight_batches(is_numbered=is_numbered)
        put(box, FakeLot(), FakeLot(has_ids=True))
        send_all(box)
        box.lost("a")
        send_all(box)
        error = InvalidRecordError("i")
        assert box.complete("a", 0, error) is not None
        box.complete("a", 1, NotLeaderError("n"))
        [last] = box.expire(100.0)
        assert last.in_doubt


def test_there_is_no_other_epoch_in_a_transaction():
    """Batches after a rejected one fail: the transaction cannot be committed anyway."""
    box = in_flight_batches(only_epoch=7)
    batches = put(box, FakeLot(), FakeLot())
    send_all(box)
    assert box.complete("a", 0, InvalidRecordError("i")) is not None
    put(box, FakeLot())
    assert send(box).numbers == ProducerSequence(7, 2)
    assert box.complete("a", 1, GAP) == (batches[1], GAP)


def test_another_producer_begins_when_the_epochs_are_used_up():
    """Batches after a gap in the last epoch get a new producer id, and are stored."""
    box = in_flight_batches()
    [batch] = put(box, FakeLot())
    for number in range(PRODUCER_EPOCH_MAX + 1):
        assert send(box).numbers == ProducerSequence(number, 0)
        assert box.complete("a", 0, GAP) is None
    assert send(box).numbers == ProducerSequence(0, 0, producer=1)
    assert box.complete("a", 0) == (batch, None)


def test_a_gap_of_the_producer_before_is_none_of_the_next():
    """Its epoch has the number of one that went before."""
    box = in_flight_batches(epoch_max=0)
    put(box, *(FakeLot(deadline_s=at) for at in (1.0, 1.0, 100.0)))
    send_all(box)
    assert box.complete("a", 0, DiskFullError("d")) is not None
    assert box.complete("a", 1, GAP) is None
    assert box.complete("a", 2, DiskFullError("d")) is not None
    assert send(box).numbers == ProducerSequence(0, 0, producer=1)
    put(box, FakeLot())
    send(box)
    box.lost("a")
    assert [each.in_doubt for each in box.expire(100.0)] == [True, True]


def test_what_may_be_stored_is_not_numbered_again():
    """It is given up: under a new number it could be stored twice."""
    box = in_flight_batches()
    batches = put(box, FakeLot(deadline_s=1.0), FakeLot(), FakeLot())
    send_all(box)
    box.lost("a")
    box.expire(1.0)
    send(box)
    batch, outcome = box.complete("a", 1, GAP)
    assert (batch, outcome.code) == (batches[1], "timeout")
    assert send(box).batch is batches[2]


def test_what_was_never_written_is_not_in_doubt():
    """Given up while its lane waited for a connection, it is not stored, nor written after that;
    what had been written before it was lost still may be stored.
    """
    for lane_gives, in_doubt in ((take, False), (send, True)):
        box = in_flight_batches()
        [batch] = put(box, FakeLot(deadline_s=1.0))
        entry = lane_gives(box)
        box.lost("a")
        assert take(box) is entry
        assert box.expire(1.0) == [(batch, in_doubt, in_doubt, None)]
        # Those that are numbered after what is in doubt may wait for it.
        assert box.writes("a", entry) == in_doubt


def test_a_forgotten_producer_continues_in_the_next_epoch():
    """After a long silence the broker no longer knows the sequence."""
    box = in_flight_batches()
    put(box, FakeLot(rows=3))
    send(box)
    box.complete("a", 0)
    put(box, FakeLot())
    assert send(box).numbers == ProducerSequence(0, 3)
    assert box.complete("a", 1, GAP) is None
    assert send(box).numbers == ProducerSequence(1, 0)


def test_a_fenced_producer_does_not_fence_back():
    """It keeps its epoch, so everything else that it sends is rejected, too."""
    box = in_flight_batches()
    put(box, FakeLot(), FakeLot())
    send(box)
    error = ProducerFencedError("f")
    assert box.complete("a", 0, error) is not None
    assert send(box).numbers == ProducerSequence(0, 1)


def test_large_sequences_end_an_epoch():
    """Before the field in the batch is too small."""
    box = in_flight_batches()
    put(box, FakeLot(rows=SEQUENCE_MAX), FakeLot())
    send(box)
    assert send(box) is None
    box.complete("a", 0)
    assert send(box).numbers == ProducerSequence(1, 0)


PARTITIONS = LEADERS = (0, 1)
ANY = st.sampled_from
OFTEN_0 = (0, 0, 0, 1)
SELDOM = ANY([False] * 9 + [True])
TROUBLE = ANY([None] * 4 + [LogPoisonedError("p"), DiskFullError("d"), DiskFullError("d")])


class Journey(RuleBasedStateMachine):
    """Batches to brokers that store, reject and stop answering, while leaders move."""

    epoch_max = PRODUCER_EPOCH_MAX

    def __init__(self):
        super().__init__()
        self.box = in_flight_batches(window_batches=4, epoch_max=self.epoch_max)
        self.lives = [0, 0]
        """How often the lane to each leader began anew."""
        self.leaders = [0, 1]
        """Who leads each partition."""
        self.held = {}
        """(lane, entry, numbers) that a lane was given and has not written yet."""
        self.sent = {leader: [] for leader in LEADERS}
        """(lane, number, numbers, lot) on the way to each leader, in order."""
        self.strays = {leader: [] for leader in LEADERS}
        """What a lost connection has left in a broker's buffers, to be read later."""
        self.answers = {leader: [] for leader in LEADERS}
        """(lane, number, error) on the way back."""
        self.producers = [ProducerStates(), ProducerStates()]
        self.ends = [0, 0]
        self.stored = {partition: [] for partition in PARTITIONS}
        """Numbers of lots, in the order of the log."""
        self.acked, self.failed = set(), set()
        self.refused = set()
        """Those of the failed that are not stored, as their outcome says."""
        self.unsure = {partition: [] for partition in PARTITIONS}
        """Those of which nobody knows."""
        self.given = []

    def sender(self, leader):
        return leader, self.lives[leader]

    @rule(partition=ANY(OFTEN_0), rows=st.lists(st.integers(1, 3), max_size=3), is_bad=SELDOM)
    def put(self, partition, rows, is_bad):
        """Lots are ready; brokers refuse a bad one always."""
        for count in rows:
            number = self.box.next_number
            self.given.append(number)
            self.box.put(FakeLot(partition, rows=count, deadline_s=float(number), is_bad=is_bad))

    @rule(is_stuck=SELDOM)
    def send(self, *, is_stuck=False):
        """The lanes send what they may, one after another; one may wait before it writes."""
        for leader in LEADERS:
            sender = self.sender(leader)
            self._write(leader)
            may_send = lambda at, to=leader: self.leaders[at] == to  # noqa: E731 -- a word for it
            while (entry := take(self.box, sender, may_send)) is not None:
                self.held[leader] = sender, entry, entry.numbers
                if is_stuck:
                    break
                self._write(leader)

    def _write(self, leader):
        """A sender writes its batch, unless that was given up meanwhile."""
        if leader in self.held:
            sender, entry, numbers = self.held.pop(leader)
            if self.box.writes(sender, entry):
                self.sent[leader].append((sender, entry.number, numbers, entry.batch))

    @rule(leader=ANY(OFTEN_0), most=st.integers(1, 4), trouble=TROUBLE)
    def store(self, leader, most, trouble):
        """A broker receives batches; it answers those that it rejects first."""
        for sent in self.sent[leader][:most]:
            error = self._error_of(leader, sent, trouble)
            answers = self.answers[leader]
            place = 0 if isinstance(error, InvalidRequestError) else len(answers)
            answers.insert(place, (*sent[:2], error))
        del self.sent[leader][:most]

    @rule(leader=ANY(OFTEN_0), most=st.integers(1, 4))
    def store_strays(self, leader, most):
        """A broker receives what a lost connection left; nobody gets the answer."""
        for sent in self.strays[leader][:most]:
            self._error_of(leader, sent, None)
        del self.strays[leader][:most]

    def _error_of(self, leader, sent, trouble):
        _, number, numbers, batch = sent
        at = batch.partition
        if self.leaders[at] != leader:
            return NotLeaderError("moved")
        if batch.is_bad:
            return InvalidRecordError("bad")
        stamp = ProducerStamp(numbers.producer, numbers.epoch, numbers.sequence)
        try:
            is_repeat = self.producers[at].check(stamp, batch.rows) is not None
        except StrandlineError as error:
            return error
        if trouble is not None or is_repeat:
            return trouble  # a repeat may not be committed yet, and shares the fate of what is
        self.producers[at].note(stamp, batch.rows, offset=self.ends[at], now_ns=0)
        self.ends[at] += batch.rows
        self.stored[at].append(number)
        return None

    @rule(most=st.integers(1, 4))
    def hear(self, most):
        """Answers arrive."""
        for leader in LEADERS:
            for sender, number, error in self.answers[leader][:most]:
                answered = self.box.complete(sender, number, error)
                if answered is not None:
                    self._note_outcome(answered[0].partition, number, error, answered[1])
            del self.answers[leader][:most]

    def _note_outcome(self, partition, number, error, outcome):
        """A batch that fails because of its sequence comes after one with unknown outcome."""
        (self.acked if error is None else self.failed).add(number)
        if error is not None and outcome is error and not isinstance(error, LogPoisonedError):
            self.refused.add(number)
        elif error is not None:
            is_gap = isinstance(error, OutOfOrderSequenceError)
            assert not is_gap or any(each < number for each in self.unsure[partition])
            assert not isinstance(error, ProducerFencedError)
            self.unsure[partition].append(number)

    @rule(leader=ANY(OFTEN_0), arrives=st.integers(0, 4))
    def lose(self, leader, arrives):
        """A connection breaks; some of the batches arrive, all answers are lost."""
        self.strays[leader] += self.sent[leader][:arrives]
        self.sent[leader].clear()
        self.held.pop(leader, None)
        self.answers[leader].clear()
        self.box.lost(self.sender(leader))
        self.lives[leader] += 1

    @rule(leader=ANY(OFTEN_0), trouble=TROUBLE, arrives=st.integers(0, 4))
    def answer_and_lose(self, leader, trouble, arrives):
        """A connection breaks right after the first answer."""
        self.store(leader, most=1, trouble=trouble)
        self.hear(most=len(self.given))
        self.lose(leader, arrives)

    @rule(partition=ANY(OFTEN_0))
    def move(self, partition):
        """The other broker leads from now on, with the same log."""
        self.leaders[partition] = 1 - self.leaders[partition]

    @rule()
    def expire(self):
        """The oldest batch times out."""
        held = [n for n in self.given if n not in self.acked and n not in self.failed]
        if held:
            [expired] = self.box.expire(float(held[0]))
            self.failed.add(held[0])
            if expired.in_doubt:
                self.unsure[expired.batch.partition].append(held[0])
            else:
                self.refused.add(held[0])

    @invariant()
    def stores_once_and_in_order(self):
        """Each batch is stored at most once, in order; acked ones are, rejected ones are not."""
        for numbers in self.stored.values():
            ordered = self.ordered(numbers)
            assert ordered == sorted(ordered)
            assert len(numbers) == len(set(numbers))
        stored = {n for numbers in self.stored.values() for n in numbers}
        assert self.acked <= stored
        assert not self.refused & stored
        assert bool(self.box) == (len(self.given) > len(self.acked | self.failed))

    def ordered(self, numbers):
        """Those of a partition's lots that are stored in the order in which they were put."""
        return numbers

    def teardown(self):
        """Once all faults end, every batch gets an outcome."""
        for _ in range(3 * len(self.given)):
            self.send()
            for leader in LEADERS:
                self.store(leader, most=len(self.given), trouble=None)
            self.hear(most=len(self.given))
        assert not self.box
        self.stores_once_and_in_order()


class ShortJourney(Journey):
    """The same with one epoch for each producer, so that another begins at every gap."""

    epoch_max = 0

    def ordered(self, numbers):
        """A later producer does not fence off what was given up in doubt: that may come late."""
        return [number for number in numbers if number not in self.failed]


TestJourney = Journey.TestCase
TestJourney.__doc__ = Journey.__doc__
TestShortJourney = ShortJourney.TestCase
TestShortJourney.__doc__ = ShortJourney.__doc__
TestJourney.settings = TestShortJourney.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None
)
