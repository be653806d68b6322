"""The image as bytes: every version that was written is read, nothing else."""

import msgspec
import pytest

from strandline.core.metadata.image import IMAGE_VERSION, MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRecordError

FORMS = pytest.mark.parametrize(
    ("encode", "decode"), [(encode_image, decode_image), (encode_json, decode_json)]
)


@pytest.fixture
def image(cluster):
    made = cluster(3)
    made.create("s", (1, 2, 3))
    return made.image


@FORMS
def test_an_image_is_read_back_whatever_the_version(image, encode, decode):
    """It has the present version then."""
    for version in range(1, IMAGE_VERSION + 1):
        older = msgspec.structs.replace(image, version=version)
        assert decode(encode(older)) == image
    assert image.version == IMAGE_VERSION


@FORMS
def test_other_versions_and_other_bytes_are_rejected(encode, decode):
    """The message names the version."""
    for version in (-1, 0, IMAGE_VERSION + 1):
        unknown = encode(msgspec.structs.replace(MetadataImage(), version=version))
        with pytest.raises(InvalidRecordError, match=f"version {version} is not supported"):
            decode(unknown)
    for data in (b"", b"\xc1", b"{}", encode(MetadataImage())[:-1]):
        with pytest.raises(InvalidRecordError):
            decode(data)
