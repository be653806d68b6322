"""Data keys: wrapped, unwrapped, rewrapped, and never confused."""

import pytest

from strandline.encryption.data_keys import new_data_key, rewrapped, unwrapped
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.errors import EncryptionKeyError

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 16)


def master_keys(*keys):
    return MasterKeys(lambda: keys)


def test_a_data_key_comes_back_from_its_wrapping():
    """32 random bytes, another key each time, nothing of them in clear."""
    one, two = new_data_key(OLD), new_data_key(OLD)
    secret = unwrapped(one, master_keys(OLD), stream="s")
    assert len(secret) == 32
    assert secret != unwrapped(two, master_keys(OLD), stream="s")
    assert secret not in one.wrapped
    assert one.number == 1


def test_rewrapping_keeps_the_key():
    """Another master key, the same data key, number and fingerprint."""
    before = new_data_key(OLD, 3)
    after = rewrapped(before, master_keys(NEW, OLD), stream="s")
    assert (after.number, after.fingerprint) == (3, before.fingerprint)
    assert (after.master, after.wrapped) != (before.master, before.wrapped)
    assert unwrapped(after, master_keys(NEW), stream="s") == unwrapped(
        before, master_keys(OLD), stream="s"
    )
    assert rewrapped(after, master_keys(NEW, OLD), stream="s") is after


def test_rewrapping_needs_the_old_master_key():
    """Without it nothing is changed, and the error names it."""
    with pytest.raises(EncryptionKeyError, match=OLD.id):
        rewrapped(new_data_key(OLD), master_keys(NEW), stream="s")


@pytest.mark.parametrize("byte", [0, 20, 39])
def test_a_wrapping_that_was_changed_does_not_unwrap(byte):
    """A flipped bit is noticed, not used as a key."""
    key = new_data_key(OLD)
    flipped = bytearray(key.wrapped)
    flipped[byte] ^= 1
    with pytest.raises(EncryptionKeyError, match="does not unwrap"):
        unwrapped(key._replace(wrapped=bytes(flipped)), master_keys(OLD), stream="s")


def test_a_key_of_another_fingerprint_does_not_pass():
    """Two wrapped keys cannot be swapped."""
    one, two = new_data_key(OLD), new_data_key(OLD)
    with pytest.raises(EncryptionKeyError, match="does not unwrap"):
        unwrapped(one._replace(wrapped=two.wrapped), master_keys(OLD), stream="s")
