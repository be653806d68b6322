"""Pausing of partitions that have had no publish for as long as their stream allows.

Rule: only the leader pauses a partition. Its idle time starts when this broker sees the last
    record,
or first leads the partition unpaused.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from strandline.broker.write_path.partition import Partition
from strandline.errors import StrandlineError
from strandline.servers.grpc.liftbridge.host import Host
from strandline.types import Offset, PartitionName

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5


class _Seen(NamedTuple):
    """The end offset of a partition, and since when it has been the same."""

    end: Offset
    since_ms: float


class AutoPause:
    """A task that pauses idle partitions.

    Args:
        host: the broker and the settings of the API.
        subscribers: the number of subscribers of each partition.
    """

    def __init__(self, host: Host, subscribers: Mapping[PartitionName, int]) -> None:
        self._host = host
        self._subscribers = subscribers
        self._seen: dict[PartitionName, _Seen] = {}

    async def run(self) -> None:
        """Pause idle partitions, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            # Names only: a reference to a deleted partition would keep its files open.
            for name in [partition.name for partition in self.idle()]:
                try:
                    await self._host.pause(name.stream, (name.partition,), is_on=True)
                    logger.info("%s is idle and was paused", name)
                except StrandlineError as error:
                    logger.warning("%s is idle and could not be paused: %s", name, error)

    def idle(self) -> list[Partition]:
        """Return the partitions to pause now."""
        now_ms = self._host.broker.clock.monotonic_ms()
        seen: dict[PartitionName, _Seen] = {}
        found = []
        for partition in self._host.broker.partitions():
            config = partition.config
            is_ours = partition.blocked_by is None and self._host.leader(partition) == self._host.me
            if not config.auto_pause_ms or not is_ours:
                continue
            last = self._seen.get(partition.name)
            if last is None or last.end != partition.log_end_offset:
                last = _Seen(partition.log_end_offset, now_ms)
            seen[partition.name] = last
            is_read = bool(self._subscribers.get(partition.name))
            is_due = now_ms - last.since_ms >= config.auto_pause_ms
            if is_due and (config.auto_pause_if_read or not is_read):
                found.append(partition)
        self._seen = seen
        return found
