"""Keys of encrypted streams: made, looked up and rewrapped with the newest master key."""

from types import SimpleNamespace

import pytest

from strandline.broker.stream_keys import StreamKeys
from strandline.config import StreamConfig
from strandline.core.metadata.image import MetadataImage, StreamImage
from strandline.encryption.master_keys import MasterKey, MasterKeys
from strandline.errors import InvalidRequestError, UnknownStreamError
from strandline.types import PartitionName

OLD, NEW = MasterKey(b"o" * 32), MasterKey(b"n" * 32)
PLAIN = StreamConfig(name="plain", subject="p")
SECRET = StreamConfig(name="secret", subject="s", encryption=True)


@pytest.fixture
def world():
    """A broker's keys; ``masters`` is what its file has, the first is used."""
    made = SimpleNamespace(masters=(OLD,), image=MetadataImage())
    made.keys = StreamKeys(MasterKeys(lambda: made.masters), lambda: made.image)

    def store(config, keys):
        stream = StreamImage(config=config, created_ns=1, partitions=(), keys=keys)
        made.image = made.image.with_streams({config.name: stream})

    made.store = store
    return made


def test_only_encrypted_streams_have_keys(world):
    """Others have no sealer either."""
    assert world.keys.first(PLAIN) == ()
    assert world.keys.sealer(PartitionName("plain", 0), PLAIN) is None
    [first] = world.keys.first(SECRET)
    world.store(SECRET, (first,))
    assert world.keys.sealer(PartitionName("secret", 0), SECRET) is not None


def test_a_new_stream_is_wrapped_with_the_newest_master_key(world):
    """An operator may have put another one first meanwhile."""
    [before] = world.keys.first(SECRET)
    world.masters = (NEW, OLD)
    [after] = world.keys.first(SECRET)
    assert before.master != after.master


def test_keys_are_those_of_the_present_image(world):
    """Of another one, if it is asked for; of a stream that is gone there are none."""
    [first] = world.keys.first(SECRET)
    assert world.keys._keys("secret") == ()
    world.store(SECRET, (first,))
    assert world.keys._keys("secret") == (first,)
    assert world.keys.of(MetadataImage)._keys("secret") == ()


@pytest.mark.parametrize("has_new_key", [False, True])
def test_a_rotation_rewraps_every_key(world, has_new_key):
    """The data stays readable; a new key is numbered after the others."""
    world.store(SECRET, world.keys.first(SECRET))
    world.masters = (NEW, OLD)
    command = world.keys.rotation("secret", has_new_key=has_new_key)
    assert command.name == "secret"
    assert len(command.keys) == 1 + has_new_key
    assert [key.number for key in command.keys] == [1, 2][: 1 + has_new_key]
    newest = world.keys.first(SECRET)[0].master
    assert {key.master for key in command.keys} == {newest}


def test_what_is_not_encrypted_has_nothing_to_rotate(world):
    """Nor has a stream that is not there."""
    world.store(PLAIN, ())
    with pytest.raises(InvalidRequestError, match="is not encrypted"):
        world.keys.rotation("plain", has_new_key=True)
    with pytest.raises(UnknownStreamError):
        world.keys.rotation("gone", has_new_key=True)
