"""The consumers of one stream during one leadership of this broker."""

import asyncio

from strandline.servers.nats.jetstream.runner import ConsumerRunner
from strandline.servers.nats.jetstream.views import JetStreamView
from strandline.types import LeaderEpoch


class LedConsumers:
    """The consumers of one partition, or of all, while this broker leads it, or the first one."""

    def __init__(self, view: JetStreamView) -> None:
        self.name = view.name
        self.partition = view.partitions[0]
        self._shape = _shape(view)
        self.created_ns = view.stream.created_ns
        self.epoch: LeaderEpoch = self.partition.leader_epoch
        self.runners: dict[str, ConsumerRunner] = {}
        self.is_loaded = False
        self.lock = asyncio.Lock()
        """Held while consumers are loaded, created, changed or deleted."""

    def is_current(self, view: JetStreamView) -> bool:
        """Return whether a view still belongs to the same leadership of the same partition."""
        partition = view.partitions[0]
        return (
            partition is self.partition
            and partition.is_led
            and partition.leader_epoch == self.epoch
            and self.counts_like(view)
        )

    def counts_like(self, view: JetStreamView) -> bool:
        """Return whether a view of the same name gives sequences the same meaning."""
        return view.stream.created_ns == self.created_ns and _shape(view) == self._shape


def _shape(view: JetStreamView) -> tuple[bool, int]:
    """Return the properties of a view on which the meaning of its sequences depends."""
    return view.is_exact, len(view.partitions)
