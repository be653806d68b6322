"""The wait until the leaders of a new stream serve it, before its creation is answered.

Each broker opens the logs of a new stream on a thread. Until a partition's leader has done so it
receives no publishes, and no other broker may acknowledge them.

Rules: the creation is decided already, so it does not fail if a leader does not answer in time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from strandline.broker.cluster.channels import Failed, StreamOpened, StreamOpenRequest
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.errors import StrandlineError
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0


class StreamOpening:
    """Requests to leaders that have to open a new stream, and from other brokers.

    Args:
        rpc: requests to and from other brokers.
        until_open: waits until a stream is open on this broker, and what is published to it
            arrives.
    """

    def __init__(
        self, rpc: PeerRpc, until_open: Callable[[StreamOpenRequest], Awaitable[None]]
    ) -> None:
        self._rpc = rpc
        self._until_open = until_open
        self._serving: set[asyncio.Task[None]] = set()

    async def wait(
        self, leaders: Iterable[BrokerId], name: str, *, created_ns: int, partitions: int
    ) -> None:
        """Wait until other brokers serve a stream, for a limited time.

        Args:
            leaders: the brokers to wait for.
            name: the stream's name.
            created_ns: distinguishes streams recreated under the same name.
            partitions: the number of partitions that must be open.
        """
        asked = []
        for broker in leaders:
            answer = self._rpc.ask(
                broker,
                lambda number: StreamOpenRequest(number, name, created_ns, partitions),
                StreamOpened,
            )
            if answer is not None:
                asked.append(answer)
        try:
            async with asyncio.timeout(PATIENCE_S):
                for outcome in await asyncio.gather(*asked, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        logger.warning("a leader does not serve stream %s yet: %s", name, outcome)
        except TimeoutError:
            logger.warning("a leader of stream %s has not opened it yet", name)

    # Requests of other brokers

    def serve(self, sender: BrokerId, question: StreamOpenRequest) -> None:
        """Answer another broker once the stream is open on this one."""
        task = asyncio.create_task(self._serve(sender, question), name="stream-opening")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, sender: BrokerId, question: StreamOpenRequest) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._until_open(question)
        except TimeoutError:
            return  # the caller no longer waits
        except StrandlineError as error:
            self._rpc.answer(sender, Failed(question.number, error.code, error.message))
        else:
            self._rpc.answer(sender, StreamOpened(question.number))

    async def stop(self) -> None:
        """Cancel the requests of other brokers that are in progress."""
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
