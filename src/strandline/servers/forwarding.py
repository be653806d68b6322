"""The interface through which servers forward publishes to other brokers.

It is separate from the forwarder, so that a broker alone need not import the client.
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
    """A forwarder of publishes to the brokers that lead their partitions."""

    @property
    def is_busy(self) -> bool:
        """Whether any publish is in flight."""
        ...

    @property
    def fullness(self) -> float:
        """The used fraction of the limits; at 1.0 publishes are refused."""
        ...

    def is_led_elsewhere(self, partition: PartitionName) -> bool:
        """Return whether another broker leads, or earlier publishes are in flight to one."""
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
        """Forward a record; its outcome reaches the ack sink."""
        ...

    def is_busy_with(self, partition: PartitionName) -> bool:
        """Return whether publishes are in flight that later ones must not overtake."""
        ...

    async def room(self) -> None:
        """Wait until another publish can be accepted."""
        ...

    async def quiesce(self) -> None:
        """Wait for publishes in flight, for a limited time."""
        ...
