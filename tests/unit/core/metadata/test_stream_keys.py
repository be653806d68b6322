"""Data keys in the metadata: never lost, never another one."""

import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import (
    CreateStream,
    KeepStreamKeys,
    decode_entry,
    encode_entry,
)
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRequestError
from strandline.types import WrappedKey

FIRST = WrappedKey(1, "old", b"\x00wrapped one\xff", "f1")
SECOND = WrappedKey(2, "old", b"wrapped two", "f2")


def created(*keys, encryption=True):
    config = StreamConfig(name="s", subject="s", encryption=encryption)
    return apply(MetadataImage(), CreateStream(config, 1, keys=keys))


def kept(image, *keys):
    return apply(image, KeepStreamKeys("s", keys))


def test_keys_are_kept_with_the_stream():
    """Through snapshots, the file of a broker alone, and the log of a cluster."""
    image = kept(created(FIRST), SECOND)
    assert image.streams["s"].keys == (FIRST, SECOND)
    assert decode_image(encode_image(image)) == image
    assert decode_json(encode_json(image)) == image
    command = KeepStreamKeys("s", (FIRST, SECOND))
    assert decode_entry(encode_entry(command)) == command


def test_keys_may_be_wrapped_anew_and_one_be_added():
    """Same number and fingerprint: the same key."""
    again = FIRST._replace(master="new", wrapped=b"x")
    image = kept(created(FIRST), again, SECOND)
    assert image.streams["s"].keys == (again, SECOND)
    assert kept(image, FIRST).streams["s"].keys == (FIRST, SECOND)


@pytest.mark.parametrize(
    "key",
    [
        FIRST._replace(fingerprint="f3"),
        SECOND._replace(fingerprint="f3"),
        FIRST._replace(number=0),
        SECOND._replace(number=4),
        SECOND._replace(number=-1),
    ],
)
def test_no_key_takes_the_place_of_another(key):
    """Of two operators who add a key at once the later is rejected, and nothing changes."""
    image = kept(created(FIRST), SECOND)
    with pytest.raises(InvalidRequestError, match="repeat the command"):
        kept(image, SECOND, key)


@pytest.mark.parametrize(
    ("keys", "encryption"), [((), True), ((FIRST,), False), ((SECOND,), True), ((FIRST,) * 2, True)]
)
def test_a_stream_begins_with_the_key_it_needs(keys, encryption):
    """An encrypted one with data key 1, any other with none."""
    with pytest.raises(InvalidRequestError, match="data key 1"):
        created(*keys, encryption=encryption)


def test_a_stream_that_is_not_encrypted_gets_no_keys():
    """They would mislead."""
    with pytest.raises(InvalidRequestError, match="not encrypted"):
        kept(created(encryption=False), FIRST)
