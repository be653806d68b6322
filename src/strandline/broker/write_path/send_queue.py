"""Output of the broker in a round of the loop: frames to other brokers, acks to publishers.

Every acknowledgement passes through here, whether a group commit or another broker's ack has made
the record safe. The servers and the replicas queue their own output, and write it when the queue
calls them: in the group commit, or in the next round of the loop.

Rules: loop thread. Each waiter is notified once; one that raises is reported, and does not prevent
others.
"""

import asyncio
from collections.abc import Callable

from strandline.broker.write_path.pending import Waiting
from strandline.telemetry import Telemetry
from strandline.types import PartitionName

DueAcks = tuple[PartitionName, list[Waiting]]
"""Publishers of one partition whose records are as safe as they required."""


class SendQueue:
    """The due acknowledgements and the senders of a broker.

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
        """Due at the next ``deliver``."""
        self._frames: list[Callable[[], bool]] = []
        self._answers: list[Callable[[], None]] = []
        self.has_peers = False
        """Whether there are other brokers, which need the CPU as well."""
        self._is_scheduled = False

    def add_frames(self, send: Callable[[], bool]) -> None:
        """Add a sender of frames; ``send`` returns whether any leave in the loop's next round."""
        self._frames.append(send)
        self.has_peers = True

    def add_answers(self, send: Callable[[], None]) -> None:
        """Add a sender of answers to publishers."""
        self._answers.append(send)

    def send_frames(self) -> bool:
        """Call the senders of frames; return whether any frame is sent."""
        has_sent = False
        for send in self._frames:
            has_sent = send() or has_sent
        return has_sent

    def acknowledge(self, partition: PartitionName, waiting: list[Waiting]) -> None:
        """Acknowledge records in the loop's next round, or in a group commit that ends before."""
        self.acks.append((partition, waiting))
        self.deliver_soon()

    def deliver_soon(self) -> None:
        """Deliver in the loop's next round: something was answered outside a group commit."""
        if not self._is_scheduled:
            self._is_scheduled = True
            (self._loop or asyncio.get_running_loop()).call_soon(self._deliver_scheduled)

    def deliver(self) -> None:
        """Acknowledge what is due, and call the senders of answers."""
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
        """Report a bug of a front end to the loop; the others get their answers all the same."""
        loop = self._loop or asyncio.get_running_loop()
        loop.call_exception_handler({"message": "an answer was not sent", "exception": bug})

    def disconnect(self) -> None:
        """Remove all senders: the broker has ended."""
        self._frames.clear()
        self.has_peers = False
        self._answers.clear()
