"""The state of NATS consumers in a cluster: stored at the broker that coordinates groups.

Rules: a request is sent once; its answer ends it. If the link is lost before the answer, the
outcome is unknown.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from strandline.broker.cluster.channels import ConsumerRequest, ConsumerResponse
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.coordinators.consumers import ConsumerOrder, ConsumerStore
from strandline.broker.coordinators.groups import GroupCoordinatorService
from strandline.errors import (
    NotLeaderError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    all_error_classes,
)
from strandline.types import BrokerId

TIMEOUT_S: Final = 10.0


class ClusterConsumerStore(ConsumerStore):
    """The states of NATS consumers, at this broker's group coordinator or at another's.

    Args:
        groups: this broker's group coordinator.
        rpc: requests to and from other brokers.
        leader: returns the broker that coordinates groups, or None.
    """

    def __init__(
        self,
        groups: GroupCoordinatorService,
        rpc: PeerRpc,
        leader: Callable[[], BrokerId | None],
    ) -> None:
        super().__init__(groups)
        self._rpc = rpc
        self._leader = leader
        self._serving: set[asyncio.Task[None]] = set()

    async def _do(self, order: ConsumerOrder) -> dict[str, str]:
        """Execute a request at the group coordinator.

        Raises:
            NotLeaderError: no coordinator can be reached; nothing was done.
            StrandlineError: the coordinator's error; the outcome may be unknown.
        """
        with contextlib.suppress(NotLeaderError):
            return await self.carry_out(order)
        leader = self._leader()
        if leader is None:
            raise NotLeaderError("no broker coordinates groups now; retry")
        answer = self._rpc.ask(
            leader,
            lambda number: ConsumerRequest(
                number,
                order.what,
                order.group,
                order.positions or {},
                order.consumer,
                order.epoch,
            ),
            ConsumerResponse,
        )
        if answer is None:
            raise NotLeaderError(f"broker {leader} coordinates groups and cannot be reached")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await answer
        except TimeoutError:
            raise RequestTimeoutError(f"broker {leader} did not answer") from None
        if found.code:
            raise _error(found)
        return found.consumers

    def serve(self, sender: BrokerId, request: ConsumerRequest) -> None:
        """Execute a request of another broker, and send the answer."""
        task = asyncio.create_task(self._serve(sender, request), name="remote-consumer")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, sender: BrokerId, request: ConsumerRequest) -> None:
        try:
            found = await self.carry_out(
                ConsumerOrder(
                    request.what,
                    request.group,
                    request.positions,
                    request.consumer,
                    request.epoch,
                )
            )
            answer = ConsumerResponse(request.number, found)
        except StrandlineError as error:
            answer = ConsumerResponse(request.number, {}, error.code, error.message)
        self._rpc.answer(sender, answer)

    async def stop(self) -> None:
        """Cancel requests in progress."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


def _error(answer: ConsumerResponse) -> StrandlineError:
    """Return the error in an answer; a code unknown here counts as unavailable."""
    found = next((each for each in all_error_classes() if each.code == answer.code), None)
    return (found or UnavailableError)(answer.message)
