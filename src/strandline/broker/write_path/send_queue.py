"""Output of the broker in a round of the loop: frames to other brokers, acks to publishers.

Every ack passes through here, whether a group commit or another broker has made the record safe.
The servers and the replicas queue their own output, and send it when this queue calls them: in the
group commit, or in the next round of the loop.

Rules: loop thread. Each waiter is notified once. An error raised by a waiter is reported, and does
not affect the others.
others.
"""

import asyncio
from collections.abc import Callable

from strandline.broker.write_path.pending import Waiting
from strandline.telemetry import Telemetry
from strandline.types import PartitionName

DueAcks = tuple[PartitionName, list[Waiting]]
"""A partition, and the waiters whose records are now as safe as they required."""


class SendQueue:
    """The due acks, and the functions that send a broker's output.

    Args:
        telemetry: counts acks.
        loop: the broker's event loop; None: the running one.
    """

    def __init__(
        self, telemetry: Telemetry | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._loop = loop
        self.acks: list[DueAcks] = []
        """The acks that the next ``deliver`` sends."""
        self._frames: list[Callable[[], bool]] = []
        self._answers: list[Callable[[], None]] = []
        self.has_peers = False
        """Whether there are other brokers; they may need the same CPU."""
        self._is_scheduled = False

    def add_frames(self, send: Callable[[], bool]) -> None:
        """Add a function that sends frames; it returns whether any leave in the next round."""
        self._frames.append(send)
        self.has_peers = True

    def add_answers(self, send: Callable[[], None]) -> None:
        """Add a function that sends acks to publishers."""
        self._answers.append(send)

    def send_frames(self) -> bool:
        """Call the functions that send frames; return whether any frame leaves."""
        has_sent = False
        for send in self._frames:
            has_sent = send() or has_sent
        return has_sent

    def acknowledge(self, partition: PartitionName, waiting: list[Waiting]) -> None:
        """Acknowledge records in the loop's next round, or in a group commit that ends earlier."""
        self.acks.append((partition, waiting))
        self.deliver_soon()

    def deliver_soon(self) -> None:
        """Deliver in the loop's next round; for acks outside a group commit."""
        if not self._is_scheduled:
            self._is_scheduled = True
            (self._loop or asyncio.get_running_loop()).call_soon(self._deliver_scheduled)

    def deliver(self) -> None:
        """Notify the waiters whose acks are due, then call the functions that send acks."""
        acks, self.acks = self.acks, []
        count = 0
        for partition, waiting in acks:
            for each in waiting:
                try:
                    count += each.acked(partition)
                except Exception as bug:  # noqa: BLE001  the loop reports it
                    self._report(bug)
        self._telemetry.acks += count
        for send in self._answers:
            try:
                send()
            except Exception as bug:  # noqa: BLE001  the loop reports it
                self._report(bug)

    def _deliver_scheduled(self) -> None:
        self._is_scheduled = False
        self.deliver()

    def _report(self, bug: Exception) -> None:
        """Report a front end's bug to the loop; the others still get their acks."""
        loop = self._loop or asyncio.get_running_loop()
        loop.call_exception_handler({"message": "an answer was not sent", "exception": bug})

    def disconnect(self) -> None:
        """Remove all senders: the broker has stopped."""
        self._frames.clear()
        self.has_peers = False
        self._answers.clear()
