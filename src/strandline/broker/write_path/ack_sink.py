"""The interface through which every outcome of an append is reported."""

from collections.abc import Sequence
from typing import Protocol

from strandline.errors import StrandlineError
from strandline.types import Offset, PartitionName


class AckSink(Protocol):
    """Told the outcome of each append it was named for, on the loop's thread.

    Calls must not raise and must not block: queue output, and send it when the broker says so
    (``Broker.on_answered``).
    """

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """The record at ``offset`` (the first of several) is as safe as was asked.

        ``duplicate``: it was stored earlier, under the same message id.
        """
        ...

    def rejected(self, token: object, error: StrandlineError) -> None:
        """The append did not happen or, after a failed write or sync, may not have happened."""
        ...


class ChunkAckSink(AckSink, Protocol):
    """An ack sink of records that are accepted by the chunk."""

    def acked_many(
        self, tokens: Sequence[object], partition: PartitionName, offset: Offset
    ) -> None:
        """Records in a row are as safe as was asked; the first is at ``offset``.

        The token None stands for a record whose publisher asked for no answer.
        """
        ...
