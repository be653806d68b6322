"""The sources of master keys, and rejections that show no part of a key."""

import pytest

from strandline.config import BrokerConfig, EncryptionConfig, GrpcConfig
from strandline.encryption.master_keys import MasterKey, new_key_text, parse_master_keys
from strandline.errors import EncryptionKeyError, InvalidConfigError
from strandline.process.master_keys import LIFTBRIDGE_VARIABLE, VARIABLE, master_keys

PLAIN = BrokerConfig()
LIFTBRIDGE = BrokerConfig(grpc=GrpcConfig(port=0))


def with_file(file):
    return BrokerConfig(encryption=EncryptionConfig(key_file=str(file)))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    return path


def id_of(text):
    return parse_master_keys(text, "text")[0].id


def test_keys_come_from_a_file_which_is_read_again(file, caplog):
    """A key put first later is found when it is looked for."""
    old, new = new_key_text(), new_key_text()
    file.write_text(f"{old}\n")
    masters = master_keys(with_file(file), {})
    assert masters.current.id == id_of(old)
    file.write_text(f"{new}\n{old}\n")
    assert masters.find(id_of(new), what="it").id == id_of(new)
    assert masters.current.id == id_of(new)
    assert not caplog.text


def test_keys_come_from_the_environment():
    """The first one is current."""
    one, two = new_key_text(), new_key_text()
    masters = master_keys(PLAIN, {VARIABLE: f"{one},{two}"})
    assert masters.current.id == id_of(one)
    assert masters.find(id_of(two), what="it").id == id_of(two)


def test_the_key_of_liftbridge_counts_where_its_api_is_on():
    """Its text's bytes are the key, only there, and only if ours is not set."""
    raw, ours = "0123456789abcdef", new_key_text()
    environ = {LIFTBRIDGE_VARIABLE: raw}
    assert master_keys(LIFTBRIDGE, environ).current.id == MasterKey(raw.encode()).id
    assert not master_keys(PLAIN, environ).has_any
    assert master_keys(LIFTBRIDGE, {**environ, VARIABLE: ours}).current.id == id_of(ours)


def test_without_a_source_there_are_no_keys():
    """Which is said when one is needed, and not before."""
    masters = master_keys(PLAIN, {})
    with pytest.raises(EncryptionKeyError, match=VARIABLE):
        _ = masters.current


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"secret", "line 1"),
        (b"\xff\xfe", "not ASCII"),
        (b"", "has no key"),
        (b"# only a comment", "has no key"),
        (b"A" * (65 << 10), "too long"),
    ],
)
def test_a_file_that_is_no_list_of_keys_is_rejected(file, content, message):
    """Nothing of it is shown."""
    file.write_bytes(content)
    with pytest.raises(InvalidConfigError, match=message) as caught:
        master_keys(with_file(file), {})
    assert "secret" not in caught.value.message
    assert str(file) in caught.value.message


def test_a_missing_file_is_rejected(file):
    """The broker does not start without a configured file."""
    file.unlink()
    with pytest.raises(InvalidConfigError, match="No such file"):
        master_keys(with_file(file), {})


def test_two_sources_are_rejected(file):
    """Two sources are refused, because the valid one would be unclear."""
    with pytest.raises(InvalidConfigError, match="keep one"):
        master_keys(with_file(file), {VARIABLE: new_key_text()})


@pytest.mark.parametrize("raw", ["short", "x" * 24, "x" * 33])
def test_a_key_of_liftbridge_of_a_wrong_size_is_none(raw, caplog):
    """The broker starts, as Liftbridge does; it logs why no stream can be encrypted."""
    assert not master_keys(LIFTBRIDGE, {LIFTBRIDGE_VARIABLE: raw}).has_any
    assert f"invalid AES key size {len(raw)}" in caplog.text
    assert raw not in caplog.text


def test_a_file_that_others_may_read_is_said(file, caplog):
    """It is used all the same, because a mounted secret may allow it on purpose."""
    file.write_text(new_key_text())
    file.chmod(0o644)
    assert master_keys(with_file(file), {}).has_any
    assert "chmod 400" in caplog.text
