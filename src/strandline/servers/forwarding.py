"""What front ends know of forwarding publishes to the brokers that lead their partitions.

It is kept apart from the forwarder, whose client a broker that stands alone need not load.
"""

from typing import NamedTuple, Protocol

from strandline.broker.write_path.ack_sink import AckSink
from strandline.record.codec import Headers
from strandline.types import PartitionName


class PendingForward(NamedTuple):
    """A record to forward."""

    partition: PartitionName
    value: bytes | None
    subject: str
    key: bytes | None
    headers: Headers | None
    message_id: str | None
    wakes: bool = False
    """Whether the partition is resumed for it, if it is paused."""


class ForwarderPort(Protocol):
    """What hands publishes to the brokers that lead their partitions."""

    @property
    def is_busy(self) -> bool:
        """Whether any publish is under way."""
        ...

    @property
    def fullness(self) -> float:
        """How much of what may be under way is."""
        ...

    def is_led_elsewhere(self, partition: PartitionName) -> bool:
        """Whether another broker leads a partition, or is still forwarded what came before."""
        ...

    def append(
        self,
        record: PendingForward,
        *,
        ack_sink: AckSink | None,
        token: object,
        expects: bool = False,
        expected: int | None = None,
    ) -> None:
        """Forward a record; the outcome reaches the responder."""
        ...

    def is_busy_with(self, partition: PartitionName) -> bool:
        """Whether publishes to a partition are under way, which others must not overtake."""
        ...

    async def room(self) -> None:
        """Wait until another publish is taken."""
        ...

    async def quiesce(self) -> None:
        """Wait for what is under way, but not for long."""
        ...
