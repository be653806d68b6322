"""Forwarded publishes, and those that are held until their paused partition is resumed.

Brokers learn at slightly different times that a partition is paused or resumed. Publishes that the
leader rejects in between are held, with later ones behind them, until no publish of the partition
is in flight. Then the partition is resumed, and all are sent again in order. The first is sent
alone: a leader that learns of the resumption between two publishes would reject the first and
store the second.

Rules: loop thread only. A rejected publish is sent again for ``PATIENCE_S`` at most, and not once a
later one was stored, since that would change the order. Then its publisher gets the rejection.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from strandline.client.reader.results import Ack
from strandline.errors import PausedError, StrandlineError
from strandline.record.codec import Headers
from strandline.types import PartitionName

PATIENCE_S: Final = 5.0
RETRY_S: Final = 0.05
"""Usually long enough for the leader to be notified."""

Outcome = Ack | StrandlineError


class PendingForward(NamedTuple):
    """A record to forward."""

    partition: PartitionName
    value: bytes | None
    subject: str
    key: bytes | None
    headers: Headers | None
    message_id: str | None
    wakes: bool = False
    """Whether the record resumes its partition if that is paused."""


class ForwardedPublish:
    """A publish to forward, with its callbacks.

    Args:
        partition: the target partition.
        send: sends the publish to the leader; called again for each retry.
        report: receives the outcome, once.
        wakes: whether the publish resumes a paused partition.
    """

    __slots__ = ("number", "partition", "refused_s", "report", "send", "wakes")

    def __init__(
        self,
        partition: PartitionName,
        send: Callable[["ForwardedPublish"], None],
        report: Callable[[Outcome], None],
        *,
        wakes: bool,
    ) -> None:
        self.partition = partition
        self.send = send
        self.report = report
        self.wakes = wakes
        self.number = 0
        self.refused_s: float | None = None
        """The time at which the publish was first rejected because the partition was paused."""


class _Partition:
    """The publishes of one partition."""

    __slots__ = ("refused", "sent", "task", "waiting")

    def __init__(self) -> None:
        self.sent = 0
        """Publishes in flight to the leader."""
        self.refused: list[tuple[ForwardedPublish, PausedError]] = []
        self.waiting: list[ForwardedPublish] = []
        """Publishes that are held behind rejected ones."""
        self.task: asyncio.Task[None] | None = None


class ResumeForwarder:
    """A forwarder that resumes paused partitions and sends their publishes again.

    Args:
        resume: resumes a partition if it is paused.
    """

    def __init__(self, resume: Callable[[PartitionName], Awaitable[None]]) -> None:
        self._resume = resume
        self._partitions: defaultdict[PartitionName, _Partition] = defaultdict(_Partition)
        self._last_number = 0

    def submit(self, publish: ForwardedPublish) -> None:
        """Send a publish, after the earlier ones of its partition."""
        self._last_number += 1
        publish.number = self._last_number
        partition = self._partitions[publish.partition]
        if partition.refused or partition.waiting or partition.task is not None:
            partition.waiting.append(publish)
        else:
            partition.sent += 1
            publish.send(publish)

    def answered(self, publish: ForwardedPublish, outcome: Outcome) -> None:
        """Handle the outcome of a publish that was sent."""
        partition = self._partitions[publish.partition]
        partition.sent -= 1
        if isinstance(outcome, PausedError) and publish.wakes and self._is_tried_again(publish):
            partition.refused.append((publish, outcome))
        else:
            if isinstance(outcome, Ack):
                self._give_up_earlier(partition, publish)
            publish.report(outcome)
        if partition.sent:
            return
        if partition.refused or partition.waiting:
            resuming = self._resume_and_send(publish.partition, partition)
            partition.task = asyncio.create_task(resuming, name=f"resume-{publish.partition}")
        else:
            self._partitions.pop(publish.partition, None)

    def _is_tried_again(self, publish: ForwardedPublish) -> bool:
        now_s = asyncio.get_running_loop().time()
        if publish.refused_s is None:
            publish.refused_s = now_s
        return now_s < publish.refused_s + PATIENCE_S

    def _give_up_earlier(self, partition: _Partition, stored: ForwardedPublish) -> None:
        """Reject publishes that are older than one now stored; sent again, they would be late."""
        refused, partition.refused = partition.refused, []
        for publish, error in refused:
            if publish.number < stored.number:
                publish.report(error)
            else:
                partition.refused.append((publish, error))

    async def _resume_and_send(self, name: PartitionName, partition: _Partition) -> None:
        is_resumed = not partition.refused
        try:
            if not is_resumed:
                await self._resume(name)
                await asyncio.sleep(RETRY_S)
        except StrandlineError as error:
            refused = [publish for publish, _ in partition.refused]
            partition.refused = []
            for publish in refused:
                publish.report(error)
        publishes = [publish for publish, _ in partition.refused] + partition.waiting
        publishes.sort(key=lambda publish: publish.number)
        sent = len(publishes) if is_resumed else 1
        publishes, partition.waiting = publishes[:sent], publishes[sent:]
        partition.refused, partition.task = [], None
        partition.sent += len(publishes)
        for publish in publishes:
            publish.send(publish)
        if not publishes:
            self._partitions.pop(name, None)

    async def stop(self) -> None:
        """Stop resending."""
        tasks = [each.task for each in self._partitions.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
