"""Planning of reads: their start and end, the size of a trigger, and the splits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
)
from strandline.spark.options import ReadOptions
from strandline.spark.planning import (
    OffsetRange,
    PartitionExtent,
    StreamExtent,
    available_end,
    check_same_stream,
    decode_offsets,
    encode_offsets,
    ending_offsets,
    limit_bytes,
    limit_records,
    plan_ranges,
    split_ranges,
    starting_offsets,
)

STATES = [PartitionExtent(1, 5, 50, 4500), PartitionExtent(0, 10, 100, 90_000)]


def options(**changes):
    return ReadOptions(server="s", stream="x", **changes)


def test_offsets_are_written_in_ascending_numeric_order():
    """Spark compares offsets as text, so one state has one text, whatever the dict's order."""
    texts = {
        json.dumps(encode_offsets(offsets, identity="x@1"))
        for offsets in ({10: 1, 9: 2, 2: 3}, {2: 3, 10: 1, 9: 2})
    }
    assert texts == {'{"2": 3, "9": 2, "10": 1, "stream": "x@1"}'}


@given(st.dictionaries(st.integers(0, 9999), st.integers(0, 2**62)))
def test_offsets_survive_the_checkpoint(offsets):
    """Encoded offsets are decoded after a round trip through JSON."""
    encoded = json.loads(json.dumps(encode_offsets(offsets, identity="x@1")))
    assert decode_offsets(encoded) == offsets


def test_another_stream_of_the_same_name_is_rejected():
    """A checkpoint of a stream that was recreated is not continued."""
    encoded = encode_offsets({0: 1}, identity="x@1")
    check_same_stream(encoded, StreamExtent("x@1", ()))
    with pytest.raises(DataLossError, match="x@2"):
        check_same_stream(encoded, StreamExtent("x@2", ()))


@pytest.mark.parametrize(
    "encoded", [{"orders": {"0": 5}}, {"0": 5}, {"0": "x", "stream": "x@1"}, [5], 5, "a"]
)
def test_a_checkpoint_of_another_source_is_rejected(encoded):
    """Offsets of Kafka's source, for example, are rejected with a remedy."""
    with pytest.raises(InvalidConfigError, match="start with a new checkpoint"):
        decode_offsets(encoded)


def test_starts_by_word_and_by_number():
    """earliest is the log start, latest the high watermark; unnamed partitions start earliest."""
    assert starting_offsets(STATES, options()) == {0: 10, 1: 5}
    assert starting_offsets(STATES, options(starting_offsets="latest")) == {0: 100, 1: 50}
    assert starting_offsets(STATES, options(starting_offsets={1: 7})) == {0: 10, 1: 7}


def test_impossible_starts_are_rejected():
    """Beyond the end, before the log start, or of an unknown partition."""
    with pytest.raises(OffsetOutOfRangeError, match="100"):
        starting_offsets(STATES, options(starting_offsets={0: 101}))
    with pytest.raises(UnknownPartitionError, match="partition 7"):
        starting_offsets(STATES, options(starting_offsets={7: 1}))
    with pytest.raises(DataLossError, match="retention"):
        starting_offsets(STATES, options(starting_offsets={0: 9}))


def test_lost_records_are_skipped_only_when_asked():
    """With failOnDataLoss off a start below the log start moves up to it."""
    forgiving = options(starting_offsets={0: 9}, fail_on_data_loss=False)
    assert starting_offsets(STATES, forgiving) == {0: 10, 1: 5}


def test_an_end_before_the_log_is_nothing_to_read_if_allowed(caplog):
    """With failOnDataLoss=false a range removed by retention is empty."""
    asked = {"starting_offsets": {0: 3}, "ending_offsets": {0: 9}}
    forgiving = options(**asked, fail_on_data_loss=False)
    start = starting_offsets(STATES, forgiving)
    assert ending_offsets(STATES, forgiving, starting=start) == {0: 10, 1: 50}
    assert "records 3 to 10 of partition 0 were deleted" in caplog.text
    assert "records up to 9 of partition 0 were deleted: nothing" in caplog.text
    backwards = options(starting_offsets={0: 20}, ending_offsets={0: 9}, fail_on_data_loss=False)
    with pytest.raises(OffsetOutOfRangeError, match="before it starts"):
        ending_offsets(STATES, backwards, starting=starting_offsets(STATES, backwards))


def test_impossible_ends_are_rejected():
    """An end beyond the committed records or before the start is an error."""
    start = starting_offsets(STATES, options())
    assert ending_offsets(STATES, options(ending_offsets={0: 20}), starting=start) == {0: 20, 1: 50}
    with pytest.raises(OffsetOutOfRangeError, match="committed"):
        ending_offsets(STATES, options(ending_offsets={0: 101}), starting=start)
    with pytest.raises(OffsetOutOfRangeError, match="before it starts"):
        ending_offsets(STATES, options(ending_offsets={0: 9}), starting=start)


