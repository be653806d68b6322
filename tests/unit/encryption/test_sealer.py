"""Encryption of a partition's batches: secrecy, rejections, and nonces that never repeat."""

import re
import threading
from pathlib import Path

import pytest

from strandline.encryption import sealer as module
from strandline.encryption.data_keys import new_data_key, rewrapped
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.encryption.sealer import BatchSealer, EncryptionSession
from strandline.errors import (
    CorruptBatchError,
    DecryptionError,
    EncryptionKeyError,
    UnavailableError,
)
from strandline.record.batch import check_batch
from strandline.record.codec import Stamp, decode_batches, encode_filler, encode_records
from strandline.record.sealed import SEAL_BYTES, is_sealed, put_checksum, read_seal
from strandline.types import PartitionName

MASTER = MasterKey(b"m" * 32)


class Keys:
    """A stream's wrapped keys and the master keys of its broker."""

    def __init__(self):
        self.wrapped = (new_data_key(MASTER),)
        self.master_keys = [MASTER]

    def sealer(self, partition=0):
        master_keys = MasterKeys(lambda: tuple(self.master_keys))
        return BatchSealer(PartitionName("s", partition), lambda: self.wrapped, master_keys)


@pytest.fixture
def keys():
    return Keys()


def batch(offset=0, *, value=b"a secret value"):
    headers = [[("header-name", b"header-value")]]
    stamp = Stamp(offset, 3, 1_700_000_000_000_000_000)
    return encode_records([value], ["a.subject"], stamp, keys=[b"a secret key"], headers=headers)


def test_a_sealed_batch_opens_to_the_same_bytes(keys):
    """Header and columns come back, the checksum too, at any broker that has the keys."""
    plain = batch(7)
    sealed = keys.sealer().seal(plain)
    assert len(sealed) == len(plain) + SEAL_BYTES
    header = check_batch(sealed)
    assert is_sealed(header)
    assert (header.base_offset, header.leader_epoch, header.record_count) == (7, 3, 1)
    assert bytes(keys.sealer().decrypt(sealed)) == bytes(plain)


def test_nothing_of_a_record_is_readable(keys):
    """Neither value nor key, nor header, nor subject."""
    sealed = bytes(keys.sealer().seal(batch()))
    for text in (b"a secret value", b"a secret key", b"header-name", b"header-value", b"a.subject"):
        assert text not in sealed


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_that_was_not_opened_does_not_decode(keys, count):
    """Cipher text is never taken for records."""
    run = b"".join(keys.sealer().seal(batch(n)) for n in range(count))
    with pytest.raises(CorruptBatchError, match="encrypted"):
        list(decode_batches(run))


def test_several_batches_open_at_once(keys):
    """A read's consecutive batches are decrypted together."""
    one, two = keys.sealer(), keys.sealer()
    plain = [batch(n, value=b"%d" % n) for n in range(4)]
    run = b"".join((one, two)[n % 2].seal(each) for n, each in enumerate(plain))
    opened = keys.sealer().decrypt(run)
    assert bytes(opened) == b"".join(plain)
    (rows,) = decode_batches(opened)
    assert rows.column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
    assert keys.sealer().decrypt(b"").size == 0


