"""A consumer of several partitions: positions, floors, and sequences that name the partition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.consumers.consumer import ConsumerPolicy, PullConsumer
from strandline.core.consumers.effects import DeliverRun
from strandline.core.consumers.pulls import Pull
from strandline.core.consumers.state import (
    ConsumerState,
    PendingRecord,
    decode_state,
    encode_state,
    merged_sequence,
    split_sequence,
)


@given(st.integers(1, 1 << 40), st.integers(1, 1000), st.data())
def test_a_sequence_says_which_record_it_is(within, count, data):
    """Its partition, and its place there; no two records have the same."""
    number = data.draw(st.integers(0, count - 1))
    sequence = merged_sequence(within, number, count)
    assert split_sequence(sequence, count) == (within, number)
    assert sequence >= 1


def test_sequences_have_no_holes():
    """Those of the first records of all partitions are the first ones."""
    found = [merged_sequence(within, number, 3) for within in (1, 2) for number in range(3)]
    assert found == [1, 2, 3, 4, 5, 6]


def test_one_partition_counts_as_ever():
    """Its sequences are offsets plus one."""
    assert merged_sequence(7, 0, 1) == 7
    assert split_sequence(7, 1) == (7, 0)


def test_positions_come_back():
    """A stored state of several partitions is the same afterwards."""
    state = ConsumerState(positions=[4, 0, 2], delivered_stream=6, pending={5: PendingRecord(2, 3)})
    assert decode_state(encode_state(state)) == state


def test_floors_are_below_what_is_pending():
    """In each partition by itself; without anything pending they are the positions."""
    state = ConsumerState(positions=[4, 5, 6], delivered_stream=15)
    assert state.floors == [4, 5, 6]
    for within in (2, 3):
        state.pending[merged_sequence(within, 1, 3)] = PendingRecord(within, 1)
    assert state.floors == [4, 1, 6]
    assert ConsumerState(floor_stream=9, delivered_stream=12).floors == [9]


def test_floors_stay_when_all_deliveries_are_used_up():
    """Until an acknowledgement moves them; also in a state that was stored meanwhile."""
    policy = ConsumerPolicy(ack_wait_ms=100, max_deliver=1)
    core = PullConsumer(policy, ConsumerState(positions=[0, 0]), 0.0)
    core.pull(Pull("p", batch=9), 0.0)
    for sequence in (1, 2, 3):
        [run] = core.deliver([sequence], [1], 0.0)
        core.sent(run.sequences, 0.0)
    core.ack("ack", 1, consumer_sequence=1, now_ms=0.0)
    core.tick(100.0)
    core.check()
    assert not core.state.pending
    assert (core.state.floors, core.state.positions) == ([1, 0], [2, 1])
    core = PullConsumer(policy, decode_state(encode_state(core.state)), 100.0)
    core.pull(Pull("p", batch=9), 100.0)
    core.deliver([4], [1], 100.0)
    assert core.state.floors == [1, 0]
    core.ack("ack", 4, consumer_sequence=4, now_ms=100.0)
    core.check()
    assert core.state.floors == core.state.positions == [2, 2]


def test_what_is_delivered_does_not_go_back():
    """An older sequence of a partition changes nothing."""
    state = ConsumerState(positions=[3, 3], delivered_stream=6)
    assert not state.advance(merged_sequence(2, 0, 2))
    assert state.positions == [3, 3]
    assert state.advance(merged_sequence(4, 1, 2))
    assert (state.positions, state.delivered_stream) == ([3, 4], 7)


def test_a_record_that_cannot_be_read_comes_later():
    """Other pending ones come first; it keeps its count."""
    state = ConsumerState(positions=[0, 0])
    core = PullConsumer(ConsumerPolicy(ack_wait_ms=100), state, 0.0)
    core.pull(Pull("p", batch=9), 0.0)
    for sequence in (1, 2):
        [run] = core.deliver([sequence], [1], 0.0)
        core.sent(run.sequences, 0.0)
    core.tick(100.0)
    core.postpone([1, 99], 500.0)
    core.check()
    assert core.wanted().sequence == 2
    core.deliver([2], [1], 100.0)
    core.tick(499.0)
    assert not core.wanted().is_again
    core.tick(500.0)
    assert core.wanted().sequence == 1
    [run] = core.deliver([1], [1], 500.0)
    assert run.deliveries == 2
    core.check()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_record_is_settled_whatever_happens(data):
    """In any order of partitions, acknowledgements, refusals and restarts; invariants hold."""
    count, records = data.draw(st.integers(2, 4)), 6
    state, now_ms = ConsumerState(positions=[0] * count), 0.0
    policy = ConsumerPolicy(ack_wait_ms=50, max_ack_pending=data.draw(st.integers(1, 5)))
    core, done, counts = PullConsumer(policy, state, now_ms), set(), {}
    draw = data.draw
    for step in range(300):
        calm = step > 60
        now_ms += 60 if calm else draw(st.integers(0, 60))
        core.tick(now_ms)
        if not core.pulls:
            core.pull(Pull(step, batch=3), now_ms)
        wanted = core.wanted()
        if wanted is not None and wanted.is_again:
            offered = [wanted.sequence]
        else:
            there = [n for n in range(count) if state.positions[n] < records]
            if not there:
                if not state.pending:
                    break
                continue
            number = there[0] if calm else draw(st.sampled_from(there))
            first = state.positions[number] + 1
            stop = min(records, first + (1 if calm else draw(st.integers(0, 2))))
            offered = [merged_sequence(w, number, count) for w in range(first, stop + 1)]
        if wanted is not None:
            for each in core.deliver(offered, [1] * len(offered), now_ms):
                assert isinstance(each, DeliverRun)
                core.sent(each.sequences, now_ms)
                for sequence in each.sequences:
                    assert sequence not in done
                    assert each.deliveries == counts.get(sequence, 0) + 1
                    counts[sequence] = each.deliveries
        for sequence in list(state.pending):
            kind = "ack" if calm else draw(st.sampled_from(["ack", "nak", "term", "progress", ""]))
            if kind:
                core.ack(kind, sequence, consumer_sequence=0, now_ms=now_ms)
            if kind in ("ack", "term"):
                done.add(sequence)
        if not calm and draw(st.integers(0, 9)) == 0:
            state = decode_state(encode_state(state))
            core = PullConsumer(policy, state, now_ms)
        core.check()
        assert all(
            floor <= position for floor, position in zip(state.floors, state.positions, strict=True)
        )
    assert len(done) == count * records
    assert (state.delivered_stream, state.floor_stream) == (count * records,) * 2
    assert state.floor_consumer == state.delivered_consumer


@pytest.mark.parametrize("policy", ["explicit", "none"])
def test_what_passes_no_filter_is_passed_over(policy):
    """In its partition only."""
    state = ConsumerState(positions=[0, 0, 0])
    core = PullConsumer(ConsumerPolicy(acks=policy), state, 0.0)
    core.pull(Pull("p"), 0.0)
    core.pass_over(merged_sequence(5, 2, 3))
    core.deliver([merged_sequence(1, 1, 3)], [1], 0.0)
    core.pass_over(merged_sequence(4, 1, 3))
    core.check()
    assert state.positions == [0, 4, 5]
    assert state.floors == ([0, 4, 5] if policy == "none" else [0, 0, 5])
