"""The state machine of the consensus group: it holds the metadata image.

Rules: deterministic for any entry: an unknown command is rejected like any other that does not
apply. Must not know who is notified.
"""

from collections.abc import Callable

from strandline.core.metadata.apply import apply_entry
from strandline.core.metadata.commands import decode_entry
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandOutcome, refused
from strandline.core.metadata.snapshot import decode_image, encode_image
from strandline.errors import InvalidRecordError


class MetadataMachine:
    """The newest image that is applied on this broker.

    Args:
        on_change: called after each change; there may be many in a row.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.image = MetadataImage()
        self._on_change = on_change

    def apply(self, command: bytes) -> CommandOutcome:
        """Apply an entry; return its outcome."""
        try:
            entry = decode_entry(command)
        except InvalidRecordError as error:
            return refused(error)
        before = self.image
        self.image, outcome = apply_entry(before, entry)
        if self.image is not before:
            self._on_change()
        return outcome

    def snapshot(self) -> bytes:
        """Return the encoded image."""
        return encode_image(self.image)

    def restore(self, data: bytes) -> None:
        """Replace the image by the one of a snapshot; without data by the empty image.

        Raises:
            InvalidRecordError: a later version wrote the snapshot.
        """
        self.image = decode_image(data) if data else MetadataImage()
        self._on_change()
