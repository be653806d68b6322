"""Batches as Arrow data, and acks back to their futures."""

import pyarrow as pa
import pytest

from strandline.api.put import AckedRange, PutAck, put_schema
from strandline.api.status import from_body, to_body
from strandline.client.producer.accumulator import ProducerRecord, RecordProducerBatch
from strandline.client.producer.table_batches import (
    TableAck,
    TableProducerBatch,
    batch_of,
    batches_from,
    fail,
    pad,
    resolve,
    runs_of_ids,
)
from strandline.client.reader.results import AckFuture
from strandline.errors import DiskFullError, InvalidRecordError, SchemaMismatchError

FULL = to_body(DiskFullError("full"))


def lot_of(*records: ProducerRecord) -> RecordProducerBatch:
    """Return a batch of these records, each with a future."""
    batch = RecordProducerBatch(3, now_s=0.0, deadline_s=1.0)
    batch.records.extend(records)
    batch.futures.extend(AckFuture() for _ in records)
    return batch


def failed(future, error):
    """Handle a failure like a producer."""
    future.set_exception(error)


def test_a_batch_has_only_the_columns_its_records_have():
    """Values only: no bytes are spent on empty columns."""
    plain = lot_of(
        ProducerRecord(b"a", None, None, None, None), ProducerRecord(None, None, None, None, None)
    )
    assert batch_of(plain).schema.names == ["value"]
    rich = lot_of(
        ProducerRecord(b"a", b"k", "s.x", [("h", b"1"), ("h", b"2")], "id"),
        ProducerRecord(b"b", None, None, None, None),
    )
    batch = batch_of(rich)
    assert batch.schema.equals(put_schema(["value", "key", "subject", "headers", "message_id"]))
    assert batch.to_pylist()[0] == {
        "value": b"a",
        "key": b"k",
        "subject": "s.x",
        "headers": [("h", b"1"), ("h", b"2")],
        "message_id": "id",
    }
    assert set(batch.to_pylist()[1].values()) == {b"b", None}


def test_a_record_of_a_wrong_type_is_an_invalid_record():
    """A type that the producer did not check is found when the batch is built."""
    with pytest.raises(InvalidRecordError):
        batch_of(lot_of(ProducerRecord(1.5, None, None, None, None)))


def test_an_ack_gives_each_record_its_offset():
    """Offsets count up from the range's first."""
    batch = lot_of(*[ProducerRecord(b"v", None, None, None, None)] * 3)
    resolve(batch, PutAck(sequence=0, ranges=(AckedRange(3, 100, 3),)), failed)
    assert [future.result() for future in batch.futures] == [100, 101, 102]
    assert batch.futures[0].result().partition == 3


def test_the_record_that_does_not_fit_is_told_from_those_beside_it():
    """A batch is refused as a whole: the others name the reason, and that it is not theirs."""
    batch = lot_of(*[ProducerRecord(b"v", None, None, None, None)] * 2)
    body = to_body(SchemaMismatchError.of_row(1, "does not fit: id"))
    resolve(batch, PutAck(sequence=0, error=body), failed, error=from_body(body))
    other, own = (future.exception() for future in batch.futures)
    assert (own.message, own.row) == ("does not fit: id", None)
    told = "not stored, because another record of its batch does not fit: id"
    assert (other.message, other.row) == (told, 1)


def test_an_ack_may_speak_row_by_row():
    """With message ids, each row is stored, a duplicate or rejected on its own."""
    batch = lot_of(*[ProducerRecord(b"v", None, None, None, "i")] * 3)
    ack = PutAck(sequence=0, offsets=(7, 3, -1), partitions=(3, 3, 3), duplicates=(1,), error=FULL)
    resolve(batch, ack, failed, error=from_body(FULL))
    assert [future.result() for future in batch.futures[:2]] == [7, 3]
    assert [future.result().duplicate for future in batch.futures[:2]] == [False, True]
    assert isinstance(batch.futures[2].exception(), DiskFullError)


def test_a_rejected_batch_fails_every_record():
    """Each future has the broker's error, or the producer's own."""
    batch = lot_of(*[ProducerRecord(b"v", None, None, None, None)] * 2)
    resolve(batch, PutAck(sequence=0, error=FULL), failed, error=from_body(FULL))
    assert all(isinstance(future.exception(), DiskFullError) for future in batch.futures)
    other = lot_of(ProducerRecord(b"v", None, None, None, None))
    fail(other, DiskFullError("x"), failed)
    assert isinstance(other.futures[0].exception(), DiskFullError)


def table_lots(count: int) -> tuple[AckFuture, list[TableProducerBatch]]:
    """Return a table with two rows for each batch, and its future."""
    future = AckFuture()
    table_ack = TableAck(future, batches=count, rows=2 * count)
    piece = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    return future, [TableProducerBatch(number, piece, table_ack) for number in range(count)]


def test_a_table_is_acked_when_all_its_batches_are():
    """The ranges of all partitions come together."""
    future, batches = table_lots(2)
    resolve(batches[0], PutAck(sequence=0, ranges=(AckedRange(0, 5, 2),)), failed)
    assert not future.done()
    resolve(batches[1], PutAck(sequence=1, offsets=(9, 4), partitions=(1, 1)), failed)
    ack = future.result()
    assert ack.records == 4
    assert ack.ranges == ((0, 5, 2), (1, 9, 1), (1, 4, 1))


