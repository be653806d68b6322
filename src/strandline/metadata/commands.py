"""Commands: the only ways an image changes. Small, frozen, tagged values."""

import msgspec

from strandline.config import StreamConfig


class CreateStream(msgspec.Struct, frozen=True, tag=True):
    """Add a stream."""

    config: StreamConfig
    now_ns: int


class DeleteStream(msgspec.Struct, frozen=True, tag=True):
    """Remove a stream and, with it, its records."""

    name: str


Command = CreateStream | DeleteStream
