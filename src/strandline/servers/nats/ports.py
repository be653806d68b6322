"""The interfaces of the broker that the NATS servers need.

The broker's classes satisfy these protocols structurally; unit tests use small fakes.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from strandline.broker.coordinators.consumers import ConsumerStore
from strandline.broker.routing import RouteTable, StreamPort
from strandline.broker.stream import Stream
from strandline.broker.write_path.pending import AckSink
from strandline.clock import Clock
from strandline.config import StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.errors import StrandlineError
from strandline.telemetry import Telemetry
from strandline.types import Offset


class AdmissionPort(Protocol):
    """The part of admission control that these servers need."""

    @property
    def pending_bytes(self) -> int:
        """The accepted bytes that are not stored yet."""
        ...

    def reject(
        self, error: StrandlineError, ack_sink: AckSink | None, token: object, *, stream: str
    ) -> None:
        """Count a rejected record, and report it to the ack sink or else to the log."""
        ...


class BrokerPort(Protocol):
    """A broker as these servers need it."""

    @property
    def clock(self) -> Clock:
        """The source of time."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether the rules and tokens in the metadata may still be used."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """The broker's metrics."""
        ...

    @property
    def admission(self) -> AdmissionPort:
        """The broker's admission control."""
        ...

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller, which learns of new leaders first."""
        ...

    async def quiesce(self) -> None:
        """Wait until every accepted record is answered."""
        ...

    @property
    def routes(self) -> RouteTable:
        """From a subject to the streams that store it."""
        ...

    def streams(self) -> Sequence[StreamPort]:
        """Return all streams."""
        ...

    def on_streams_changed(self, callback: Callable[[Collection[str]], None]) -> None:
        """Call ``callback`` with the names of streams that were created or deleted."""
        ...

    def on_stream_created(self, callback: Callable[[str], Awaitable[None]]) -> None:
        """Await ``callback`` with its name before a stream's creation is answered."""
        ...

    def on_creating_stream(self, check: Callable[[StreamConfig], Awaitable[None]]) -> None:
        """Await a check before a stream is created; an exception rejects the creation."""
        ...

    def reads(self, ack_sink: AckSink) -> None:
        """Declare that the loop itself reads the connection of an ack sink."""
        ...

    def on_answered(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after ack sinks got outcomes, and after each group commit."""
        ...


class JetStreamPort(Protocol):
    """A broker as the JetStream API needs it."""

    @property
    def clock(self) -> Clock:
        """The source of time."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether the metadata known here is recent enough to answer by."""
        ...

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller."""
        ...

    @property
    def routes(self) -> RouteTable:
        """The routes of all streams."""
        ...

    def on_image(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the metadata changed."""
        ...

    def on_leading(self, callback: Callable[[Collection[str]], None]) -> None:
        """Call ``callback`` with the names of streams of which this broker begins to lead parts."""
        ...

    def check_metadata(self) -> None:
        """Reject to say that there is no stream where that is not known."""
        ...

    def streams(self) -> list[Stream]:
        """Return all streams, by name."""
        ...

    def stream(self, name: str) -> Stream:
        """Return a stream, or raise ``UnknownStreamError``."""
        ...

    async def create_stream(self, config: StreamConfig) -> Stream:
        """Create a stream."""
        ...

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and its records."""
        ...

    async def delete_before(self, name: str, partition: int, offset: Offset) -> Offset:
        """Delete the records of a partition below an offset."""
        ...


class FrontEndPort(BrokerPort, JetStreamPort, Protocol):
    """A broker as all NATS listeners together need it."""

    @property
    def consumers(self) -> ConsumerStore:
        """The store of consumers' states."""
        ...

    def streams(self) -> list[Stream]:
        """Return all streams, by name."""
        ...
