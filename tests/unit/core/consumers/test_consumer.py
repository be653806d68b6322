"""A pull consumer's decisions: deliveries, redeliveries and the acknowledgement floor."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.core.consumers import consumer as consumer_module
from strandline.core.consumers.consumer import (
    ENDLESS,
    ConsumerPolicy,
    PullConsumer,
    Wanted,
)
from strandline.core.consumers.effects import (
    DeliverRun,
    EndPull,
    RequestFlowControl,
    SendHeartbeat,
)
from strandline.core.consumers.flow import WINDOW_BYTES_FIRST, WINDOW_BYTES_MAX, FlowWindow
from strandline.core.consumers.pulls import TIMERS_MIN, Pull
from strandline.core.consumers.state import ConsumerState, decode_state, encode_state
from strandline.errors import InvalidRecordError


class Bench:
    """A consumer of a log with a given number of records, driven like its runner drives it."""

    def __init__(self, records=0, *, state=None, flow=None, at_once=3, **policy):
        self.records = records
        self.at_once = at_once
        self.now_ms = 0.0
        self.policy = ConsumerPolicy(**policy)
        self.consumer = PullConsumer(self.policy, state or ConsumerState(), self.now_ms, flow=flow)
        self.gone = set()
        self.is_stored = True
        """Whether deliveries are stored at once, and sent."""

    def redelivered(self):
        return self.consumer.count_redelivered(self.gone.__contains__)

    def push(self, heartbeat_ms=0):
        """Let the consumer push: somebody receives now."""
        self.consumer.pulls.clear()
        return self.pull("to", batch=ENDLESS, heartbeat_ms=heartbeat_ms)

    def pull(self, token="p", **options):
        effects = self.consumer.pull(Pull(token, **options), self.now_ms)
        return effects + self.run()

    def run(self, size=10):
        """Deliver all that can be delivered now."""
        effects = []
        while (wanted := self.consumer.wanted()) is not None:
            if wanted.sequence in self.gone:
                self.consumer.skip(wanted.sequence)
            elif wanted.sequence > self.records:
                effects += self.consumer.exhausted()
                break
            else:
                stop = wanted.sequence + (1 if wanted.is_again else self.at_once)
                offered = range(wanted.sequence, min(stop, self.records + 1))
                effects += self.consumer.deliver(offered, [size] * len(offered), self.now_ms)
            self.consumer.check()
        if self.is_stored:
            for each in effects:
                if isinstance(each, DeliverRun):
                    self.consumer.sent(each.sequences, self.now_ms)
        return effects

    def ack(self, sequence, kind="ack", *, consumer_sequence=0, delay_ms=0):
        self.consumer.ack(
            kind,
            sequence,
            consumer_sequence=consumer_sequence or sequence,
            now_ms=self.now_ms,
            delay_ms=delay_ms,
        )
        self.consumer.check()
        return self.run()

    def sleep(self, ms):
        self.now_ms += ms
        effects = self.consumer.tick(self.now_ms)
        return effects + self.run()

    def floor(self):
        state = self.consumer.state
        return state.floor_consumer, state.floor_stream


def sent(effects):
    return [
        (sequence, number, run.deliveries)
        for run in effects
        if isinstance(run, DeliverRun)
        for number, sequence in enumerate(run.sequences, run.consumer_sequence)
    ]


def receivers(effects):
    """The pull of each record."""
    runs = [each for each in effects if isinstance(each, DeliverRun)]
    return [run.tokens[n % len(run.tokens)] for run in runs for n in range(len(run.sequences))]


def ended(effects):
    return [e.status for e in effects if isinstance(e, EndPull)]


def test_a_pull_gets_as_many_as_it_wants():
    """In order, each delivery with its number."""
    bench = Bench(5)
    assert sent(bench.pull(batch=3)) == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]
    assert sent(bench.pull(batch=9)) == [(4, 4, 1), (5, 5, 1)]


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 5, 100])
def test_waiting_pulls_take_turns(at_once):
    """A record each."""
    bench = Bench(0, at_once=at_once)
    bench.pull("a", batch=2)
    bench.pull("b", batch=3)
    bench.pull("c", batch=9)
    bench.records = 10
    assert receivers(bench.run()) == [*"abcabcbccc"]
    bench.pull("d")
    bench.records = 12
    assert receivers(bench.run()) == [*"cd"]


def test_who_does_not_wait_is_told_the_end():
    """At once without an expiry; with one, after the first record or when it is over."""
    bench = Bench(1)
    assert ended(bench.pull(batch=2, no_wait=True)) == ["404 No Messages"]
    assert ended(bench.pull(batch=2, no_wait=True)) == ["404 No Messages"]
    assert ended(bench.pull(batch=2, no_wait=True, expires_ms=100)) == []
    assert ended(bench.sleep(99)) == []
    assert ended(bench.sleep(1)) == ["408 Request Timeout"]
    bench.pull(batch=2, no_wait=True, expires_ms=500)
    bench.records = 2
    effects = bench.run()
    assert sent(effects) == [(2, 2, 1)]
    assert ended(effects) == ["404 No Messages"]


def test_who_does_not_wait_is_told_that_others_do():
    """While others wait for more than there is."""
    bench = Bench(0)
    bench.pull("waits")
    assert ended(bench.pull("not", no_wait=True)) == ["408 Requests Pending"]


def test_an_expired_pull_is_told_what_is_left():
    """How many records it has not got, and bytes."""
    bench = Bench(1)
    bench.pull(batch=3, expires_ms=50, bytes_max=100)
    [end] = bench.sleep(50)
    assert (end.status, end.messages_left, end.bytes_left) == ("408 Request Timeout", 2, 90)


def test_a_limit_of_bytes_ends_a_pull():
    """A pull ends before a record that is too large, or when its batch is complete."""
    bench = Bench(9)
    effects = bench.pull(batch=5, bytes_max=25)
    assert [each[0] for each in sent(effects)] == [1, 2]
    [end] = [each for each in effects if isinstance(each, EndPull)]
    assert (end.status, end.messages_left, end.bytes_left) == (
        "409 Message Size Exceeds MaxBytes",
        3,
        5,
    )
    effects = bench.pull(batch=1, bytes_max=25)
    assert ended(effects) == ["409 Batch Completed"]
    assert effects[-1].bytes_left == 15


def test_heartbeats_fill_the_silence():
    """After each interval without a record, and not sooner."""
    bench = Bench(1)
    bench.pull(batch=2, expires_ms=1000, heartbeat_ms=100)
    assert bench.sleep(99) == []
    assert bench.sleep(1) == [SendHeartbeat("p", 1, 1)]
    assert bench.consumer.next_due_ms == 200


def test_too_many_pulls_are_rejected():
    """Unless they notice by missing heartbeats."""
    bench = Bench(max_waiting=1)
    assert bench.pull("a") == []
    assert ended(bench.pull("b")) == ["409 Exceeded MaxWaiting"]
    assert bench.pull("c", heartbeat_ms=10, expires_ms=100) == []


def test_what_is_not_acknowledged_in_time_comes_again():
    """Under the same sequence, as a new delivery."""
    bench = Bench(2, ack_wait_ms=100)
    bench.pull(batch=2)
    assert bench.sleep(99) == []
    bench.ack(1)
    bench.pull(batch=5)
    assert sent(bench.sleep(1)) == [(2, 3, 2)]
    assert bench.redelivered() == 1


def test_rejected_records_come_again_at_once_or_later():
    """A rejected record is redelivered at once, or after the delay of the rejection."""
    bench = Bench(2)
    bench.pull(batch=9)
    assert sent(bench.ack(2, "nak")) == [(2, 3, 2)]
    assert sent(bench.ack(1, "nak", delay_ms=50)) == []
    assert sent(bench.sleep(50)) == [(1, 4, 2)]


def test_progress_restarts_the_time():
    """Counted from then on."""
    bench = Bench(1, ack_wait_ms=100)
    bench.pull(batch=9)
    bench.sleep(90)
    bench.ack(1, "progress")
    assert bench.sleep(99) == []
    assert sent(bench.sleep(1)) == [(1, 2, 2)]


def test_each_delivery_has_its_backoff():
    """The last one counts for all that follow."""
    bench = Bench(1, backoff_ms=(10, 20))
    bench.pull(batch=9)
    assert sent(bench.sleep(10)) == [(1, 2, 2)]
    assert sent(bench.sleep(19)) == []
    assert sent(bench.sleep(1)) == [(1, 3, 3)]
    assert sent(bench.sleep(20)) == [(1, 4, 4)]


def test_a_record_is_given_up_after_its_last_delivery():
    """It is not pending any longer; the floor passes it with a later acknowledgement."""
    bench = Bench(2, ack_wait_ms=10, max_deliver=2)
    bench.pull(batch=9)
    bench.ack(2)
    assert sent(bench.sleep(10)) == [(1, 3, 2)]
    assert sent(bench.sleep(10)) == []
    assert bench.consumer.state.pending == {}
    assert bench.redelivered() == 1
    assert bench.floor() == (0, 0)
    bench.records = 3
    bench.run()
    bench.ack(3)
    assert bench.floor() == (4, 3)


@pytest.mark.parametrize("acks", ["explicit", "all"])
def test_what_was_given_up_counts_as_redelivered(acks):
    """Until it is acknowledged, or stored no longer; not if it was delivered once."""
    bench = Bench(5, acks=acks, ack_wait_ms=10, max_deliver=2)
    bench.pull(batch=9)
    bench.sleep(10)
    bench.pull(batch=1)
    assert (bench.redelivered(), len(bench.consumer.state.pending)) == (5, 5)
    bench.sleep(10)
    assert (bench.redelivered(), bench.consumer.state.pending) == (5, {})
    bench.ack(1)
    bench.ack(1)
    assert bench.redelivered() == 4
    bench.gone = {2, 3}
    assert bench.redelivered() == 2
    bench.gone = set()
    bench.ack(5, "term")
    assert bench.redelivered() == (1 if acks == "explicit" else 0)


def test_what_is_delivered_once_only_is_not_redelivered():
    """It is given up without another delivery."""
    bench = Bench(2, ack_wait_ms=10, max_deliver=1)
    bench.pull(batch=2)
    bench.sleep(10)
    assert (bench.redelivered(), bench.consumer.state.pending) == (0, {})


def test_what_was_given_up_is_remembered_up_to_a_limit(monkeypatch):
    """The oldest are forgotten: a consumer that gives up everything does not grow for ever."""
    monkeypatch.setattr(consumer_module, "DROPPED_MAX", 3)
    bench = Bench(5, ack_wait_ms=10, max_deliver=2)
    bench.pull(batch=10)
    bench.sleep(10)
    bench.sleep(10)
    assert bench.redelivered() == 3
    bench.ack(1)
    assert bench.redelivered() == 3
    bench.ack(5)
    assert bench.redelivered() == 2


def test_terminated_records_never_come_again():
    """They count as acknowledged."""
    bench = Bench(1, ack_wait_ms=10)
    bench.pull(batch=9)
    bench.ack(1, "term")
    assert bench.sleep(100) == []
    assert bench.floor() == (1, 1)


def test_the_floor_is_below_the_first_that_is_pending():
    """Whatever the order of acknowledgements."""
    bench = Bench(4)
    bench.pull(batch=4)
    for sequence, floor in ((2, (0, 0)), (4, (0, 0)), (1, (2, 2)), (3, (4, 4))):
        bench.ack(sequence)
        assert bench.floor() == floor


def test_acknowledging_all_before():
    """One acknowledgement settles everything up to its record."""
    bench = Bench(5, acks="all", ack_wait_ms=10)
    bench.pull(batch=5)
    bench.ack(3)
    assert bench.floor() == (3, 3)
    assert sorted(bench.consumer.state.pending) == [4, 5]
    bench.ack(2)
    assert bench.floor() == (3, 3)
    bench.pull(batch=5)
    assert [each[0] for each in sent(bench.sleep(10))] == [4, 5]


def test_without_acknowledgements_delivered_is_done():
    """Nothing is pending, and nothing comes again."""
    bench = Bench(3, acks="none", ack_wait_ms=10)
    bench.pull(batch=9)
    assert bench.floor() == (3, 3)
    assert bench.sleep(1000) == []


def test_the_number_of_pending_records_is_limited():
    """More records are delivered when some are acknowledged; redeliveries are not limited."""
    bench = Bench(5, max_ack_pending=2, ack_wait_ms=100)
    assert [each[0] for each in sent(bench.pull(batch=9))] == [1, 2]
    assert [each[0] for each in sent(bench.ack(1))] == [3]
    assert [each[0] for each in sent(bench.ack(2, "nak"))] == [2]


def test_one_pending_record_keeps_the_order():
    """With a limit of one nothing overtakes a record that comes again."""
    bench = Bench(3, max_ack_pending=1, ack_wait_ms=10)
    bench.pull(batch=9)
    assert [each[0] for each in sent(bench.sleep(10))] == [1]
    assert [each[0] for each in sent(bench.ack(1))] == [2]


def test_late_and_repeated_acknowledgements_change_nothing():
    """Also of records that were never delivered."""
    bench = Bench(2)
    bench.pull(batch=2)
    bench.ack(1)
    before = encode_state(bench.consumer.state)
    for sequence in (1, 0, 3, 99):
        for kind in ("ack", "nak", "term", "progress"):
            bench.ack(sequence, kind)
    assert encode_state(bench.consumer.state) == before


def test_deleted_records_do_not_come_again():
    """Retention may take them while they are pending; the floor passes them."""
    bench = Bench(2, ack_wait_ms=10)
    bench.pull(batch=9)
    bench.gone = {1}
    assert [each[0] for each in sent(bench.sleep(10))] == [2]
    assert bench.floor() == (1, 1)


def test_a_restart_delivers_again_what_was_pending():
    """Counts continue after a restart, and an acknowledgement from before it counts."""
    bench = Bench(3, ack_wait_ms=10)
    bench.pull(batch=3)
    bench.ack(2)
    state = decode_state(encode_state(bench.consumer.state))
    again = Bench(3, state=state, ack_wait_ms=10)
    again.ack(1)
    assert again.floor() == (2, 2)
    again.pull(batch=9)
    assert sent(again.sleep(10)) == [(3, 4, 2)]


def test_a_dropped_pull_gets_nothing():
    """A pull whose receiver is gone gets no records."""
    bench = Bench(0)
    bench.pull("a")
    bench.consumer.drop_pull("a")
    assert bench.consumer.wanted() is None


def test_what_does_not_pass_the_filters_is_passed_over():
    """The position moves, and with nothing pending the floor."""
    bench = Bench(0)
    bench.consumer.pass_over(5)
    bench.pull()
    assert bench.consumer.wanted() == Wanted(6, is_again=False)
    assert bench.floor() == (0, 5)


MIB = 1 << 20


def test_a_push_consumer_needs_no_pulls():
    """What there is and what comes, while somebody receives."""
    bench = Bench(2, max_waiting=0)
    assert bench.run() == []
    assert [each[0] for each in sent(bench.push())] == [1, 2]
    bench.records = 3
    assert [each[0] for each in sent(bench.run())] == [3]
    bench.consumer.drop_pull("to")
    bench.records = 4
    assert bench.run() == []
    assert [each[0] for each in sent(bench.push())] == [4]


def test_a_full_window_waits_for_its_answer():
    """The request follows the record that fills half of it; the answer doubles the window."""
    bench = Bench(100, acks="none", flow=FlowWindow())
    bench.consumer.pulls.clear()
    bench.consumer.pull(Pull("to", batch=ENDLESS, heartbeat_ms=50), 0)
    effects = bench.run(size=MIB // 2)
    assert [type(each) for each in effects[:2]] == [DeliverRun, RequestFlowControl]
    assert len(sent(effects)) == 5, "2 MiB and one more"
    assert bench.sleep(50) == [SendHeartbeat("to", 5, 5, request=1)]
    assert not bench.consumer.flow.answered(2)
    assert bench.run() == []
    assert bench.consumer.flow.answered(1)
    assert not bench.consumer.flow.answered(1), "once"
    assert bench.consumer.flow.sent_bytes == MIB
    assert len(sent(bench.run(size=MIB // 2))) == 7
    assert bench.consumer.flow.window_bytes == 4 * MIB


def test_the_window_grows_to_its_limit():
    """Doubled by each answer."""
    flow = FlowWindow()
    sizes = [flow.window_bytes]
    for _ in range(6):
        while not flow.sent(MIB):
            pass
        assert flow.answered(flow.request)
        sizes.append(flow.window_bytes)
    assert sizes == [WINDOW_BYTES_FIRST << n for n in range(5)] + [WINDOW_BYTES_MAX] * 2


def test_a_huge_record_behind_a_request_does_not_block_for_ever():
    """The answer covers it, because no other request would follow."""
    flow = FlowWindow()
    assert not flow.sent(MIB)
    assert flow.sent(1)
    assert not flow.sent(64 * MIB)
    assert flow.is_full
    assert flow.answered(flow.request)
    assert not flow.is_full


def test_a_new_receiver_has_a_new_window():
    """What was on its way to the one before is not waited for."""
    bench = Bench(1, acks="none", flow=FlowWindow())
    bench.push()
    bench.consumer.flow.sent(9 * MIB)
    bench.records = 2
    assert bench.run() == []
    assert sent(bench.push()) == [(2, 2, 1)]
    bench.consumer.check()


def test_a_new_receiver_gets_what_is_pending_at_once():
    """Instead of after its time."""
    bench = Bench(3, ack_wait_ms=1000)
    bench.push()
    bench.ack(2)
    bench.consumer.expire_all(bench.now_ms)
    assert sent(bench.push()) == [(1, 4, 2), (3, 5, 2)]


@given(st.lists(st.one_of(st.integers(1, 9 * MIB), st.booleans()), max_size=60))
def test_flow_control_never_stalls_for_ever(steps):
    """Whatever the sizes, and whenever it is answered: a full window has a request that waits."""
    flow = FlowWindow()
    for step in steps:
        if isinstance(step, bool):
            flow.answered(flow.request if step else flow.request + 1)
        elif not flow.is_full:
            flow.sent(step)
        flow.check()
    if flow.request:
        assert flow.answered(flow.request)
    assert not flow.is_full


@given(st.binary(max_size=100))
def test_any_bytes_are_a_state_or_an_error(data):
    """A stored state is read back; any other bytes are an error."""
    try:
        state = decode_state(data)
    except InvalidRecordError:
        return
    assert decode_state(encode_state(state)) == state


class ConsumerMachine(RuleBasedStateMachine):
    """Any order of events keeps the invariants; deliveries are numbered without a gap."""

    def __init__(self):
        super().__init__()
        self.bench = Bench(0, ack_wait_ms=20, max_ack_pending=4, max_deliver=3)
        self.last = 0
        self.counts = {}
        self.acked = set()
        self.pulls = 0

    def _judge(self, effects):
        for sequence, number, deliveries in sent(effects):
            assert number == self.last + 1, "no gap"
            self.last = number
            assert deliveries == self.counts.get(sequence, 0) + 1, "counts go on"
            assert sequence not in self.acked, "acknowledged is done"
            assert deliveries <= 3
            self.counts[sequence] = deliveries

    @rule(batch=st.integers(1, 4), no_wait=st.booleans(), bytes_max=st.sampled_from([0, 15, 25]))
    def pull(self, batch, no_wait, bytes_max):
        self.pulls += 1
        expires = self.bench.now_ms + 30
        options = {"batch": batch, "no_wait": no_wait, "bytes_max": bytes_max}
        self._judge(self.bench.pull(self.pulls, expires_ms=expires, **options))

    @rule(count=st.integers(1, 6), at_once=st.integers(1, 5))
    def publish(self, count, at_once):
        self.bench.records += count
        self.bench.at_once = at_once
        self._judge(self.bench.run())

    @precondition(lambda self: self.counts)
    @rule(data=st.data(), kind=st.sampled_from(["ack", "nak", "term", "progress"]))
    def answer(self, data, kind):
        sequence = data.draw(st.sampled_from(sorted(self.counts)))
        if kind in ("ack", "term") and sequence in self.bench.consumer.state.pending:
            self.acked.add(sequence)
        self._judge(self.bench.ack(sequence, kind, delay_ms=data.draw(st.integers(0, 9))))

    @rule(ms=st.integers(1, 30))
    def sleep(self, ms):
        self._judge(self.bench.sleep(ms))

    @rule()
    def restart(self):
        bench = self.bench
        state = decode_state(encode_state(bench.consumer.state))
        bench.consumer = PullConsumer(bench.policy, state, bench.now_ms)

    @invariant()
    def holds(self):
        self.bench.consumer.check()
        state = self.bench.consumer.state
        assert state.delivered_consumer == self.last
        lost = {
            sequence
            for sequence, count in self.counts.items()
            if sequence not in state.pending and sequence not in self.acked and count < 3
        }
        assert not lost, "what is not acknowledged is pending"


TestConsumerMachine = ConsumerMachine.TestCase
TestConsumerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(20))
def test_a_life_with_restarts_loses_nothing(seed):
    """With clients that die, delay and reject, every record is acknowledged once in the end."""
    chosen = random.Random(seed)
    pending, at_once = chosen.choice([1, 3, 10]), chosen.choice([1, 2, 20])
    bench = Bench(0, ack_wait_ms=50, max_ack_pending=pending, at_once=at_once)
    done, delivered, token = set(), {}, 0
    for _ in range(2_000):
        bench.records = min(200, bench.records + chosen.randrange(3))
        effects = bench.sleep(chosen.randrange(20))
        if chosen.random() < 0.5:
            token += 1
            effects += bench.pull(token, batch=chosen.randrange(1, 6), expires_ms=bench.now_ms + 40)
        todo = sent(effects)
        while todo:
            sequence, _, count = todo.pop(0)
            assert sequence not in done
            assert count > delivered.get(sequence, 0), "counts never go down"
            delivered[sequence] = count
            act = chosen.random()
            if act < 0.6:
                done.add(sequence)
                todo += sent(bench.ack(sequence))
            elif act < 0.8:
                todo += sent(bench.ack(sequence, "nak", delay_ms=chosen.randrange(30)))
        if chosen.random() < 0.02:
            state = decode_state(encode_state(bench.consumer.state))
            bench.consumer = PullConsumer(bench.policy, state, bench.now_ms)
        if len(done) == 200:
            break
    assert done == set(range(1, 201))
    assert bench.floor()[1] == 200


@given(st.permutations(range(1, 9)), st.integers(0, 8), st.integers(0, 8))
def test_acknowledgements_that_come_together_count_as_each_alone(order, cut, end):
    """Whatever their order, and whichever come again."""
    acks = order[: max(cut, end)] + order[:cut]
    one, many = Bench(8), Bench(8)
    for bench in (one, many):
        bench.pull(batch=8)
    for sequence in acks:
        one.ack(sequence)
    many.consumer.ack_many([(sequence, sequence) for sequence in acks])
    many.consumer.check()
    assert encode_state(many.consumer.state) == encode_state(one.consumer.state)


def test_acknowledged_records_of_a_run_do_not_stay_in_the_heap():
    """Although one of them, delivered before the others, waits for its acknowledgement."""
    bench = Bench(0, ack_wait_ms=1_000_000, max_ack_pending=0, at_once=100)
    bench.push()
    for last in range(100, 40 * 100, 100):
        bench.records = last
        bench.run()
        bench.consumer.ack_many([(each, each) for each in range(max(2, last - 99), last + 1)])
    assert bench.consumer._timed <= 2 * TIMERS_MIN
    assert list(bench.consumer.state.pending) == [1]
    bench.consumer.check()
    assert [each[0] for each in sent(bench.sleep(1_000_000))] == [1]
