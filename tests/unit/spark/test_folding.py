"""Aggregates without Spark: the effect of a record on a state, and where reading continues."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.pipelines.aggregates import (
    AggregateState,
    check_argument_types,
    check_same_columns,
    decode_state,
    definition_of,
    encode_state,
    fold,
    next_offsets,
    parse_folds,
)
from strandline.spark.pipelines.clean import is_new
from strandline.spark.pipelines.sources import source_of

FOLDS = parse_folds(
    {"n": "count()", "total": "sum(x)", "low": "min(x)", "high": "max(x)", "newest": "last(x)"}
)


def folded(*records):
    """The state after (partition, offset, x) records."""
    state = AggregateState(values={}, offsets={})
    for partition, offset, x in records:
        fold(
            state,
            FOLDS,
            dict.fromkeys(("total", "low", "high", "newest"), x),
            place=(partition, offset),
        )
    return state


def test_each_function_does_what_it_says():
    """Nulls count, and change nothing else."""
    state = folded((0, 0, 5), (0, 1, None), (1, 0, 2), (0, 2, 4))
    assert state.values == {"n": 4, "total": 11, "low": 2, "high": 5, "newest": 4}
    assert state.offsets == {0: 2, 1: 0}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_in_the_changelog(number):
    """JSON has no notation for it, so the state has Spark's text, which is read again."""
    state = folded((0, 0, 1.5), (0, 1, number))
    text = encode_state(state)
    shown = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")
    assert f'"total":"{shown}"' in text
    assert "null" not in text
    resumed = decode_state(text, where="w")
    for each in (state, resumed):
        fold(each, FOLDS, dict.fromkeys(("total", "low", "high"), 7.0), place=(0, 2))
    assert encode_state(resumed) == encode_state(state)
    assert repr(resumed.values["total"]) == repr(number)


@given(st.permutations([1.0, math.nan, -math.inf, 3.0]))
def test_the_smallest_and_the_largest_do_not_depend_on_the_order(numbers):
    """NaN is larger than all others, as in Spark's own MIN and MAX."""
    state = folded(*[(0, offset, x) for offset, x in enumerate(numbers)])
    assert state.values["low"] == -math.inf
    assert math.isnan(state.values["high"])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("sum(x)", "string"),
        ("sum(x)", "decimal(10,2)"),
        ("sum(x)", "boolean"),
        ("max(x)", "timestamp"),
        ("min(x)", "binary"),
        ("max(x)", "decimal(38,0)"),
        ("last(x)", "boolean"),
        ("last(x)", "array<int>"),
        ("last(x)", "map<string,binary>"),
    ],
)
def test_what_a_state_cannot_hold_is_rejected(column, kind):
    """A state is JSON: a sum of texts would be one long text, and a decimal or a time would come
    back as a text that nothing can be added to or compared with.
    """
    with pytest.raises(InvalidConfigError, match=r"column 'c'.*CAST"):
        check_argument_types(parse_folds({"c": column}), {"c": kind})


def test_what_a_state_can_hold_passes():
    """Numbers for all functions, texts for comparisons, other values as their text."""
    for kind in ("int", "bigint", "float", "double"):
        check_argument_types(FOLDS, dict.fromkeys(("n", "total", "low", "high", "newest"), kind))
    check_argument_types(
        parse_folds({"a": "min(x)", "b": "last(x)"}), {"a": "string", "b": "string"}
    )
    check_argument_types(parse_folds({"c": "last(x)"}), {"c": "timestamp"})
    check_argument_types(parse_folds({"c": "last(x)"}), {"c": "decimal(10,2)"})
    check_argument_types(parse_folds({"c": "count()"}), {"c": "void"})


def test_a_record_is_folded_once():
    """A record at or below the offset that the state holds is in it already."""
    assert folded((0, 0, 5), (0, 1, 6), (0, 0, 5), (0, 1, 6)) == folded((0, 0, 5), (0, 1, 6))


def test_states_of_other_columns_are_rejected():
    """A column that was added would begin in the middle, and one of another function ended in a
    TypeError of Python's.
    """
    columns = {"b": "count()", "a": "last(x)"}
    made = definition_of("key", columns)
    state = AggregateState(values={"a": "text", "b": 1}, offsets={0: 7}, definition=made)
    with pytest.raises(InvalidConfigError, match="columns are a, but the states in s have a, b"):
        check_same_columns(parse_folds({"a": "last(x)"}), [state], into="s", definition="")
    again = decode_state(encode_state(state), where="s")
    check_same_columns(parse_folds(columns), [again], into="s", definition=made)
    same = definition_of(" key", {"a": " last(x)", "b": "count()"})
    check_same_columns(parse_folds(columns), [again], into="s", definition=same)
    for key, other in (("k", columns), ("key", columns | {"a": "max(x)"})):
        new = definition_of(key, other)
        with pytest.raises(InvalidConfigError, match="made with another key, or other functions"):
            check_same_columns(parse_folds(other), [again], into="s", definition=new)
    with pytest.raises(InvalidConfigError, match=r"'a': sum\(\) of 1 and 'text'.*another stream"):
        fold(state, parse_folds({"a": "sum(x)"}), {"a": 1}, place=(0, 8))


RECORDS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), max_size=40)


@given(RECORDS, st.integers(0, 40))
def test_the_newest_states_tell_the_position(records, cut):
    """Whatever keys the records have, the states alone say which offsets come next, and going on
    from there gives what reading everything gives.
    """
    ends, placed = {}, []
    for partition, key in records:
        placed.append((partition, ends.get(partition, 0), key))
        ends[partition] = ends.get(partition, 0) + 1

    def run(states, some):
        for partition, offset, key in some:
            state = states.setdefault(key, AggregateState(values={}, offsets={}))
            fold(state, FOLDS, {"total": offset}, place=(partition, offset))
        return states

    before = run({}, placed[:cut])
    restored = {key: decode_state(encode_state(state), where=key) for key, state in before.items()}
    start = next_offsets(restored.values())
    rest = [each for each in placed if each[1] >= start.get(each[0], 0)]
    assert rest == placed[cut:]
    assert run(restored, rest) == run({}, placed)


def test_wrong_columns_and_states_are_rejected():
    """An unknown function, a missing argument, and bytes that are no state are named."""
    for text in ("median(x)", "sum()", "count"):
        with pytest.raises(InvalidConfigError, match="'a'"):
            parse_folds({"a": text})
    with pytest.raises(InvalidRecordError, match="stream s, key 'k', has no state of"):
        decode_state(b"{", where="stream s, key 'k',")


def headers(stream, partition, offset):
    """The headers of a record with a source."""
    return {
        "Strandline-Source-Stream": stream.encode(),
        "Strandline-Source-Partition": str(partition).encode(),
        "Strandline-Source-Offset": str(offset).encode(),
        "own": b"x",
    }


def test_a_source_is_read_back_or_is_none():
    """Missing and foreign headers are no source."""
    assert source_of(headers("s", 1, 7)) == ("s", 1, 7)
    assert source_of({"own": b"x"}) is None
    assert source_of(headers("s", 1, 7) | {"Strandline-Source-Offset": b"seven"}) is None


def test_repeats_of_a_source_are_not_new():
    """Each source partition has its own newest offset; records without a source always pass."""
    seen = {}
    places = [("a", 0, 0), ("a", 0, 1), ("b", 0, 0), ("a", 0, 1), ("a", 1, 1), ("a", 0, 2)]
    assert [is_new(headers(*place), seen) for place in places] == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]
    assert is_new({}, seen)
    assert is_new({}, seen)