def test_a_stream_never_goes_backwards():
    """Where the log ends below the start, it is data loss or, if allowed, a wait at the start."""
    with pytest.raises(DataLossError, match="ends at offset 50"):
        available_end(STATES, options(), start={0: 10, 1: 60})
    forgiving = options(fail_on_data_loss=False)
    assert available_end(STATES, forgiving, start={0: 10, 1: 60}) == {0: 100, 1: 60}


def test_truncation_below_the_start_is_noticed():
    """Records that retention deleted before they were read are data loss."""
    with pytest.raises(DataLossError, match="deleted before they were read"):
        available_end(STATES, options(), start={0: 9, 1: 5})


def test_a_new_leader_that_does_not_know_yet_what_is_committed_is_no_loss():
    """The read waits; only an offset beyond its log is a loss."""
    new_leader = PartitionExtent(0, 0, 40, log_end_offset=60)
    assert available_end([new_leader], options(), start={0: 60}) == {0: 60}
    assert starting_offsets([new_leader], options(starting_offsets={0: 60})) == {0: 60}
    with pytest.raises(DataLossError, match="ends at offset 60"):
        available_end([new_leader], options(), start={0: 61})


starts_and_counts = st.dictionaries(
    st.integers(0, 50), st.tuples(st.integers(0, 10**12), st.integers(0, 10**7)), min_size=1
)


@given(starts_and_counts, st.integers(1, 10**8))
def test_limited_records_are_exact_and_fair(extents, limit):
    """A limit takes exactly what it may, never goes back, and gives each partition one record if it
    can, so that a long backlog of one starves no other; the rest is shared in proportion.
    """
    start = {p: first for p, (first, _) in extents.items()}
    end = {p: first + count for p, (first, count) in extents.items()}
    total = sum(count for _, count in extents.values())
    limited = limit_records(start, end, records_max=limit)
    taken = {p: limited[p] - start[p] for p in start}
    assert sum(taken.values()) == min(total, limit)
    waiting = sum(count > 0 for _, count in extents.values())
    first = 1 if waiting <= limit else 0
    rest, shared = total - first * waiting, limit - first * waiting
    for partition, (_, count) in extents.items():
        assert min(count, first) <= taken[partition] <= count
        due = max(0, count - first) * min(1, shared / max(1, rest))
        assert abs(taken[partition] - min(count, first) - due) <= 1


def test_limited_bytes_follow_the_average_record():
    """The byte limit counts records by their partition's average, and takes at least one."""
    start, end = {0: 10, 1: 5}, {0: 100, 1: 50}
    limited = limit_bytes(start, end, bytes_max=9_450, states=STATES)
    assert sum(limited.values()) - sum(start.values()) == 13
    tiny = limit_bytes(start, end, bytes_max=1, states=STATES)
    assert sum(tiny.values()) - sum(start.values()) == 1
    assert limit_bytes(start, end, bytes_max=10**9, states=STATES) == end


@given(
    st.dictionaries(
        st.integers(0, 20), st.tuples(st.integers(0, 10**9), st.integers(0, 5000)), max_size=8
    ),
    st.none() | st.integers(1, 3000),
    st.none() | st.integers(1, 40),
)
def test_splits_cover_each_offset_once(extents, records_max, partitions_min):
    """Splits join up to the ranges, and keep both limits."""
    ranges = [OffsetRange(p, first, first + count) for p, (first, count) in extents.items()]
    pieces = split_ranges(ranges, records_max=records_max, partitions_min=partitions_min)
    for whole in ranges:
        edge = whole.start
        for piece in (each for each in pieces if each.partition == whole.partition):
            assert piece.start == edge
            edge = piece.stop
        assert edge == whole.stop
    total = sum(whole.records_max for whole in ranges)
    assert all(piece.records_max > 0 for piece in pieces)
    if records_max is not None:
        assert all(piece.records_max <= records_max for piece in pieces)
    if partitions_min is not None:
        assert len(pieces) >= min(partitions_min, total)


def test_plans_are_pure():
    """A replayed batch is planned as the first attempt was; an empty one has no tasks."""
    wanted = options(records_per_partition_max=30)
    first = plan_ranges({0: 10, 1: 5}, {0: 100, 1: 5}, wanted)
    assert first == plan_ranges({1: 5, 0: 10}, {1: 5, 0: 100}, wanted)
    assert [(r.partition, r.start, r.stop) for r in first] == [
        (0, 10, 40),
        (0, 40, 70),
        (0, 70, 100),
    ]
    assert plan_ranges({0: 10}, {0: 10}, wanted) == []
