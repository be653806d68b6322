"""Keys of a broker's encrypted streams: creation, use by partitions, and rotation.

Rules: wrapped data keys are only in the metadata, and each encryption and decryption looks there,
so that a new key is used on every broker as soon as the metadata has it. ``cryptography``, which
takes 7 MiB of memory, is imported only where there is an encrypted stream.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.config import StreamConfig
from strandline.core.metadata.commands import KeepStreamKeys
from strandline.core.metadata.image import MetadataImage
from strandline.encryption.master_keys import MasterKeys
from strandline.errors import InvalidRequestError
from strandline.types import PartitionName, WrappedKey

if TYPE_CHECKING:
    from strandline.encryption.sealer import BatchSealer


class StreamKeys:
    """The encryption keys of a broker's streams.

    Args:
        masters: the broker's master keys.
        image: returns the present metadata.
    """

    def __init__(self, master_keys: MasterKeys, image: Callable[[], MetadataImage]) -> None:
        self._master_keys = master_keys
        self._image = image

    def of(self, image: Callable[[], MetadataImage]) -> "StreamKeys":
        """Return keys with the same master keys, for the streams of another image."""
        return StreamKeys(self._master_keys, image)

    def first(self, config: StreamConfig) -> tuple[WrappedKey, ...]:
        """Return the data key of a new stream; none if it is not encrypted.

        Raises:
            EncryptionKeyError: it is encrypted, and there is no master key.
            InvalidConfigError: the source of the keys cannot be read now.
        """
        if not config.encryption:
            return ()
        from strandline.encryption.data_keys import new_data_key

        # Read again: an operator may have put a new key first, and may soon remove the old one.
        self._master_keys.reload()
        return (new_data_key(self._master_keys.current),)

    def sealer(self, name: PartitionName, config: StreamConfig) -> "BatchSealer | None":
        """Return a partition's sealer; None if the stream is not encrypted."""
        if not config.encryption:
            return None
        from strandline.encryption.sealer import BatchSealer

        return BatchSealer(name, lambda: self._keys(name.stream), self._master_keys)

    def _keys(self, stream: str) -> tuple[WrappedKey, ...]:
        known = self._image().streams.get(stream)
        return known.keys if known is not None else ()

    def rotation(self, stream: str, *, has_new_key: bool) -> KeepStreamKeys:
        """Return the command that rewraps a stream's data keys with the current master key.

        Args:
            stream: the stream's name.
            has_new_key: whether new batches get another data key.

        Raises:
            UnknownStreamError: no such stream.
            InvalidRequestError: it is not encrypted, or the keys cannot be read now.
            EncryptionKeyError: a master key that it needs is missing.
        """
        known = self._image().stream(stream)
        if not known.config.encryption:
            raise InvalidRequestError(
                f"stream {stream!r} is not encrypted; that is decided when a stream is created, "
                "with --encryption"
            )
        from strandline.encryption.data_keys import new_data_key, rewrapped

        self._master_keys.reload()
        keys = [rewrapped(key, self._master_keys, stream=stream) for key in known.keys]
        if has_new_key:
            keys.append(new_data_key(self._master_keys.current, len(keys) + 1))
        return KeepStreamKeys(stream, tuple(keys))
