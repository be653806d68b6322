"""The internal streams of the API, for cursors and activity events.

Rules: a stream is created at the first start, and its settings do not change later. Its records are
ordinary: acknowledged when durable, replicated, readable.
"""

import asyncio
import logging
from typing import Final

from strandline.broker.cluster.broker import ClusterBroker
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import CommitWaiter
from strandline.config import StreamConfig
from strandline.core.metadata.streams import REPLICAS_MAX
from strandline.errors import StreamExistsError, UnavailableError
from strandline.servers.grpc.liftbridge.host import ACTIVITY, CURSORS, Host
from strandline.types import Offset

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 4 << 20
RETRY_S: Final = 1.0


def cursors_config(host: Host) -> StreamConfig:
    """Return the settings of the stream for cursors, which is compacted."""
    replicas = _replicas(host)
    return StreamConfig(
        name=CURSORS,
        subject=f"{host.config.namespace}.cursors",
        partitions=host.config.cursor_partitions,
        partition_by="suffix",
        replicas=replicas,
        min_isr=replicas // 2 + 1,
        compact=True,
        segment_bytes=SEGMENT_BYTES,
        dedup_window_ms=0,
        pub_ack=False,
    )


def activity_config(host: Host) -> StreamConfig:
    """Return the settings of the stream for activity events."""
    replicas = _replicas(host)
    return StreamConfig(
        name=ACTIVITY,
        subject=f"{host.config.namespace}.activity",
        replicas=replicas,
        min_isr=replicas // 2 + 1,
        dedup_window_ms=0,
        pub_ack=False,
    )


def _replicas(host: Host) -> int:
    return max(1, min(len(host.broker.image.brokers), REPLICAS_MAX))


async def ensure_streams(host: Host) -> None:
    """Create the streams that do not exist; in a cluster, wait until there is a controller."""
    wanted = []
    if host.config.activity:
        wanted.append((ACTIVITY, activity_config))
    if host.config.cursor_partitions:
        wanted.append((CURSORS, cursors_config))
    for name, config in wanted:
        while host.stream(name) is None:
            try:
                await host.broker.create_stream(config(host))
            except StreamExistsError:
                break  # another broker created it first
            except UnavailableError:
                if not isinstance(host.broker, ClusterBroker):
                    raise
                await asyncio.sleep(RETRY_S)


class InternalStore(CommitWaiter):
    """An ack sink for one append that a coroutine waits for."""

    async def append(self, partition: Partition, value: bytes, *, key: bytes | None) -> Offset:
        """Store a value; return its offset once it is acknowledged.

        Raises:
            StrandlineError: the value was rejected, or it is unknown whether it was stored.
        """
        subject = partition.config.subject
        number = partition.name.partition
        partition.append(
            value, subject=f"{subject}.{number}" if number else subject, key=key, ack_sink=self
        )
        return await self.wait()
