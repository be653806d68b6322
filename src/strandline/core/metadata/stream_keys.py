"""Data keys of encrypted streams in the metadata: wrapped by a master key.

Rule: a data key is never removed or replaced, since records encrypted with it would be lost. Only
its wrapping may change; its fingerprint shows that it is the same key. So concurrent commands of
two operators are safe: the later one is rejected.
"""

import msgspec

from strandline.config import StreamConfig
from strandline.core.metadata.commands import KeepStreamKeys
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.types import WrappedKey


def check_new_keys(config: StreamConfig, keys: tuple[WrappedKey, ...]) -> None:
    """Check that an encrypted stream has its first data key, and any other stream has none.

    Raises:
        CommandRejectedError: the keys do not fit the settings.
    """
    if [key.number for key in keys] != [1] * config.encryption:
        raise CommandRejectedError(
            "stale_keys", "an encrypted stream starts with data key 1, any other without keys"
        )


def keep_stream_keys(image: MetadataImage, command: KeepStreamKeys) -> MetadataImage:
    """Store data keys that were rewrapped, or a new one."""
    stream = image.stream(command.name)
    if not stream.config.encryption:
        raise CommandRejectedError("stale_keys", f"stream {command.name!r} is not encrypted")
    keys = list(stream.keys)
    for key in command.keys:
        if key.number == len(keys) + 1:
            keys.append(key)
        elif 1 <= key.number <= len(keys) and keys[key.number - 1].fingerprint == key.fingerprint:
            keys[key.number - 1] = key
        else:
            raise CommandRejectedError(
                "stale_keys",
                f"data key {key.number} of stream {command.name!r} is another one: somebody else "
                "gave the stream a key at the same time; repeat the command",
            )
    return image.with_streams({command.name: msgspec.structs.replace(stream, keys=tuple(keys))})
