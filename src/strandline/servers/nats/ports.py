"""What this front end needs of the broker, and nothing more.

The broker's classes satisfy these protocols structurally; unit tests use small fakes.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from strandline.broker.routing import StreamPort
from strandline.broker.write_path.ack_sink import AckSink
from strandline.clock import Clock
from strandline.config import StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.errors import StrandlineError
from strandline.telemetry import Telemetry


class AdmissionPort(Protocol):
    """How full the broker is."""

    @property
    def pending_bytes(self) -> int:
        """Bytes accepted and not yet stored."""
        ...

    def reject(
        self, error: StrandlineError, ack_sink: AckSink | None, token: object, *, stream: str
    ) -> None:
        """Refuse a record: count it, and tell the responder or else the log."""
        ...


class BrokerPort(Protocol):
    """The broker, as far as this front end goes."""

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The metadata as it is now."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether the rules and tokens of the metadata may still be acted upon."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Counters."""
        ...

    @property
    def admission(self) -> AdmissionPort:
        """How full it is."""
        ...

    @property
    def is_controller(self) -> bool:
        """Whether this broker decides who leads what, and so is the first to know it."""
        ...

    async def quiesce(self) -> None:
        """Wait until every accepted record is answered."""
        ...

    def streams(self) -> Sequence[StreamPort]:
        """All streams."""
        ...

    def on_streams_changed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after streams were created or deleted."""
        ...

    def on_stream_created(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await ``callback`` before a creation is answered."""
        ...

    def on_creating_stream(self, check: Callable[[StreamConfig], Awaitable[None]]) -> None:
        """Await a check before a stream is created; what it raises refuses the creation."""
        ...

    def reads(self, ack_sink: AckSink) -> None:
        """The loop itself reads what publishers send over a connection."""
        ...

    def on_answered(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when responders were told something, and after each turn."""
        ...
