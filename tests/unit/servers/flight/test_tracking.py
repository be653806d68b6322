"""A batch between arrival and ack: complete when every piece or row is answered."""

import pyarrow as pa

from strandline.api.put import normalise
from strandline.errors import DiskFullError
from strandline.servers.flight.tracking import BatchInFlight, Row, rows_of
from strandline.types import PartitionName

P0, P1 = PartitionName("s", 0), PartitionName("s", 1)


def row(place: int) -> Row:
    """Return a row that names its index."""
    return Row(place, b"", None, "s", None, "id")


def test_pieces_are_answered_in_any_order():
    """The ack comes with the last, and names every range."""
    batch = BatchInFlight(9, 100)
    batch.expect(P0, 3, rows=None)
    batch.expect(P1, 2, rows=None)
    batch.acked(1, 50, duplicate=False)
    assert not batch.is_complete
    batch.acked(0, 7, duplicate=False)
    assert batch.is_complete
    ack = batch.ack()
    assert (ack.sequence, ack.ranges, ack.error) == (9, ((0, 7, 3), (1, 50, 2)), None)


def test_a_rejected_piece_is_told_with_the_ranges_of_the_others():
    """A batch over two partitions may be stored in one of them."""
    batch = BatchInFlight(0, 1)
    batch.expect(P0, 3, rows=None)
    batch.expect(P1, 2, rows=None)
    batch.rejected(DiskFullError("full"))
    batch.acked(1, 50, duplicate=False)
    ack = batch.ack()
    assert ack.ranges == ((1, 50, 2),)
    assert ack.error.code == "disk_full"


def test_rows_are_answered_one_by_one():
    """Each gets its offset, whether it is a duplicate, or that it was not stored."""
    batch = BatchInFlight(0, 1)
    batch.expect(P0, 2, rows=[row(0), row(2)])
    batch.expect(P1, 1, rows=[row(1)])
    batch.acked(2, 11, duplicate=True)
    assert not batch.is_complete
    batch.rejected(DiskFullError("full"))
    assert not batch.is_complete
    batch.acked(0, 10, duplicate=False)
    assert batch.is_complete
    ack = batch.ack()
    assert (ack.offsets, ack.partitions, ack.duplicates) == ((10, -1, 11), (0, 1, 0), (2,))
    assert ack.error.code == "disk_full"


def test_rows_carry_their_id_as_a_header():
    """That is where deduplication finds it after a restart; an id that is there stays."""
    kind = pa.map_(pa.string(), pa.binary())
    batch = normalise(
        pa.RecordBatch.from_pydict(
            {
                "value": [b"a", b"b", None],
                "headers": pa.array([None, [("x", b"1")], [("Nats-Msg-Id", b"own")]], kind),
                "message_id": ["i", None, "own"],
            }
        )
    )
    rows = rows_of(batch, pa.array([4, 5, 6]), "s.*")
    assert [item.row_index for item in rows] == [4, 5, 6]
    assert [item.subject for item in rows] == ["s._"] * 3
    assert [item.headers for item in rows] == [
        [("Nats-Msg-Id", b"i")],
        [("x", b"1")],
        [("Nats-Msg-Id", b"own")],
    ]
