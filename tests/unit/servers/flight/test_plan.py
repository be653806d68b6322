"""Planning of reads: offsets are resolved once, impossible ones are rejected by name."""

import pytest

from strandline.api.tickets import AtTimestamp, ReadRequest
from strandline.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
)
from strandline.record.schema import COLUMNS
from strandline.servers.flight.plan import plan_read


def extents(stream, **request) -> list[tuple[int, int | None]]:
    """Start and stop of each partition's part."""
    plan = plan_read(ReadRequest(stream="s", **request), stream)
    return [(extent.start, extent.stop) for extent in plan.ranges]


@pytest.fixture
def filled(partition):
    """Offsets 3 to 9 exist, in three batches at 1 s, 2 s and 3 s."""
    partition.store(*[b"v"] * 5)
    partition.store(*[b"v"] * 3)
    partition.store(*[b"v"] * 2)
    partition.log_start_offset = 3


@pytest.mark.parametrize(
    ("request_", "extent"),
    [
        ({}, (3, 10)),
        ({"start": "latest"}, (10, 10)),
        ({"start": 3, "stop": 10}, (3, 10)),
        ({"start": 5, "stop": "latest"}, (5, 10)),
        ({"start": 10}, (10, 10)),
        ({"start": "earliest", "stop": "earliest"}, (3, 3)),
        ({"start": AtTimestamp(timestamp_ns=2_000_000_000)}, (5, 10)),
        ({"start": AtTimestamp(timestamp_ns=2_000_000_001)}, (8, 10)),
        ({"start": AtTimestamp(timestamp_ns=1 << 62)}, (10, 10)),
        ({"stop": AtTimestamp(timestamp_ns=3_000_000_000)}, (3, 8)),
        ({"timestamp_from_ns": 3_000_000_000}, (8, 10)),
        ({"start": 4, "timestamp_from_ns": 3_000_000_000}, (4, 10)),
        ({"follow": True}, (3, None)),
        ({"follow": True, "stop": 500}, (3, 500)),
        ({"follow": True, "start": "latest", "stop": "latest"}, (10, 10)),
        ({"starts": {0: 7}}, (7, 10)),
    ],
)
def test_places_become_offsets(filled, stream, request_, extent):
    """Words and times are resolved against the log as it is now."""
    assert extents(stream, **request_) == [extent]


@pytest.mark.parametrize(
    "request_", [{"start": 2}, {"start": 11}, {"stop": 11}, {"starts": {0: 99}}, {"stop": 0}]
)
def test_offsets_that_do_not_exist_are_named_with_those_that_do(filled, stream, request_):
    """Below the log start or beyond the end: the error says both limits."""
    with pytest.raises(OffsetOutOfRangeError, match=r"starts at 3 and its high watermark is 10"):
        extents(stream, **request_)


def test_a_stop_before_the_start_is_an_error(filled, stream):
    """Two offsets in the wrong order are a mistake, not an empty read."""
    with pytest.raises(InvalidRequestError, match="before start"):
        extents(stream, start=8, stop=4)


def test_an_offset_belongs_to_one_partition(broker):
    """With several partitions a single offset is ambiguous; the error has a remedy."""
    stream = broker.make_stream(partitions=3)
    with pytest.raises(InvalidRequestError, match="name the partition"):
        extents(stream, start=0)
    with pytest.raises(InvalidRequestError, match="name the partition"):
        extents(stream, stop=0)
    assert extents(stream, start=0, partition=2) == [(0, 0)]
    assert extents(stream, starts={2: 0, 1: 0}) == [(0, 0)] * 2


@pytest.mark.parametrize("request_", [{"partition": 3}, {"starts": {0: 0, 7: 0}}])
def test_unknown_partitions_are_rejected(broker, request_):
    """Before anything is read."""
    with pytest.raises(UnknownPartitionError):
        extents(broker.make_stream(partitions=3), **request_)


def test_the_partition_column_appears_when_several_are_read(broker):
    """First, unless columns are named; then exactly those."""
    many, one = broker.make_stream("m", partitions=2), broker.make_stream("o")

    def names(stream, **request):
        return plan_read(ReadRequest(stream=stream.name, **request), stream).schema.names

    assert names(many) == ["partition", *COLUMNS]
    assert names(many, partition=0) == list(COLUMNS)
    assert names(one) == list(COLUMNS)
    assert names(many, columns=["value"]) == ["value"]
    assert names(one, columns=["value", "partition"]) == ["value", "partition"]


@pytest.mark.parametrize("columns", [[], ["values"], ["value", "value"]])
def test_columns_must_exist_once(stream, columns):
    """An empty, unknown or repeated selection is the caller's mistake."""
    with pytest.raises(InvalidRequestError):
        extents(stream, columns=columns)
