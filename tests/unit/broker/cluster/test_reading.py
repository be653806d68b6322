"""Reads for other replicas: whole batches, shortened where a replica begins within one."""

import pyarrow as pa
import pytest

from strandline.broker.cluster import reading
from strandline.broker.cluster.reading import read_batches
from strandline.encryption.data_keys import new_data_key
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.encryption.sealer import BatchSealer
from strandline.errors import InvalidRequestError
from strandline.record.batch import Attributes, check_batch, header_of
from strandline.record.codec import Stamp, decode_batches, encode_again, encode_records
from strandline.record.sealed import is_sealed
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.types import PartitionName, ProducerStamp

PRODUCER = ProducerStamp(7, 2, 40)
COUNT = 5


def records(**stamp):
    """A batch of records with everything that a record may have."""
    return encode_records(
        [b"zero", None, b"two", b"three" * 100, b"four"],
        ["a.b", "a.c", "a.b", "a.b", "a.d"],
        Stamp(10, 3, 1_700_000_000_000_000_000, **stamp),
        keys=[b"k0", b"k1", None, b"k3", b"k4"],
        headers=[None, [("n", b"1")], None, [("Nats-Msg-Id", b"m")], [("x", b""), ("x", b"2")]],
    )


@pytest.fixture
def log(tmp_path):
    log = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=1 << 20, segment_age_ms=0)
    log.restart_at(10)
    yield log
    log.close()


def rows(log, batches):
    """The records of batches, as Arrow."""
    return pa.Table.from_batches(
        [rows for batch in batches for rows in decode_batches(log.decrypted(batch))]
    )


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("first", range(10, 10 + COUNT))
def test_a_copy_may_begin_within_a_batch(log, first, compression):
    """It gets the records that stay, as they are, numbered as they were by their producer."""
    whole = records(compression=compression, producer=PRODUCER, attributes=Attributes.TRANSACTIONAL)
    log.append(whole, header_of(whole))
    wanted = rows(log, [whole]).slice(first - 10)
    log.delete_before(first)
    [(ref, batch)] = read_batches(log, first, 1 << 20, below=10 + COUNT)
    header = check_batch(batch)
    assert (ref.base_offset, ref.next_offset, ref.leader_epoch) == (first, 10 + COUNT, 3)
    assert (header.base_offset, header.next_offset, ref.size) == (first, 15, len(batch))
    assert header.producer == PRODUCER._replace(sequence=40 + first - 10)
    assert header.attributes & Attributes.TRANSACTIONAL
    assert header.codec == header_of(whole).codec
    assert rows(log, [batch]).equals(wanted)


def test_what_begins_with_its_batch_is_lent_as_it_is(log):
    """Not a byte of it is touched."""
    whole = records()
    log.append(whole, header_of(whole))
    [(_, batch)] = read_batches(log, 10, 1 << 20, below=10 + COUNT)
    assert bytes(batch) == bytes(whole)


@pytest.mark.parametrize(("kept", "first", "left"), [((0, 3), 11, [13]), ((0, 1), 12, [])])
def test_of_a_compacted_batch_what_stays_is_lent(log, kept, first, left):
    """With the gaps that it had; if nothing stays there is a filler for its offsets."""
    whole = records()
    [all_rows] = decode_batches(whole)
    compacted = encode_again(all_rows.take(pa.array(kept)), header_of(whole))
    log.append(compacted, header_of(compacted))
    log.delete_before(first)
    [(ref, batch)] = read_batches(log, first, 1 << 20, below=10 + COUNT)
    assert (ref.base_offset, ref.next_offset) == (first, 10 + COUNT)
    header = check_batch(batch)
    assert bool(header.attributes & Attributes.REMOVED) == (not left)
    if left:
        assert rows(log, [batch])["offset"].to_pylist() == left


def test_what_is_encrypted_stays_so(log):
    """The shortened batch is encrypted again, and can be decrypted."""
    master = MasterKey(b"m" * 32)
    wrapped = (new_data_key(master),)
    name = PartitionName("s", 0)
    log.seal_with(BatchSealer(name, lambda: wrapped, MasterKeys(lambda: (master,))))
    whole = log.sealer.seal(records())
    log.append(whole, header_of(whole))
    log.delete_before(12)
    [(ref, batch)] = read_batches(log, 12, 1 << 20, below=10 + COUNT)
    assert is_sealed(check_batch(batch))
    assert ref.size == len(batch)
    assert b"three" not in bytes(batch)
    assert rows(log, [batch]).equals(rows(log, [whole]).slice(2))


def test_a_range_has_a_limit_of_bytes(log, monkeypatch):
    """As many as it allows are given whole; with one more it is rejected."""
    whole = records()
    log.append(whole, header_of(whole))
    monkeypatch.setattr(reading, "RANGE_BYTES_MAX", len(whole))
    [(ref, _)] = reading.read_range(log, 10, 10 + COUNT)
    assert (ref.base_offset, ref.next_offset) == (10, 10 + COUNT)
    monkeypatch.setattr(reading, "RANGE_BYTES_MAX", len(whole) - 1)
    with pytest.raises(InvalidRequestError, match="up to offset 15"):
        reading.read_range(log, 10, 10 + COUNT)
