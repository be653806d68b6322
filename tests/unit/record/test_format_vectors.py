"""The codec writes and reads the hex examples in docs/format.md."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.record.batch import Attributes, check_batch
from strandline.record.codec import Stamp, decode_batches, encode_filler, encode_records
from strandline.record.encode_arrow import encode_arrow
from strandline.types import ProducerStamp

PAGE = Path(__file__).parents[3] / "docs" / "format.md"


def vectors():
    blocks = re.findall(r"```hex\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [bytes.fromhex("".join(block.split())) for block in blocks]


def test_the_first_vector_is_one_plain_record():
    """The first test vector of the format page encodes and decodes as described."""
    vector = vectors()[0]
    stamp = Stamp(7, 2, 1_700_000_000_000_000_000)
    assert bytes(encode_records([b"hello"], ["orders.new"], stamp)) == vector
    assert check_batch(vector).leader_epoch == 2
    (batch,) = decode_batches(vector)
    assert batch.to_pylist()[0]["value"] == b"hello"
    assert batch.to_pylist()[0]["offset"] == 7


def test_the_second_vector_has_every_column():
    """The second test vector has two subjects, keys, a tombstone and headers."""
    vector = vectors()[1]
    encoded = encode_records(
        [b"a", None],
        ["s.1", "s.2"],
        Stamp(0, 0, 1),
        keys=[b"k", b"k"],
        headers=[[("Nats-Msg-Id", b"x")], None],
    )
    assert bytes(encoded) == vector
    rows = next(iter(decode_batches(vector))).to_pylist()
    assert [row["value"] for row in rows] == [b"a", None]
    assert rows[0]["headers"] == [("Nats-Msg-Id", b"x")]


def test_the_third_vector_is_a_marker():
    """The third test vector ends a transaction of a producer, as its header alone says."""
    kind = Attributes.TRANSACTIONAL | Attributes.MARKER | Attributes.ABORTED
    producer = ProducerStamp(1001, 3, -1)
    encoded = encode_records([b""], ["s"], Stamp(9, 2, 1, producer=producer, attributes=kind))
    assert bytes(encoded) == vectors()[2]
    header = check_batch(encoded)
    assert header.attributes == kind
    assert header.producer == producer


def test_what_compaction_left_keeps_its_offsets():
    """The fifth test vector has gaps between its records, and one behind them."""
    vector = vectors()[4]
    encoded = encode_arrow(
        pa.RecordBatch.from_pydict({"value": [b"a", b"b"]}),
        Stamp(5, 2, 1),
        default_subject="s",
        offset_deltas=[0, 3],
        last_offset_delta=4,
        timestamps_ns=pa.array([1, 2], pa.int64()),
    )
    assert bytes(encoded) == vector
    (batch,) = decode_batches(vector)
    assert batch.column("offset").to_pylist() == [5, 8]
    assert check_batch(vector).next_offset == 10


def test_a_placeholder_stands_for_offsets_without_records():
    """The sixth test vector is four offsets that compaction has emptied."""
    vector = vectors()[5]
    assert bytes(encode_filler(9, 13, leader_epoch=2)) == vector
    header = check_batch(vector)
    assert (header.base_offset, header.next_offset) == (9, 13)
    assert header.attributes == Attributes.REMOVED


@pytest.mark.parametrize(("place", "codec"), [(6, "zstd"), (7, "lz4")])
def test_compressed_columns_are_read(place, codec):
    """The seventh and eighth test vectors, whatever bytes the library here would make."""
    for data in (vectors()[place], encode_records([b"hello" * 20], ["s"], Stamp(7, 2, 1, codec))):
        (batch,) = decode_batches(data)
        assert batch.column("value").to_pylist() == [b"hello" * 20]
        assert batch.column("offset").to_pylist() == [7]
