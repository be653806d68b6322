"""Questions among brokers: each has a number, and one answer, or ends with its link.

Rules: an answer counts if it comes from whom was asked, and is of the kind that was asked for; what
nobody waits for any more is dropped. Who gives up cancels its question.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from strandline.broker.cluster.channels import Answer, Failed, Request
from strandline.errors import StrandlineError, UnavailableError
from strandline.types import BrokerId

T = TypeVar("T", bound=Answer)


class _Asked(NamedTuple):
    """A question that is under way."""

    to: BrokerId
    kind: type[msgspec.Struct]
    answer: asyncio.Future[Any]

    def fail(self, error: StrandlineError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class PeerRpc:
    """Requests to other brokers, matched with their answers; loop thread.

    Args:
        send: hands a request to a broker; False if it is not there.
    """

    def __init__(self, send: Callable[[BrokerId, Request], bool]) -> None:
        self._send = send
        self._last_number = 0
        self._asked: dict[int, _Asked] = {}

    def ask(
        self, to: BrokerId, question: Callable[[int], Request], kind: type[T]
    ) -> asyncio.Future[T] | None:
        """Ask a broker.

        Args:
            to: whom.
            question: made with the number of this question.
            kind: of the answer that is waited for; ``Failed`` ends the wait, too.

        Returns:
            The answer to come, or an ``UnavailableError``: nobody knows what came of the question.
            None: the broker is not there, and heard nothing.
        """
        self._last_number += 1
        number = self._last_number
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(to, kind, answer)
        answer.add_done_callback(lambda _: self._asked.pop(number, None))
        if not self._send(to, question(number)):
            answer.cancel()
            return None
        return answer

    def answer(self, caller: BrokerId, answer: Answer) -> None:
        """Answer another broker; lost with the link, of which the asker hears."""
        self._send(caller, answer)

    def told(self, sender: BrokerId, answer: Answer) -> None:
        """An answer came."""
        asked = self._asked.get(answer.number)
        if asked is None or asked.to != sender or asked.answer.done():
            return
        if isinstance(answer, asked.kind):
            asked.answer.set_result(answer)
        elif isinstance(answer, Failed):
            asked.fail(UnavailableError(answer.message))

    def peer_disconnected(self, broker: BrokerId) -> None:
        """It will not answer; what was asked of it may or may not happen."""
        for asked in self._asked.values():
            if asked.to == broker:
                asked.fail(UnavailableError(f"the link to broker {broker} broke"))
