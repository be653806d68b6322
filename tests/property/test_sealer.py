"""Sealing against its input, and opening of any bytes."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from strandline.encryption.data_keys import new_data_key
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.encryption.sealer import BatchSealer
from strandline.errors import StrandlineError
from strandline.record.batch import check_batch
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.record.sealed import put_checksum
from strandline.types import PartitionName

MASTER = MasterKey(b"m" * 32)
WRAPPED = (new_data_key(MASTER),)
columns = st.lists(
    st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=9)),
    min_size=1,
    max_size=9,
)


def sealer():
    return BatchSealer(PartitionName("s", 0), lambda: WRAPPED, MasterKeys(lambda: (MASTER,)))


def encoded(rows, offset, compression):
    values, keys = zip(*rows, strict=True)
    stamp = Stamp(offset, 0, 1, compression)
    return encode_records(values, ["s"], stamp, keys=None if keys == (None,) * len(keys) else keys)


@given(st.lists(columns, min_size=1, max_size=4), st.sampled_from(["none", "zstd", "lz4"]))
def test_what_is_sealed_comes_back(batches, compression):
    """Any records, any codec, any run of batches: the same records, and intact batches on disk."""
    writer, run, plain, offset = sealer(), bytearray(), [], 0
    for rows in batches:
        batch = encoded(rows, offset, compression)
        sealed = writer.seal(batch)
        assert check_batch(sealed).length == len(sealed)
        run += sealed
        plain.append(bytes(batch))
        offset += len(rows)
    opened = sealer().decrypt(run)
    assert bytes(opened) == b"".join(plain)
    values = [v for rows in decode_batches(opened) for v in rows.column("value").to_pylist()]
    assert values == [value for rows in batches for value, _ in rows]


@given(st.binary(max_size=300))
def test_any_bytes_cost_an_error_and_nothing_else(data):
    """Bytes that are no batches end in a typed error, or in nothing."""
    with contextlib.suppress(StrandlineError):
        assert sealer().decrypt(data).size == 0


@given(st.data())
def test_no_change_gets_through(data):
    """Bytes that differ anywhere never open to other records, even with a right checksum."""
    batch = encode_records([b"value"], ["s"], Stamp(5, 1, 9), keys=[b"key"])
    sealed = sealer().seal(batch)
    position = data.draw(st.integers(8, len(sealed) - 1))
    sealed[position] ^= data.draw(st.integers(1, 255))
    put_checksum(sealed)
    try:
        opened = sealer().decrypt(sealed)
    except StrandlineError:
        return
    assert opened.size == 0  # the length was changed: no whole batch is left
