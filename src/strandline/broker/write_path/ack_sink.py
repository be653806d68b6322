"""The interface through which every outcome of an append is reported."""

import asyncio
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


class CommitWaiter:
    """An ack sink that waits for one append."""

    def __init__(self) -> None:
        self._stored: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()

    def acked(
        self,
        token: object,  # noqa: ARG002  the ack sink's signature
        partition: PartitionName,  # noqa: ARG002  see above
        offset: Offset,
        *,
        duplicate: bool,  # noqa: ARG002  see above
    ) -> None:
        """Complete with the offset."""
        if not self._stored.done():
            self._stored.set_result(offset)

    def rejected(self, token: object, error: StrandlineError) -> None:  # noqa: ARG002  see above
        """Complete with the error."""
        if not self._stored.done():
            self._stored.set_exception(error)

    async def wait(self) -> Offset:
        """Return the record's offset when it is as safe as was asked.

        Raises:
            StrandlineError: it was refused, or may not be stored.
        """
        return await self._stored


class ChunkAckSink(AckSink, Protocol):
    """An ack sink of records that are accepted by the chunk."""

    def acked_many(
        self, tokens: Sequence[object], partition: PartitionName, offset: Offset
    ) -> None:
        """Records in a row are as safe as was asked; the first is at ``offset``.

        The token None stands for a record whose publisher asked for no answer.
        """
        ...
