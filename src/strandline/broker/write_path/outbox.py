"""Sends frames to other brokers and answers to publishers, at the group commit's time.

Each server and the replicas queue their own output and register a function that writes it. It is
called when the group commit comes to sending, or soon when something was answered in between.
"""

import asyncio
from collections.abc import Callable


class Outbox:
    """The senders of this broker; loop thread.

    Args:
        loop: the broker's; None: the running one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._frames: list[Callable[[], bool]] = []
        self._answers: list[Callable[[], None]] = []
        self._is_scheduled = False

    def add_frames(self, send: Callable[[], bool]) -> None:
        """Add a sender of frames; ``send`` returns whether any leave when the loop comes round."""
        self._frames.append(send)

    def add_answers(self, send: Callable[[], None]) -> None:
        """Add a sender of answers."""
        self._answers.append(send)

    @property
    def has_peers(self) -> bool:
        """Whether there are other brokers, which need the CPU as well."""
        return bool(self._frames)

    def send_frames(self) -> bool:
        """Send what replicas have to say; return whether anything leaves."""
        has_sent = False
        for send in self._frames:
            has_sent = send() or has_sent
        return has_sent

    def send_answers(self) -> None:
        """Send what publishers were answered."""
        for send in self._answers:
            send()

    def send_answers_soon(self) -> None:
        """Send answers in the loop's next round: they were given outside a group commit."""
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = self._loop or asyncio.get_running_loop()
            loop.call_soon(self._send_scheduled)

    def _send_scheduled(self) -> None:
        self._is_scheduled = False
        self.send_answers()

    def disconnect(self) -> None:
        """Drop all senders: the broker is gone."""
        self._frames.clear()
        self._answers.clear()
