"""The image as bytes, for snapshots between brokers and for the file of a broker alone.

Rules: the version comes first and decides; what is older is read and becomes the present one, what
is newer is refused, never guessed at. Guarding the bytes against corruption is the keeper's
business.
"""

import msgspec

from strandline.core.metadata.image import IMAGE_VERSION, MetadataImage
from strandline.errors import UNDECODABLE, InvalidRecordError


class _Versioned(msgspec.Struct):
    version: int


def encode_image(image: MetadataImage) -> bytes:
    """A snapshot."""
    return msgspec.msgpack.encode(image)


def decode_image(data: bytes) -> MetadataImage:
    """The image in a snapshot.

    Raises:
        InvalidRecordError: it is none, or of a later version.
    """
    try:
        version = msgspec.msgpack.decode(data, type=_Versioned).version
        check_version(version)
        return upgraded(msgspec.msgpack.decode(data, type=MetadataImage))
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a metadata snapshot: {error}") from error


def encode_json(image: MetadataImage) -> bytes:
    """The image as a person can read it."""
    return msgspec.json.format(msgspec.json.encode(image), indent=1)


def decode_json(data: bytes) -> MetadataImage:
    """The image in what ``encode_json`` made, by this version or an earlier one.

    Raises:
        InvalidRecordError: it is none, or of a later version.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        check_version(version)
        return upgraded(msgspec.json.decode(data, type=MetadataImage))
    except UNDECODABLE as error:
        raise InvalidRecordError(str(error)) from error


def check_version(version: int) -> None:
    """Refuse what a later version wrote.

    Raises:
        InvalidRecordError: naming the version.
    """
    if not 1 <= version <= IMAGE_VERSION:
        raise InvalidRecordError(f"version {version} is not known here")


def upgraded(image: MetadataImage) -> MetadataImage:
    """An image in the present version; version 1 had the same fields, only fewer."""
    return msgspec.structs.replace(image, version=IMAGE_VERSION)
