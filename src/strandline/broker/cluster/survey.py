"""How far copies are: asked of those that may lead next, before one of them is elected.

Rules: an answer is a help to choose, never needed: whoever says nothing in time counts as one that
was not asked, and an election waits for nobody longer than ``ASK_S``. Only the controller asks, and
only when a leader was lost, so that nothing is told while all is well.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

from strandline.broker.cluster.channels import AskLogEnds, LogEndsTold, Request
from strandline.broker.cluster.replicas import Replicas
from strandline.metadata.election import LogEnd, LogEnds
from strandline.types import BrokerId, LogId

ASK_S = 0.25
Told = tuple[tuple[LogId, LogEnd], ...]


class Survey:
    """Questions to other brokers, and theirs to this one.

    Args:
        replicas: of this broker.
        send: hands a request to a broker; False if it is not there.
    """

    def __init__(self, replicas: Replicas, send: Callable[[BrokerId, Request], bool]) -> None:
        self._replicas = replicas
        self._send = send
        self._last_number = 0
        self._asked: dict[int, tuple[BrokerId, asyncio.Future[Told]]] = {}

    async def ask(self, wanted: Mapping[BrokerId, tuple[LogId, ...]]) -> LogEnds:
        """The ends of logs, as far as brokers tell them in time."""
        found: dict[LogId, dict[BrokerId, LogEnd]] = defaultdict(dict)
        numbers = []
        for broker, log_ids in wanted.items():
            if broker == self._replicas.me:
                _note(found, broker, self._ends(log_ids))
            elif (number := self._ask(broker, log_ids)) is not None:
                numbers.append(number)
        if numbers:
            await asyncio.wait([self._asked[number][1] for number in numbers], timeout=ASK_S)
        for number in numbers:
            broker, answer = self._asked.pop(number)
            if answer.done():
                _note(found, broker, answer.result())
        return found

    def _ask(self, broker: BrokerId, log_ids: tuple[LogId, ...]) -> int | None:
        """Ask one broker; the number of the question, unless it is not there."""
        self._last_number += 1
        if not self._send(broker, AskLogEnds(self._last_number, log_ids)):
            return None
        answer: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._asked[self._last_number] = (broker, answer)
        return self._last_number

    def _ends(self, log_ids: tuple[LogId, ...]) -> Told:
        """How far the copies here are."""
        drivers = self._replicas.drivers
        logs = [(each, drivers[each].replica.log) for each in log_ids if each in drivers]
        return tuple((log_id, (log.last_epoch, log.log_end_offset)) for log_id, log in logs)

    # What comes from others

    def serve(self, sender: BrokerId, question: AskLogEnds) -> None:
        """Answer another broker."""
        self._send(sender, LogEndsTold(question.number, self._ends(question.log_ids)))

    def told(self, sender: BrokerId, answer: LogEndsTold) -> None:
        """An answer came, perhaps too late."""
        broker, future = self._asked.get(answer.number, (None, None))
        if future is not None and broker == sender and not future.done():
            future.set_result(answer.ends)

    def peer_lost(self, broker: BrokerId) -> None:
        """It will not answer."""
        for asked, answer in self._asked.values():
            if asked == broker and not answer.done():
                answer.set_result(())


def _note(found: dict[LogId, dict[BrokerId, LogEnd]], broker: BrokerId, told: Told) -> None:
    for log_id, end in told:
        found[log_id][broker] = end
