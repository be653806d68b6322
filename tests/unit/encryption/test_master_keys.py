"""Master keys: their text form, ids, lookup and rejection."""

import pytest

from strandline.encryption.master_keys import MasterKey, MasterKeys, new_key_text, parse_master_keys
from strandline.errors import EncryptionKeyError, InvalidConfigError


def test_a_source_has_a_key_a_line_and_comments():
    """Keys come in the order of the text, the first one current."""
    one, two, three = new_key_text(), new_key_text(), new_key_text()
    keys = parse_master_keys(f"# ours\n{one} # 2026\n\n{two}, {three}\n", "keys")
    assert [key.id for key in keys] == [
        parse_master_keys(text, "keys")[0].id for text in (one, two, three)
    ]
    assert MasterKeys(lambda: keys).current is keys[0]


@pytest.mark.parametrize("text", ["secret", "AAAA", "é", "A" * 44])
def test_what_is_no_key_is_rejected_and_not_shown(text):
    """The message has the line number, and not its text."""
    with pytest.raises(InvalidConfigError) as caught:
        parse_master_keys(f"\n{text}", "keys.txt")
    assert "keys.txt, line 2" in caught.value.message
    assert text not in caught.value.message


def test_a_key_that_stands_there_twice_is_rejected():
    """It would be a rotation that was none."""
    key = new_key_text()
    with pytest.raises(InvalidConfigError, match="twice"):
        parse_master_keys(f"{key}\n{key}", "keys")


def test_keys_of_liftbridge_may_be_shorter_but_not_of_any_length():
    """16 or 32 bytes are AES keys that wrap."""
    assert MasterKey(b"k" * 16).id != MasterKey(b"k" * 32).id
    with pytest.raises(InvalidConfigError, match="32 bytes, not 5"):
        MasterKey(b"short")


def test_nothing_of_a_key_is_in_its_name():
    """Logs may show only a hash."""
    key = MasterKey(b"0123456789abcdef")
    assert repr(key) == f"MasterKey({key.id})"
    assert len(key.id) == 16
    assert b"0123456789abcdef".hex() not in key.id


def test_a_key_that_was_added_is_found_without_a_restart():
    """The source is read again when a key is not known, and only then."""
    old, new = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
    source, reads = [old], []

    def load():
        reads.append(1)
        return tuple(source)

    master_keys = MasterKeys(load)
    assert master_keys.find(old.id, what="it") is old
    assert len(reads) == 1
    source.insert(0, new)
    assert master_keys.find(new.id, what="it") is new
    assert master_keys.current is new


def test_a_missing_key_is_named():
    """The error has the key's id, its purpose, and the available ids."""
    have, want = MasterKey(b"h" * 32), MasterKey(b"w" * 32)
    with pytest.raises(EncryptionKeyError) as caught:
        MasterKeys(lambda: (have,), "keys.txt").find(want.id, what="data key 1 of stream 's'")
    for part in (want.id, have.id, "data key 1 of stream 's'", "keys.txt"):
        assert part in caught.value.message


def test_a_source_that_broke_is_said_and_the_known_keys_are_kept():
    """A typing error in the file costs nothing that works."""
    have, broken = MasterKey(b"h" * 32), []

    def load():
        if broken:
            raise InvalidConfigError("keys.txt, line 1: not 32 bytes in base64")
        return (have,)

    master_keys = MasterKeys(load)
    broken.append(1)
    with pytest.raises(EncryptionKeyError, match="line 1"):
        master_keys.find("0000", what="it")
    assert master_keys.current is have


def test_a_broker_without_keys_says_how_to_get_one():
    """There is no current key, and the message names the command."""
    with pytest.raises(EncryptionKeyError, match="new-key"):
        _ = MasterKeys().current
    assert not MasterKeys().has_any
