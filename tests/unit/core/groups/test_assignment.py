"""Assignments: every partition is read once, evenly, with as few moves as possible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.groups.assignment import assign
from strandline.types import PartitionName
from tests.kit.opcodes import opcodes_of

STREAMS = ("a", "b", "c")
subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(8)]), st.sets(st.sampled_from(STREAMS)), max_size=8
)
counts = st.dictionaries(st.sampled_from(STREAMS), st.integers(0, 9))


def everything(subscribed, partitions):
    return {
        PartitionName(stream, number)
        for streams in subscribed.values()
        for stream in streams
        for number in range(partitions.get(stream, 0))
    }


def check(readers, subscribed, partitions):
    found = [name for names in readers.values() for name in names]
    assert len(found) == len(set(found)), "nothing has two readers"
    assert set(found) == everything(subscribed, partitions), "nothing is left out"
    for member, names in readers.items():
        assert {name.stream for name in names} <= set(subscribed[member])
        for other in readers:
            shared = {n for n in names if n.stream in subscribed[other]}
            if shared:
                assert len(names) - len(readers[other]) <= 1, "no move makes it more even"


@given(subscriptions, counts, subscriptions, counts)
def test_every_partition_has_one_reader_and_numbers_are_even(first, sizes, second, later):
    """From nothing, and from any other assignment."""
    before = assign(first, sizes, {})
    check(before, first, sizes)
    after = assign(second, later, before)
    check(after, second, later)
    assert assign(second, later, after) == after, "nothing moves without a reason"


@given(st.integers(1, 20), st.integers(1, 60))
def test_a_new_member_takes_only_its_share(members, partitions):
    """A new member moves no partition between the others."""
    names = [f"m{n:02}" for n in range(members)]
    before = assign(dict.fromkeys(names, ("a",)), {"a": partitions}, {})
    after = assign(dict.fromkeys([*names, "new"], ("a",)), {"a": partitions}, before)
    for name in names:
        assert after[name] <= before[name]
    assert len(after["new"]) == partitions // (members + 1)


@given(st.integers(2, 20), st.integers(1, 60), st.integers(0, 19))
def test_only_what_a_leaver_had_moves(members, partitions, index):
    """Members that stay keep all of their partitions."""
    names = [f"m{n:02}" for n in range(members)]
    gone = names[index % members]
    before = assign(dict.fromkeys(names, ("a",)), {"a": partitions}, {})
    rest = [name for name in names if name != gone]
    after = assign(dict.fromkeys(rest, ("a",)), {"a": partitions}, before)
    assert all(before[name] <= after[name] for name in rest)


@pytest.mark.parametrize("streams", [1, 10])
def test_a_hundred_members_over_a_thousand_partitions_take_moments(streams):
    """A change among a hundred members is worked out in a small part of the two seconds."""
    partitions = {f"s{n}": 1000 // streams for n in range(streams)}
    readers, subscribed = {}, {}
    for number in range(100):
        before = readers
        subscribed[f"m{number}"] = tuple(partitions)
        readers = assign(subscribed, partitions, before)
    steps = opcodes_of(lambda: assign(subscribed, partitions, before))
    assert {len(names) for names in readers.values()} == {10}
    for number in range(0, 100, 2):
        del subscribed[f"m{number}"]
    readers = assign(subscribed, partitions, readers)
    assert {len(names) for names in readers.values()} == {20}
    # A second of Python, even on a slow machine.
    assert steps < 5_000_000
