"""Schemas in the metadata: versions that count, and go where the stream goes."""

import pytest

from strandline.config import StreamConfig
from strandline.core.metadata import schemas
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import (
    AddSchema,
    CreateStream,
    DeleteSchema,
    DeleteStream,
    decode_entry,
    encode_entry,
)
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRequestError, UnknownStreamError
from strandline.values.schema import SchemaColumn, SchemaVersion


def version(number, *names):
    columns = tuple(SchemaColumn(id=i, name=n, type="bigint") for i, n in enumerate(names, 1))
    return SchemaVersion(version=number, format="json", columns=columns, registry_id=number)


@pytest.fixture
def image():
    """A stream whose schema has two versions."""
    made = apply(MetadataImage(), CreateStream(StreamConfig(name="s", subject="s"), 1))
    made = apply(made, AddSchema("s", version(1, "a")))
    return apply(made, AddSchema("s", version(2, "a", "b")))


def test_versions_are_kept_with_the_stream(image):
    """Through snapshots, the file of a broker alone and of a backup, and the log of a cluster."""
    assert image.streams["s"].schema == (version(1, "a"), version(2, "a", "b"))
    assert decode_image(encode_image(image)) == image
    assert decode_json(encode_json(image)) == image
    for command in (AddSchema("s", version(1, "a")), DeleteSchema("s")):
        assert decode_entry(encode_entry(command)) == command
    again = apply(image, DeleteStream("s"))
    again = apply(again, CreateStream(StreamConfig(name="s", subject="s"), 2))
    assert again.streams["s"].schema == ()


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_a_version_that_is_not_the_next_is_rejected(image, number):
    """Of two administrators at once, one was checked against an outdated version."""
    with pytest.raises(InvalidRequestError, match="has 2 versions by now"):
        apply(image, AddSchema("s", version(number, "a")))


def test_versions_are_limited(image, monkeypatch):
    """A deletion makes room."""
    monkeypatch.setattr(schemas, "VERSIONS_MAX", 2)
    with pytest.raises(InvalidRequestError, match="2 versions, the maximum"):
        apply(image, AddSchema("s", version(3, "a")))
    image = apply(image, DeleteSchema("s"))
    assert apply(image, AddSchema("s", version(1, "z"))).streams["s"].schema == (version(1, "z"),)


def test_a_schema_needs_its_stream():
    """Nothing is kept for a stream that does not exist."""
    for command in (AddSchema("none", version(1, "a")), DeleteSchema("none")):
        with pytest.raises(UnknownStreamError):
            apply(MetadataImage(), command)
