"""A cursor in one partition: trims at the edges, skips gaps and corruption, projects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.tickets import BATCH_BYTES_LEAST, ReadRequest
from strandline.errors import CorruptBatchError, DataLossError
from strandline.reading.cursor import Cursor, PartitionRange
from strandline.record.schema import project
from strandline.servers.flight.plan import ReadPlan, plan_read


def cursor_of(plan: ReadPlan) -> Cursor:
    """At the first partition of a plan."""
    return Cursor(plan.request, plan.ranges[0], names=plan.schema.names)


def read_all(stream, **request) -> list[int]:
    """The offsets a read delivers."""
    plan = plan_read(ReadRequest(stream="s", **request), stream)
    cursor = cursor_of(plan)
    found = []
    while not cursor.is_done:
        before = cursor.position
        for batch, _ in cursor.read():
            found += batch.column("offset").to_pylist()
        assert cursor.position > before, "each step makes progress"
    return found


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (1, 9), (4, 5), (5, 8), (9, 10), (10, 10)])
def test_a_range_is_cut_exactly(stream, partition, start, stop):
    """Batches are whole on disk; the reader gets only the records asked for."""
    for count in (5, 3, 2):
        partition.store(*[b"v"] * count)
    assert read_all(stream, start=start, stop=stop) == list(range(start, stop))


def test_nothing_beyond_the_high_watermark_is_delivered(stream, partition):
    """A batch that crosses it is trimmed."""
    partition.store(*[b"v"] * 5)
    partition.high_watermark = 3
    assert read_all(stream) == [0, 1, 2]


def test_columns_come_in_the_order_asked(stream, partition):
    """Those the filters need are dropped again."""
    partition.store(b"a", b"b", subjects=["s.x", "s.y"], keys=[b"k", None])
    request = ReadRequest(stream="s", columns=["value", "partition"], subject="s.y")
    plan = plan_read(request, stream)
    [(batch, _)] = cursor_of(plan).read()
    assert batch.schema.equals(project(["value", "partition"]))
    assert batch.to_pylist() == [{"value": b"b", "partition": 0}]


def test_large_batches_are_cut_to_the_size_asked(stream, partition):
    """A reader with little memory gets small pieces, and every record once."""
    partition.store(*[b"x" * 1000] * 200)
    plan = plan_read(ReadRequest(stream="s", batch_bytes=BATCH_BYTES_LEAST), stream)
    pieces = cursor_of(plan).read()
    assert len(pieces) > 20
    assert all(size == piece.nbytes <= 3 * BATCH_BYTES_LEAST for piece, size in pieces)
    assert [o for piece, _ in pieces for o in piece.column("offset").to_pylist()] == list(
        range(200)
    )


def test_gaps_of_compaction_are_stepped_over(stream, partition):
    """Offsets that no longer exist neither appear nor stop the reader, even at the end."""
    partition.store(b"a", gap=3)
    partition.store(b"b", b"c", gap=4)
    partition.high_watermark += 5
    assert read_all(stream) == [3, 8, 9]


def test_a_corrupt_batch_is_reported_and_never_served(stream, partition):
    """Earlier records are delivered; the error has the offset to continue at."""
    for _ in range(3):
        partition.store(b"a", b"b")
    partition.corrupt = {1}
    plan = plan_read(ReadRequest(stream="s"), stream)
    cursor = cursor_of(plan)
    assert [batch.num_rows for batch, _ in cursor.read()] == [2]
    with pytest.raises(CorruptBatchError) as caught:
        cursor.read()
    assert (caught.value.first_offset, caught.value.next_offset) == (2, 4)
    assert read_all(stream, start=4) == [4, 5]


def test_corruption_is_skipped_on_request(stream, partition):
    """The neighbours stay readable."""
    for _ in range(3):
        partition.store(b"a", b"b")
    partition.corrupt = {0, 1}
    assert read_all(stream, skip_corrupt=True) == [4, 5]
    partition.corrupt = {0, 1, 2}
    assert read_all(stream, skip_corrupt=True) == []


def test_records_deleted_under_a_reader_are_data_loss(stream, partition):
    """The error has the offset to continue at."""
    partition.store(*[b"v"] * 4)
    partition.store(*[b"v"] * 4)
    plan = plan_read(ReadRequest(stream="s", start=1), stream)
    cursor = cursor_of(plan)
    partition.log_start_offset = 4
    with pytest.raises(DataLossError, match=r"records 1 to 3 .* continue at offset 4"):
        cursor.read()


def test_earliest_moves_with_the_log_start(stream, partition):
    """A reader that asked for whatever is first is promised no particular record."""
    partition.store(*[b"v"] * 4)
    partition.store(*[b"v"] * 4)
    plan = plan_read(ReadRequest(stream="s"), stream)
    cursor = cursor_of(plan)
    partition.log_start_offset = 4
    assert [batch.column("offset")[0].as_py() for batch, _ in cursor.read()] == [4]


@given(
    counts=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=8),
    data=st.data(),
)
def test_any_range_of_any_log_is_read_exactly(new_partition, counts, data):
    """With any batches and gaps, the reader gets the records that exist in its range."""
    partition = new_partition()
    exist = []
    for count, gap in counts:
        first = partition.high_watermark + gap
        partition.store(*[b"v"] * count, gap=gap)
        exist += range(first, first + count)
    start = data.draw(st.integers(0, partition.high_watermark))
    stop = data.draw(st.integers(start, partition.high_watermark))
    request = ReadRequest(stream="s")
    extent = PartitionRange(partition, start, stop, may_move=False)
    cursor = Cursor(request, extent, names=project(None).names)
    found = []
    while not cursor.is_done:
        found += [o for batch, _ in cursor.read() for o in batch.column("offset").to_pylist()]
    assert found == [offset for offset in exist if start <= offset < stop]