def test_a_table_that_is_stored_in_part_says_how_much():
    """The error carries a note with the count."""
    future, batches = table_lots(3)
    resolve(batches[0], PutAck(sequence=0, ranges=(AckedRange(0, 5, 2),)), failed)
    resolve(batches[1], PutAck(sequence=1, error=FULL), failed, error=from_body(FULL))
    fail(batches[2], DiskFullError("later"), failed)
    error = future.exception()
    assert isinstance(error, DiskFullError)
    assert error.__notes__ == ["2 of 6 rows were stored"]


def test_a_table_is_cut_to_the_batch_size():
    """Every row once, in order, in batches near the size asked for."""
    table = pa.table({"value": [b"x" * 100] * 1000})
    batches = batches_from(table, batch_bytes=10_000)
    assert sum(batch.num_rows for batch in batches) == 1000
    assert all(batch.nbytes <= 11_000 for batch in batches)
    assert len(batches) > 8


def test_data_frames_and_readers_are_taken():
    """Whatever speaks Arrow's stream interface; nothing for nothing."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"value": ["a", "b"], "key": [b"k", None]})
    [batch] = batches_from(frame, batch_bytes=1000)
    assert batch.to_pylist() == [{"value": b"a", "key": b"k"}, {"value": b"b", "key": None}]
    [batch] = batches_from(frame.cast({"value": polars.Categorical}), batch_bytes=1000)
    assert batch.column("value").to_pylist() == [b"a", b"b"]
    reader = pa.table({"value": ["a"]}).to_reader()
    assert len(batches_from(reader, batch_bytes=1000)) == 1
    assert batches_from(pa.table({"value": pa.array([], pa.binary())}), batch_bytes=1) == []


@pytest.mark.parametrize("data", [b"bytes", [b"a"], None, {"value": [b"a"]}])
def test_other_data_is_rejected(data):
    """The error has the accepted types."""
    with pytest.raises(InvalidRecordError, match="table"):
        batches_from(data, batch_bytes=1000)


def test_padding_adds_null_columns():
    """A narrow batch fits a wide put."""
    wide = put_schema(["value", "key", "subject", "headers", "message_id"])
    padded = pad(pa.RecordBatch.from_pydict({"value": [b"a"]}), wide)
    assert padded.schema.equals(wide)
    assert padded.to_pylist() == [
        {"value": b"a", "key": None, "subject": None, "headers": None, "message_id": None}
    ]


def test_rows_with_message_ids_and_without_share_no_batch():
    """In order; a table that has ids everywhere, or nowhere, stays whole."""
    ids = ["a", None, None, "b", "c"]
    batch = pa.record_batch({"value": list("01234"), "message_id": pa.array(ids, pa.string())})
    runs = [run.column("message_id").to_pylist() for run in runs_of_ids(batch)]
    assert runs == [["a"], [None, None], ["b", "c"]]
    for whole in (batch.slice(1, 2), batch.slice(3), batch.select(["value"])):
        assert runs_of_ids(whole) == [whole]


def test_large_rows_among_small_ones_make_smaller_batches():
    """The size counts, not the average number of rows."""
    table = pa.table({"value": [b"x" * 1000] * 20 + [b"y"] * 2000})
    batches = batches_from(table, batch_bytes=2000)
    assert max(batch.nbytes for batch in batches) <= 3000
    assert pa.Table.from_batches(batches)["value"].to_pylist() == table["value"].to_pylist()


HEADERS = [[("h", b"\xff"), ("h", b"")], None, [("g", b"1")]]


@pytest.mark.parametrize(
    "frame",
    [
        lambda pandas: pandas.DataFrame({"value": ["x", "y", "z"], "headers": HEADERS}),
        lambda pandas: pandas.DataFrame(
            {"value": ["0", "x", "y", "z"], "headers": [None, *HEADERS]}
        ).iloc[1:],
        lambda pandas: pandas.DataFrame(
            {"value": ["x", "y", "z"], "headers": HEADERS, "key": [float("nan")] * 3}
        ),
        lambda pandas: pandas.DataFrame(
            {"value": ["x", "y", "z"], "headers": HEADERS},
            index=pandas.Index(["k"] * 3, name="key"),
        ),
    ],
    ids=["whole", "filtered", "no keys", "keys as index"],
)
def test_data_frames_of_pandas_are_taken(frame):
    """With headers as pairs, as a read gives them, and whatever index is left of filtering."""
    pandas = pytest.importorskip("pandas")
    given = frame(pandas)
    [batch] = batches_from(given, batch_bytes=1000)
    assert batch.column("value").to_pylist() == [b"x", b"y", b"z"]
    assert batch.column("headers").to_pylist() == HEADERS
    if given.index.name == "key":
        assert batch.column("key").to_pylist() == [b"k"] * 3


@pytest.mark.parametrize(
    "columns", [{"value": [1, "a"]}, {"value": ["a"], "headers": [[("h", 1)]]}]
)
def test_a_data_frame_that_arrow_rejects_is_an_invalid_record(columns):
    """It is one of our errors, like any record that cannot be stored."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidRecordError, match="DataFrame cannot be converted"):
        batches_from(pandas.DataFrame(columns), batch_bytes=1000)
