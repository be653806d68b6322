"""Versions of a stream's schema in the metadata.

Rules: versions count from 1 without gaps. Whether a version goes with the earlier ones is checked
before it is proposed (``values/evolution.py``); of two proposals based on the same version the
later is rejected here, so that no version is checked against an outdated one.
"""

import msgspec

from strandline.core.metadata.commands import AddSchema, DeleteSchema
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError

VERSIONS_MAX = 100


def add_schema(image: MetadataImage, command: AddSchema) -> MetadataImage:
    """Add the next version."""
    stream = image.stream(command.name)
    count = len(stream.schema)
    if command.schema.version != count + 1:
        raise CommandRejectedError(
            "stale_schema",
            f"the schema of stream {command.name!r} has {count} versions by now: somebody else "
            "changed it at the same time; repeat the command",
        )
    if count >= VERSIONS_MAX:
        raise CommandRejectedError(
            "limit",
            f"the schema of stream {command.name!r} has {VERSIONS_MAX} versions, the maximum; "
            "delete it, and begin again with the newest",
        )
    changed = msgspec.structs.replace(stream, schema=(*stream.schema, command.schema))
    return image.with_streams({command.name: changed})


def delete_schema(image: MetadataImage, command: DeleteSchema) -> MetadataImage:
    """Remove all versions; the next one is version 1 again."""
    stream = image.stream(command.name)
    return image.with_streams({command.name: msgspec.structs.replace(stream, schema=())})
