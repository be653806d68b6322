"""The consumers of a stream, for as long as this broker leads it."""

import asyncio

from strandline.servers.nats.jetstream.runner import ConsumerRunner
from strandline.servers.nats.jetstream.views import JetStreamView
from strandline.types import LeaderEpoch


class LedConsumers:
    """The consumers of a partition or of all, for as long as this broker leads it or the first."""

    def __init__(self, view: JetStreamView) -> None:
        self.name = view.name
        self.partition = view.partitions[0]
        self._shape = _shape(view)
        self.created_ns = view.stream.created_ns
        self.epoch: LeaderEpoch = self.partition.leader_epoch
        self.runners: dict[str, ConsumerRunner] = {}
        self.is_loaded = False
        self.lock = asyncio.Lock()
        """Held to load, create, change and delete."""

    def is_current(self, view: JetStreamView) -> bool:
        """Return whether it is still the same leadership of the same partition."""
        partition = view.partitions[0]
        return (
            partition is self.partition
            and partition.is_led
            and partition.leader_epoch == self.epoch
            and self.counts_like(view)
        )

    def counts_like(self, view: JetStreamView) -> bool:
        """Return whether sequences mean the same in a view of this name."""
        return view.stream.created_ns == self.created_ns and _shape(view) == self._shape


def _shape(view: JetStreamView) -> tuple[bool, int]:
    """Return what the sequences of a view depend on."""
    return view.is_exact, len(view.partitions)
