"""Log ends of the replicas that may lead next, requested before one of them is elected.

Rules: answers improve the choice but are not required. A broker that does not answer within
``ASK_S`` is treated as if it had not been asked, so no election waits longer. Only the controller
asks, and only when a leader was lost: in a healthy cluster nothing is sent.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from strandline.broker.cluster.channels import LogEndsRequest, LogEndsResponse
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.cluster.replicas import Replicas
from strandline.core.metadata.election import LogEnd, LogEnds
from strandline.types import BrokerId, LogId

ASK_S = 0.25
LocalLogEnds = tuple[tuple[LogId, LogEnd], ...]


class ReplicaStatusQuery:
    """Requests for log ends to other brokers, and from them.

    Args:
        replicas: the replicas of this broker.
        rpc: requests to and from other brokers.
    """

    def __init__(self, replicas: Replicas, rpc: PeerRpc) -> None:
        self._replicas = replicas
        self._rpc = rpc

    async def ask(self, wanted: Mapping[BrokerId, tuple[LogId, ...]]) -> LogEnds:
        """Return the log ends that the asked brokers report in time."""
        found: dict[LogId, dict[BrokerId, LogEnd]] = defaultdict(dict)
        asked = {}
        for broker, log_ids in wanted.items():
            if broker == self._replicas.me:
                _note(found, broker, self._ends(log_ids))
            elif (answer := self._ask(broker, log_ids)) is not None:
                asked[answer] = broker
        if asked:
            await asyncio.wait(asked, timeout=ASK_S)
        for answer, broker in asked.items():
            if not answer.done():
                answer.cancel()
            elif answer.exception() is None:
                _note(found, broker, answer.result().ends)
        return found

    def _ask(
        self, broker: BrokerId, log_ids: tuple[LogId, ...]
    ) -> asyncio.Future[LogEndsResponse] | None:
        return self._rpc.ask(broker, lambda n: LogEndsRequest(n, log_ids), LogEndsResponse)

    def _ends(self, log_ids: tuple[LogId, ...]) -> LocalLogEnds:
        """Return the last epoch and the log end offset of this broker's replicas."""
        drivers = self._replicas.drivers
        logs = [(each, drivers[each].replica.log) for each in log_ids if each in drivers]
        return tuple((log_id, (log.last_epoch, log.log_end_offset)) for log_id, log in logs)

    # Requests of other brokers

    def serve(self, sender: BrokerId, question: LogEndsRequest) -> None:
        """Answer another broker."""
        self._rpc.answer(sender, LogEndsResponse(question.number, self._ends(question.log_ids)))


def _note(
    found: dict[LogId, dict[BrokerId, LogEnd]], broker: BrokerId, response: LocalLogEnds
) -> None:
    for log_id, end in response:
        found[log_id][broker] = end
