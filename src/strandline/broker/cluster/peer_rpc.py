"""Requests between brokers: each has a number and one answer, or ends with its link.

Rules: an answer counts only if it comes from the broker that was asked, and is of the expected
kind. Answers that nobody waits for are dropped. A caller that gives up cancels its request.
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
    """A request in flight."""

    to: BrokerId
    kind: type[msgspec.Struct]
    answer: asyncio.Future[Any]

    def fail(self, error: StrandlineError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class PeerRpc:
    """Requests to other brokers, matched with their answers; loop thread.

    Args:
        send: sends a request to a broker; False if it is disconnected.
    """

    def __init__(self, send: Callable[[BrokerId, Request], bool]) -> None:
        self._send = send
        self._last_number = 0
        self._asked: dict[int, _Asked] = {}

    def ask(
        self, to: BrokerId, question: Callable[[int], Request], kind: type[T]
    ) -> asyncio.Future[T] | None:
        """Send a request to a broker.

        Args:
            to: the receiver.
            question: builds the request from its number.
            kind: the kind of the expected answer; ``Failed`` ends the wait, too.

        A future of the answer, or of an ``UnavailableError`` if the outcome is unknown. None if the
        broker is disconnected, so that it received nothing.
            the broker is disconnected and received nothing.
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
        """Send an answer to another broker; if the link is lost, the caller notices that."""
        self._send(caller, answer)

    def answered(self, sender: BrokerId, answer: Answer) -> None:
        """Pass a received answer to the caller that waits for it."""
        asked = self._asked.get(answer.number)
        if asked is None or asked.to != sender or asked.answer.done():
            return
        if isinstance(answer, asked.kind):
            asked.answer.set_result(answer)
        elif isinstance(answer, Failed):
            asked.fail(UnavailableError(answer.message))

    def peer_disconnected(self, broker: BrokerId) -> None:
        """Fail all requests to a broker: their outcome is unknown."""
        for asked in self._asked.values():
            if asked.to == broker:
                asked.fail(UnavailableError(f"the link to broker {broker} broke"))
