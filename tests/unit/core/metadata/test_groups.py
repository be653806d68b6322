"""Consumer groups, and readonly and paused partitions, as metadata."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import StreamConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import (
    AddPartitions,
    CreateStream,
    DeleteStream,
    JoinGroup,
    LeaveGroup,
    MoveGroup,
    PausePartitions,
    SetReadonly,
)
from strandline.core.metadata.groups import assignments
from strandline.core.metadata.image import GroupImage, MetadataImage
from strandline.core.metadata.snapshot import decode_image, encode_image
from strandline.errors import InvalidRequestError, UnknownPartitionError, UnknownStreamError


def applied(*commands, image=None):
    """The image after some commands on two streams."""
    image = image or MetadataImage()
    if not image.streams:
        for name, partitions in (("a", 3), ("b", 2)):
            config = StreamConfig(name=name, subject=name, partitions=partitions)
            image = apply(image, CreateStream(config, 1))
    for command in commands:
        image = apply(image, command)
    return image


def test_every_change_of_a_group_moves_its_epoch():
    """Also a deletion of a stream it reads; no epoch comes twice, not even after its end."""
    image = applied(JoinGroup("g", "m1", ("b", "a", "a"), 1))
    seen = [image.groups["g"].epoch]
    assert image.groups["g"].members == {"m1": ("a", "b")}
    for command in (
        JoinGroup("g", "m2", ("a",), 2),
        DeleteStream("a"),
        MoveGroup("g", 3, epoch=2),
        LeaveGroup("g", "m2"),
        LeaveGroup("g", "m1"),
        JoinGroup("g", "m1", ("b",), 2),
    ):
        image = apply(image, command)
        if "g" in image.groups:
            seen.append(image.groups["g"].epoch)
    assert seen == sorted(set(seen))
    assert image.groups["g"].coordinator == 2
    assert decode_image(encode_image(image)) == image


def test_nobody_reads_a_stream_that_is_deleted():
    """Its members read their other streams on; groups of others do not change."""
    image = applied(JoinGroup("g", "m1", ("a", "b"), 1), JoinGroup("g", "m2", ("a",), 1))
    image = applied(JoinGroup("other", "m", ("b",), 1), image=image)
    after = apply(image, DeleteStream("a"))
    assert after.groups["g"].members == {"m1": ("b",), "m2": ()}
    assert after.groups["other"] == image.groups["other"]


def test_a_member_belongs_to_who_joined():
    """Until it leaves; without access checks it belongs to no principal."""
    image = applied(JoinGroup("g", "m", ("a",), 1, "ann"), JoinGroup("g", "n", ("a",), 1))
    assert image.groups["g"].owners == {"m": "ann"}
    image = applied(LeaveGroup("g", "m"), JoinGroup("g", "m", ("a",), 1, "bob"), image=image)
    assert image.groups["g"].owners == {"m": "bob"}
    assert applied(LeaveGroup("g", "m"), image=image).groups["g"].owners == {}


def test_more_partitions_move_the_epoch_of_those_who_read_the_stream():
    """So members share the partitions again, and outdated members are notified."""
    image = applied(JoinGroup("g", "m", ("a",), 1), JoinGroup("h", "m", ("b",), 1))
    grown = apply(image, AddPartitions("a", 2))
    assert grown.groups["g"].epoch == image.next_group_epoch < grown.next_group_epoch
    assert grown.groups["g"].members == image.groups["g"].members
    assert grown.groups["h"] == image.groups["h"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (JoinGroup("g", "m", ("a",), 1), "already a member"),
        (JoinGroup("g", "n", ("x",), 1), "stream does not exist"),
        (JoinGroup("g", "n", (), 1), "stream does not exist"),
        (LeaveGroup("g", "n"), "not a member"),
        (LeaveGroup("x", "m"), "does not exist"),
        (MoveGroup("g", 1, epoch=99), "epoch is 0 now"),
    ],
)
def test_what_does_not_fit_is_rejected(command, message):
    """And changes nothing."""
    image = applied(JoinGroup("g", "m", ("a",), 1))
    with pytest.raises(InvalidRequestError, match=message):
        apply(image, command)


MEMBERS = st.dictionaries(
    st.sampled_from("mnopq"), st.sets(st.sampled_from("abc"), min_size=1).map(tuple), min_size=1
)


@given(MEMBERS, st.dictionaries(st.sampled_from("abc"), st.integers(1, 7)))
def test_each_partition_has_one_reader_who_asked_for_it(members, partitions):
    """Members with the same streams differ by at most one partition."""
    group = GroupImage(coordinator=1, members=members)
    found = assignments(group, partitions)
    given_out = [(s, n) for mine in found.values() for s, numbers in mine.items() for n in numbers]
    wanted = {stream for streams in members.values() for stream in streams}
    assert sorted(given_out) == [
        (s, n) for s in sorted(wanted) for n in range(partitions.get(s, 0))
    ]
    assert all(set(mine) <= set(members[member]) for member, mine in found.items())
    counts = {member: sum(map(len, mine.values())) for member, mine in found.items()}
    for one in members:
        for other in members:
            if set(members[one]) == set(members[other]):
                assert abs(counts[one] - counts[other]) <= 1


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return str.__lt__(self, other)


def test_who_reads_what_is_found_soon_in_large_groups():
    """Every member asks every few seconds, and the broker does nothing else meanwhile."""
    members = {Counted(f"m{n}"): ("a",) for n in range(300)}
    Counted.compared = 0
    found = assignments(GroupImage(coordinator=1, members=members), {"a": 900})
    assert {len(mine["a"]) for mine in found.values()} == {3}
    assert Counted.compared < 30_000, "far fewer than members times partitions"


def test_assignment_is_the_same_everywhere():
    """By name and number, whatever order members came in."""
    group = GroupImage(coordinator=1, members={"y": ("a", "b"), "x": ("a", "b")})
    assert assignments(group, {"b": 2, "a": 3}) == {
        "x": {"a": [0, 2], "b": [1]},
        "y": {"a": [1], "b": [0]},
    }


def test_partitions_become_readonly_and_writable():
    """One or all; first and latest time are of the orders to close them."""
    image = applied(SetReadonly("a", (1,), True, 10), SetReadonly("a", (), True, 20))
    states = image.streams["a"].states
    assert {n: (s.is_readonly, s.readonly_ns) for n, s in states.items()} == {
        0: (True, (20, 20)),
        1: (True, (10, 20)),
        2: (True, (20, 20)),
    }
    image = applied(SetReadonly("a", (1,), False, 30), image=image)
    assert image.streams["a"].states[1].readonly_ns == (10, 30)
    assert not image.streams["a"].states[1].is_readonly


def test_resuming_one_may_resume_all():
    """If the order to pause said so."""
    image = applied(PausePartitions("a", (), True, 5, True))
    assert all(state.is_paused for state in image.streams["a"].states.values())
    image = applied(PausePartitions("a", (2,), False, 6), image=image)
    assert not any(state.is_paused for state in image.streams["a"].states.values())
    image = applied(
        PausePartitions("a", (), True, 5), PausePartitions("a", (2,), False, 6), image=image
    )
    assert [s.is_paused for _, s in sorted(image.streams["a"].states.items())] == [
        True,
        True,
        False,
    ]


def test_the_last_order_to_pause_decides_whether_one_resumes_all():
    """For every partition of the stream that is paused, whichever order paused it."""
    image = applied(PausePartitions("a", (0,), True, 5), PausePartitions("a", (1,), True, 6, True))
    image = applied(PausePartitions("a", (0,), False, 7), image=image)
    states = image.streams["a"].states
    assert {n: (s.is_paused, s.paused_ns) for n, s in states.items()} == {
        0: (False, (5, 7)),
        1: (False, (6, 7)),
    }
    image = applied(PausePartitions("a", (0,), True, 8, True), image=image)
    image = applied(PausePartitions("a", (1,), True, 9), image=image)
    image = applied(PausePartitions("a", (0,), False, 10), image=image)
    assert image.streams["a"].states[1].is_paused


def test_resuming_what_is_not_paused_changes_nothing():
    """Its times stay as they were."""
    image = applied(PausePartitions("a", (0,), True, 5), PausePartitions("a", (0,), False, 6))
    again = applied(PausePartitions("a", (0, 1), False, 7), image=image)
    assert again.streams["a"].states == image.streams["a"].states


@pytest.mark.parametrize("kind", [SetReadonly, PausePartitions])
def test_states_are_of_partitions_that_exist(kind):
    """Others are rejected, and nothing changes."""
    with pytest.raises(UnknownStreamError):
        applied(kind("x", (), True, 1))
    with pytest.raises(UnknownPartitionError):
        applied(kind("b", (0, 2), True, 1))


def test_images_without_groups_are_read():
    """Images of an earlier version have neither groups nor states."""
    plain = msgspec.to_builtins(applied())
    for name in ("groups", "next_group_epoch"):
        del plain[name]
    for stream in plain["streams"].values():
        del stream["states"]
    assert msgspec.convert(plain, MetadataImage) == applied()
