"""The image as bytes, for snapshots between brokers and for the file of a broker alone.

Rules: the version comes first. Older versions are upgraded; newer ones are rejected. Checksums are
the caller's responsibility.
"""

import msgspec

from strandline.core.metadata.image import IMAGE_VERSION, MetadataImage
from strandline.errors import UNDECODABLE, InvalidRecordError


class _Versioned(msgspec.Struct):
    version: int


def encode_image(image: MetadataImage) -> bytes:
    """Encode an image as a snapshot."""
    return msgspec.msgpack.encode(image)


def decode_image(data: bytes) -> MetadataImage:
    """Decode the image in a snapshot.

    Raises:
        InvalidRecordError: the bytes are not an image, or of a later version.
    """
    try:
        version = msgspec.msgpack.decode(data, type=_Versioned).version
        check_version(version)
        return upgraded(msgspec.msgpack.decode(data, type=MetadataImage))
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a metadata snapshot: {error}") from error


def encode_json(image: MetadataImage) -> bytes:
    """Encode an image as readable JSON."""
    return msgspec.json.format(msgspec.json.encode(image), indent=1)


def decode_json(data: bytes) -> MetadataImage:
    """Decode the output of ``encode_json``, of this version or an earlier one.

    Raises:
        InvalidRecordError: the bytes are not an image, or of a later version.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        check_version(version)
        return upgraded(msgspec.json.decode(data, type=MetadataImage))
    except UNDECODABLE as error:
        raise InvalidRecordError(str(error)) from error


def check_version(version: int) -> None:
    """Reject a version that is not supported.

    Raises:
        InvalidRecordError: a later version wrote it; the message names the version.
    """
    if not 1 <= version <= IMAGE_VERSION:
        raise InvalidRecordError(f"version {version} is not supported")


def upgraded(image: MetadataImage) -> MetadataImage:
    """Return an image in the present version; version 1 had a subset of the fields."""
    return msgspec.structs.replace(image, version=IMAGE_VERSION)