def test_nonces_never_repeat(keys):
    """No two batches have the same salt and nonce: each run draws a salt and counts.

    Also after a restart that writes the same offset again, in another partition, under a new data
    key, and when two threads seal.
    """
    seen = set()
    sealers = [keys.sealer(), keys.sealer(), keys.sealer(1)]

    def note(sealer):
        for _ in range(50):
            seal = read_seal(memoryview(sealer.seal(batch(1))))
            seen.add((seal.salt, seal.nonce))

    threads = [threading.Thread(target=note, args=(each,)) for each in (*sealers, *sealers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(seen) == 300
    keys.wrapped += (new_data_key(MASTER, 2),)
    note(sealers[0])
    assert len(seen) == 350


def test_a_session_ends_before_its_key_is_worn_out(keys, monkeypatch):
    """After a limit of batches another salt is drawn."""
    monkeypatch.setattr(module, "SESSION_BATCHES_MAX", 3)
    sealer = keys.sealer()
    seals = [read_seal(memoryview(sealer.seal(batch(n)))) for n in range(7)]
    assert len({seal.salt for seal in seals}) == 3
    assert len({(seal.salt, seal.nonce) for seal in seals}) == 7


def test_a_flipped_bit_is_corruption_and_needs_no_key(keys):
    """The checksum covers the stored bytes, wherever the bit is."""
    sealed = keys.sealer().seal(batch())
    for position in range(len(sealed)):
        flipped = bytearray(sealed)
        flipped[position] ^= 0x10
        with pytest.raises(CorruptBatchError):
            check_batch(flipped)


def test_a_change_with_a_right_checksum_is_rejected(keys):
    """The tag reveals a change of header, seal, columns or tag."""
    sealed = keys.sealer().seal(batch())
    for position in (16, 32, 48, 80, 90, 110, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[position] ^= 1
        put_checksum(changed)
        with pytest.raises(DecryptionError, match="changed on purpose"):
            keys.sealer().decrypt(changed)


def test_a_batch_opens_in_its_own_partition_only(keys):
    """A batch copied to another partition of the stream is rejected."""
    with pytest.raises(DecryptionError):
        keys.sealer(1).decrypt(keys.sealer(0).seal(batch()))


def test_a_batch_that_is_not_sealed_is_rejected(keys):
    """Without the key no record can be added to the stream."""
    with pytest.raises(DecryptionError, match="not encrypted"):
        keys.sealer().decrypt(batch())
    assert bytes(keys.sealer().decrypt(keys.sealer().seal(batch(0)) + batch(1))) == bytes(batch(0))


def test_what_compaction_puts_in_place_of_records_is_passed_over(keys):
    """Fillers have no records; a follower may have got them from a leader without the key."""
    filler = encode_filler(1, 5, leader_epoch=0)
    sealer = keys.sealer()
    run = sealer.seal(batch(0)) + filler + sealer.seal(batch(5))
    assert bytes(sealer.decrypt(run)) == bytes(batch(0) + batch(5))
    assert sealer.decrypt(filler).size == 0


def test_what_is_intact_before_a_changed_batch_is_still_served(keys):
    """A run ends before the batch that does not open."""
    sealer = keys.sealer()
    good, bad = sealer.seal(batch(0)), sealer.seal(batch(1))
    bad[-1] ^= 1
    put_checksum(bad)
    assert bytes(sealer.decrypt(good + bad)) == bytes(batch(0))
    with pytest.raises(DecryptionError, match="offset 1 of s/0"):
        sealer.decrypt(bad)


def test_a_missing_master_key_is_named_until_it_comes_back(keys, caplog):
    """Both directions name the key, and work again without a restart once it is there."""
    sealed = keys.sealer().seal(batch())
    keys.master_keys = [MasterKey(b"x" * 32)]
    sealer = keys.sealer()
    rejection = sealer.why_not()
    assert MASTER.id in rejection.message
    assert "data key 1 of stream 's'" in rejection.message
    assert sealer.why_not().message == rejection.message
    assert caplog.text.count("s/0 takes no records") == 1
    with pytest.raises(EncryptionKeyError, match=MASTER.id):
        sealer.decrypt(sealed)
    keys.master_keys.append(MASTER)
    assert sealer.why_not() is None
    assert bytes(sealer.decrypt(sealed)) == bytes(batch())


def test_a_new_master_key_changes_no_batch(keys):
    """Old batches are decrypted with the rewrapped data keys."""
    sealed = keys.sealer().seal(batch())
    new = MasterKey(b"n" * 32)
    both = MasterKeys(lambda: (new, MASTER))
    keys.wrapped = tuple(rewrapped(key, both, stream="s") for key in keys.wrapped)
    keys.master_keys = [new]
    assert bytes(keys.sealer().decrypt(sealed)) == bytes(batch())


def test_a_new_data_key_is_used_at_once_and_the_old_one_still_opens(keys):
    """Batches name the key they need."""
    sealer = keys.sealer()
    old = sealer.seal(batch(0))
    keys.wrapped += (new_data_key(MASTER, 2),)
    new = sealer.seal(batch(1))
    assert [read_seal(memoryview(each)).key_number for each in (old, new)] == [1, 2]
    assert bytes(keys.sealer().decrypt(old + new)) == bytes(batch(0) + batch(1))


def test_accepted_records_are_sealed_even_if_the_newest_key_cannot_be_had(keys):
    """They were promised; any data key of the stream hides them."""
    sealer = keys.sealer()
    assert sealer.why_not() is None
    keys.wrapped += (new_data_key(MasterKey(b"y" * 32), 2),)
    assert read_seal(memoryview(sealer.seal(batch()))).key_number == 1


def test_a_data_key_that_has_not_arrived_yet_is_worth_a_retry(keys):
    """A follower may read a batch before it has the key."""
    before = keys.sealer()
    behind = keys.wrapped
    keys.wrapped += (new_data_key(MASTER, 2),)
    sealed = before.seal(batch())
    keys.wrapped = behind
    with pytest.raises(UnavailableError, match=r"data key 2 .* not known here yet"):
        keys.sealer().decrypt(sealed)


def test_the_vector_of_the_format_page():
    """The fourth test vector is the first one sealed, byte by byte."""
    page = Path(__file__).parents[3] / "docs" / "format.md"
    blocks = re.findall(r"```hex\n(.*?)```", page.read_text(), flags=re.DOTALL)
    plain, _, _, sealed, *_ = [bytes.fromhex("".join(block.split())) for block in blocks]
    session = EncryptionSession(bytes(range(32)), 0, key_number=1, salt=b"0123456789abcdef")
    assert bytes(session.seal(plain)) == sealed
