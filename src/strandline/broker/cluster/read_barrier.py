"""The metadata read barrier: waits until a broker has applied everything decided before.

The broker that proposed a change knows its outcome at once, others moments later. Before a broker
answers that something does not exist, it asks the controller for the commit index, and waits until
it has applied the metadata up to there.

Rules: one request is in flight at a time, shared by all waiters. A caller that arrives during a
request waits for the next one, since the answer may be older than the call.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from strandline.broker.cluster.channels import ReadIndexRequest, ReadIndexResponse
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.quorum import Quorum
from strandline.errors import NotLeaderError, RequestTimeoutError, StrandlineError, UnavailableError
from strandline.types import BrokerId

PATIENCE_S: Final = 3.0
"""Longer than it takes to elect a controller."""
ATTEMPT_S: Final = 1.0
RETRY_S: Final = 0.05
POLL_S: Final = 0.005


class MetadataReadBarrier:
    """Requests for the commit index to the controller, and from other brokers.

    Args:
        quorum: this broker's member.
        rpc: requests to and from other brokers.
        is_fresh: whether streams and replicas have the newest image that was applied.
    """

    def __init__(self, quorum: Quorum, rpc: PeerRpc, *, is_fresh: Callable[[], bool]) -> None:
        self._quorum = quorum
        self._rpc = rpc
        self._is_fresh = is_fresh
        self._round: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def know(self) -> None:
        """Wait until everything that was decided before this call is applied on this broker.

        Raises:
            UnavailableError: the commit index is unknown, or was not reached in time; retry.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._round), name="know-newest")
        await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._round, self._next = self._next, None
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._follow()
        except TimeoutError:
            raise UnavailableError(
                "this broker cannot find out what the cluster has decided; retry. Are most of its "
                "brokers up?"
            ) from None

    async def _follow(self) -> None:
        while (index := await self._index()) is None:  # noqa: ASYNC110  to ask again
            await asyncio.sleep(RETRY_S)
        while self._quorum.applied_index < index or not self._is_fresh():  # noqa: ASYNC110  soon enough
            await asyncio.sleep(POLL_S)

    async def _index(self) -> int | None:
        """Return the metadata's commit index; None if it must be asked for again."""
        try:
            if self._quorum.is_leading:
                await self._quorum.barrier(timeout_s=ATTEMPT_S)
                return self._quorum.applied_index
            leader = self._quorum.leader
            return await self._index_from(leader) if leader is not None else None
        except UnavailableError:
            return None  # another controller may answer

    async def _index_from(self, leader: BrokerId) -> int:
        """Ask the controller for its commit index.

        Raises:
            UnavailableError: the controller does not answer, or does not know its commit index.
        """
        answer = self._rpc.ask(leader, ReadIndexRequest, ReadIndexResponse)
        if answer is None:
            raise NotLeaderError(f"broker {leader} leads the metadata and cannot be reached")
        try:
            async with asyncio.timeout(ATTEMPT_S):
                response = await answer
        except TimeoutError:
            raise RequestTimeoutError(f"broker {leader} did not answer") from None
        if response.failure:
            raise UnavailableError(response.failure)
        return response.index

    # Requests of other brokers

    def serve(self, sender: BrokerId, question: ReadIndexRequest) -> None:
        """Answer another broker, once a quorum has confirmed that this broker leads it."""
        task = asyncio.create_task(self._serve(sender, question), name="newest")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, sender: BrokerId, question: ReadIndexRequest) -> None:
        try:
            await self._quorum.barrier(timeout_s=ATTEMPT_S)
            answer = ReadIndexResponse(question.number, self._quorum.applied_index)
        except StrandlineError as error:
            answer = ReadIndexResponse(question.number, 0, error.message)
        self._rpc.answer(sender, answer)

    async def stop(self) -> None:
        """Cancel requests in progress."""
        tasks = [task for task in (self._round, self._next, *self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
