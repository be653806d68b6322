"""A partition read from its end to its beginning, and the last records of it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.tickets import BATCH_BYTES_LEAST, ReadRequest, check_request
from strandline.errors import CorruptBatchError, DataLossError, InvalidRequestError
from strandline.reading.descending import DescendingCursor, offset_before_end
from strandline.servers.flight.plan import plan_read


def cursor_of(stream, **request):
    plan = plan_read(ReadRequest(stream="s", order="descending", **request), stream)
    return DescendingCursor(plan.request, plan.ranges[0], names=plan.schema.names)


def read_down(stream, **request):
    """The offsets a descending read delivers."""
    cursor, found = cursor_of(stream, **request), []
    while not cursor.is_done:
        before = cursor.position
        for batch, _ in cursor.read():
            found += batch.column("offset").to_pylist()
        assert cursor.position < before or cursor.is_done, "each step makes progress"
    return found


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (1, 9), (4, 5), (5, 8), (9, 10), (10, 10)])
def test_a_range_is_cut_exactly(stream, partition, start, stop):
    """The same records as ascending, in reverse."""
    for count in (5, 3, 2):
        partition.store(*[b"v"] * count)
    assert read_down(stream, start=start, stop=stop) == list(range(start, stop))[::-1]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5), st.integers(0, 3000)), max_size=30),
    st.integers(0, 50),
)
def test_descending_is_ascending_in_reverse(new_partition, batches, below):
    """Whatever the sizes of batches and gaps, and wherever readers stop seeing."""
    partition = new_partition()
    stream = SimpleNamespace(
        name="s", partitions=[partition], partition=lambda _: partition, config=partition.config
    )
    offsets = []
    for count, gap, size in batches:
        first = partition.high_watermark + gap
        partition.store(*[b"x" * size] * count, gap=gap)
        offsets += range(first, first + count)
    partition.high_watermark = max(0, partition.high_watermark - below)
    seen = [offset for offset in offsets if offset < partition.high_watermark]
    assert read_down(stream, batch_bytes=BATCH_BYTES_LEAST) == seen[::-1]
    for count in (1, 3, len(seen) + 1):
        found = offset_before_end(partition, count)
        assert [offset for offset in seen if offset >= found] == seen[-count:]


def test_filters_columns_and_pieces_are_as_ascending(stream, partition):
    """Rows that do not pass are left out; a large batch comes in pieces, newest first."""
    partition.store(*[b"x" * 1000] * 200, subjects=["s.x"] * 199 + ["s.y"])
    assert read_down(stream, subject="s.y") == [199]
    cursor = cursor_of(stream, columns=["value", "offset"], batch_bytes=BATCH_BYTES_LEAST)
    pieces = cursor.read()
    assert len(pieces) > 20
    assert pieces[0].batch.schema.names == ["value", "offset"]
    offsets = [o for piece, _ in pieces for o in piece.column("offset").to_pylist()]
    assert offsets == list(range(199, -1, -1))


def test_what_is_newer_than_corruption_comes_before_it_is_reported(stream, partition):
    """And it is skipped on request."""
    for _ in range(9):
        partition.store(b"a", b"b")
    partition.corrupt = {3}
    cursor, found = cursor_of(stream), []
    while cursor.position > 8:
        found += [o for batch, _ in cursor.read() for o in batch.column("offset").to_pylist()]
    with pytest.raises(CorruptBatchError) as caught:
        cursor.read()
    assert found == list(range(17, 7, -1))
    assert (caught.value.first_offset, caught.value.next_offset) == (6, 8)
    expected = [*range(17, 7, -1), *range(5, -1, -1)]
    assert read_down(stream, skip_corrupt=True) == expected


def test_records_deleted_under_a_reader_are_data_loss(stream, partition):
    """Behind those that are left, if the start was an offset; else the log just begins later."""
    for _ in range(4):
        partition.store(*[b"v"] * 4)
    cursor, other = cursor_of(stream, start=1), cursor_of(stream)
    assert [batch.num_rows for batch, _ in cursor.read()] == [4]
    other.read()
    partition.log_start_offset = 12
    with pytest.raises(DataLossError, match=r"records 1 to 11 .* were deleted"):
        cursor.read()
    assert other.read() == []
    assert other.is_done


@pytest.mark.parametrize("count", [1, 4, 10, 11, 10**12])
def test_the_last_records_are_those_that_readers_see(stream, partition, count):
    """Gaps do not count; if there are fewer, it is all of them."""
    partition.store(*[b"v"] * 5, gap=2)
    partition.store(*[b"v"] * 5, gap=7)
    seen = [2, 3, 4, 5, 6, 14, 15, 16, 17, 18]
    assert read_down(stream, start=-count) == seen[-count:][::-1]


@pytest.mark.parametrize(
    "fields",
    [
        {"order": "descending", "follow": True},
        {"order": "descending", "wait_ms_max": 10},
        {"start": -1, "stop": 5},
    ],
)
def test_what_contradicts_itself_is_rejected(fields):
    """The error names the options to leave out."""
    with pytest.raises(InvalidRequestError, match="leave"):
        check_request(ReadRequest(stream="s", **fields))
