"""Publishes to other brokers whose partition is found paused: it is woken, and they go again.

A leader pauses a partition, or hears that it was resumed, moments before or after others do. What
it refuses meanwhile is held, with what comes behind it, until nothing of the partition is under
way; then the partition is woken, and all go again in their order. The first goes alone: a leader
that hears of the waking between two of them would refuse one and store the next.

Rules: loop thread only. A publish does not go again once a later one was stored, which would
change their order, nor for longer than ``PATIENCE_S``: it is told the refusal.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

from strandline.client.reader.results import Ack
from strandline.errors import PausedError, StrandlineError
from strandline.types import PartitionName

PATIENCE_S: Final = 5.0
RETRY_S: Final = 0.05
"""Long enough for the leader to have heard, more often than not."""

Outcome = Ack | StrandlineError


class ForwardedPublish:
    """A publish that is handed on.

    Args:
        partition: where.
        send: hands it to its leader, or hands it on again.
        tell: tells the outcome; once.
        wakes: whether it resumes a partition that is paused.
    """

    __slots__ = ("number", "partition", "refused_s", "send", "tell", "wakes")

    def __init__(
        self,
        partition: PartitionName,
        send: Callable[["ForwardedPublish"], None],
        tell: Callable[[Outcome], None],
        *,
        wakes: bool,
    ) -> None:
        self.partition = partition
        self.send = send
        self.tell = tell
        self.wakes = wakes
        self.number = 0
        self.refused_s: float | None = None
        """When it was refused first, as paused."""


class _Partition:
    """The errands of one partition."""

    __slots__ = ("refused", "sent", "task", "waiting")

    def __init__(self) -> None:
        self.sent = 0
        """Under way to the leader."""
        self.refused: list[tuple[ForwardedPublish, PausedError]] = []
        self.waiting: list[ForwardedPublish] = []
        """Not sent, behind those that were refused."""
        self.task: asyncio.Task[None] | None = None


class ResumeForwarder:
    """Hands errands on, and again if their partition had to be woken.

    Args:
        wake: resumes a partition, if it is paused.
    """

    def __init__(self, wake: Callable[[PartitionName], Awaitable[None]]) -> None:
        self._wake = wake
        self._partitions: defaultdict[PartitionName, _Partition] = defaultdict(_Partition)
        self._last_number = 0

    def hand_on(self, errand: ForwardedPublish) -> None:
        """Send an errand, behind those of its partition that came before."""
        self._last_number += 1
        errand.number = self._last_number
        partition = self._partitions[errand.partition]
        if partition.refused or partition.waiting or partition.task is not None:
            partition.waiting.append(errand)
        else:
            partition.sent += 1
            errand.send(errand)

    def answered(self, errand: ForwardedPublish, outcome: Outcome) -> None:
        """What became of an errand that was sent."""
        partition = self._partitions[errand.partition]
        partition.sent -= 1
        if isinstance(outcome, PausedError) and errand.wakes and self._is_tried_again(errand):
            partition.refused.append((errand, outcome))
        else:
            if isinstance(outcome, Ack):
                self._give_up_earlier(partition, errand)
            errand.tell(outcome)
        if partition.sent:
            return
        if partition.refused or partition.waiting:
            waking = self._wake_and_send(errand.partition, partition)
            partition.task = asyncio.create_task(waking, name=f"wake-{errand.partition}")
        else:
            self._partitions.pop(errand.partition, None)

    def _is_tried_again(self, errand: ForwardedPublish) -> bool:
        now_s = asyncio.get_running_loop().time()
        if errand.refused_s is None:
            errand.refused_s = now_s
        return now_s < errand.refused_s + PATIENCE_S

    def _give_up_earlier(self, partition: _Partition, stored: ForwardedPublish) -> None:
        """Tell their refusal to those that would now come behind a later one."""
        refused, partition.refused = partition.refused, []
        for errand, error in refused:
            if errand.number < stored.number:
                errand.tell(error)
            else:
                partition.refused.append((errand, error))

    async def _wake_and_send(self, name: PartitionName, partition: _Partition) -> None:
        has_heard = not partition.refused
        try:
            if not has_heard:
                await self._wake(name)
                await asyncio.sleep(RETRY_S)
        except StrandlineError as error:
            refused = [errand for errand, _ in partition.refused]
            partition.refused = []
            for errand in refused:
                errand.tell(error)
        errands = [errand for errand, _ in partition.refused] + partition.waiting
        errands.sort(key=lambda errand: errand.number)
        sent = len(errands) if has_heard else 1
        errands, partition.waiting = errands[:sent], errands[sent:]
        partition.refused, partition.task = [], None
        partition.sent += len(errands)
        for errand in errands:
            errand.send(errand)
        if not errands:
            self._partitions.pop(name, None)

    async def stop(self) -> None:
        """Send nothing again."""
        tasks = [each.task for each in self._partitions.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
