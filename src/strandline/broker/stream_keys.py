"""Keys of a broker's encrypted streams: made with the stream, given to partitions, wrapped anew.

Rules: wrapped data keys live in the metadata alone, and whoever seals or opens looks there each
time, so that a new key counts on every broker as soon as the metadata has it. What needs
``cryptography``, which takes 7 MiB of memory, is imported where there is an encrypted stream.
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
        masters: the master keys that it has.
        image: the metadata as it is known here at this moment.
    """

    def __init__(self, masters: MasterKeys, image: Callable[[], MetadataImage]) -> None:
        self._masters = masters
        self._image = image

    def of(self, image: Callable[[], MetadataImage]) -> "StreamKeys":
        """The same master keys with the keys of streams in another image."""
        return StreamKeys(self._masters, image)

    def first(self, config: StreamConfig) -> tuple[WrappedKey, ...]:
        """The data key of a stream that is being made; none if it is not encrypted.

        Raises:
            EncryptionKeyError: it is, and there is no master key.
            InvalidConfigError: the source of the keys is broken now.
        """
        if not config.encryption:
            return ()
        from strandline.encryption.data_keys import new_data_key

        # An operator may have put another key first since, and be about to drop this one.
        self._masters.reload()
        return (new_data_key(self._masters.current),)

    def sealer(self, name: PartitionName, config: StreamConfig) -> "BatchSealer | None":
        """Return a partition's sealer; None if the stream is not encrypted."""
        if not config.encryption:
            return None
        from strandline.encryption.sealer import BatchSealer

        return BatchSealer(name, lambda: self._keys(name.stream), self._masters)

    def _keys(self, stream: str) -> tuple[WrappedKey, ...]:
        known = self._image().streams.get(stream)
        return known.keys if known is not None else ()

    def rotation(self, stream: str, *, has_new_key: bool) -> KeepStreamKeys:
        """The command that wraps a stream's data keys by the current master key.

        Args:
            stream: which.
            has_new_key: whether new batches get another data key.

        Raises:
            UnknownStreamError: there is none.
            InvalidRequestError: it is not encrypted, or the source of the keys is broken now.
            EncryptionKeyError: a master key is missing that is needed for it.
        """
        known = self._image().stream(stream)
        if not known.config.encryption:
            raise InvalidRequestError(
                f"stream {stream!r} is not encrypted; that is decided when a stream is created"
            )
        from strandline.encryption.data_keys import new_data_key, rewrapped

        self._masters.reload()
        keys = [rewrapped(key, self._masters, stream=stream) for key in known.keys]
        if has_new_key:
            keys.append(new_data_key(self._masters.current, len(keys) + 1))
        return KeepStreamKeys(stream, tuple(keys))
