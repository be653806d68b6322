"""The checks of a replica before a clustered read begins there."""

import pytest

from strandline.api.admin import PartitionInfo
from strandline.api.tickets import ReadRequest
from strandline.client.reader.read_checks import (
    check_offsets,
    has_offset,
    may_exist_later,
    numbers_of,
)
from strandline.errors import InvalidRequestError, UnknownPartitionError

HERE = PartitionInfo(
    partition=0, log_start_offset=3, high_watermark=7, log_end_offset=9, size_bytes=1, leader="a:1"
)


@pytest.mark.parametrize(
    ("at", "address", "may"),
    [
        ("latest", "b:1", False),
        (None, "b:1", False),
        (7, "b:1", False),
        (8, "b:1", True),
        (100, "b:1", True),
        (8, "a:1", True),
        (9, "a:1", True),
        (10, "a:1", False),
    ],
)
def test_an_offset_beyond_what_is_committed_may_come(at, address, may):
    """A follower cannot tell that it never will; the leader can, by the end of its log."""
    assert may_exist_later(at, HERE, address) is may


def test_a_replica_knows_what_it_holds_and_the_end():
    """From the start of its log to the high watermark, both included."""
    assert [at for at in range(12) if has_offset(at, HERE)] == [3, 4, 5, 6, 7]


def test_the_partitions_of_a_read():
    """Those that are named, in order; a stream has to have them."""
    assert numbers_of(ReadRequest(stream="s", starts={2: 5, 0: 1}), [0, 1, 2]) == [0, 2]
    assert numbers_of(ReadRequest(stream="s", partition=1), [0, 1, 2]) == [1]
    assert numbers_of(ReadRequest(stream="s"), [0, 1, 2]) == [0, 1, 2]
    with pytest.raises(UnknownPartitionError, match="no partition 3; it has 0 to 2"):
        numbers_of(ReadRequest(stream="s", partition=3), [0, 1, 2])


@pytest.mark.parametrize("bounds", [{"start": 0}, {"stop": 4}])
def test_one_offset_is_no_place_in_several_partitions(bounds):
    """The first one, too; words are places in all of them."""
    with pytest.raises(InvalidRequestError, match="is a place in one partition"):
        check_offsets(ReadRequest(stream="s", **bounds), [0, 1])
    check_offsets(ReadRequest(stream="s", **bounds), [1])
    check_offsets(ReadRequest(stream="s", start="earliest", stop="latest"), [0, 1])
