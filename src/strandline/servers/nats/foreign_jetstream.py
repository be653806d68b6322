"""Detection of external JetStream streams that acknowledge publishes to this broker's streams.

If a JetStream stream covers a subject of a stream here, both acknowledge a publish. The client uses
the first ack. That is often JetStream's, which says nothing about the record here. So the creation
of such a stream with ``pub_ack`` is rejected, and a stream that JetStream covers later is counted
and logged.

Rules: a server that does not answer blocks nothing: it is asked again over the next connection.
Without JetStream there are no responders. A stream with ``no_ack`` acknowledges nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from strandline.broker.internal import is_internal
from strandline.broker.log_throttle import LogThrottle
from strandline.broker.routing import StreamPort, subject_patterns
from strandline.clock import Clock
from strandline.config import StreamConfig
from strandline.errors import UNDECODABLE, DisconnectedError, InvalidRequestError
from strandline.record.subjects import subjects_overlap
from strandline.servers.nats.nats_connection import NatsConnection
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

NAMES: Final = b"$JS.API.STREAM.NAMES"
INFO: Final = "$JS.API.STREAM.INFO."
ADVISORIES: Final = b"$JS.EVENT.ADVISORY.STREAM.>"
"""The subject on which JetStream announces created, changed and deleted streams."""
REQUEST_TIMEOUT_S: Final = 1.0
SETTLE_S: Final = 0.5
"""How long to wait for further changes before JetStream's streams are checked again."""


AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class _Names(msgspec.Struct, frozen=True):
    streams: list[str] | None = None


class _Settings(msgspec.Struct, frozen=True):
    subjects: list[str] | None = None
    no_ack: bool = False


class _Info(msgspec.Struct, frozen=True):
    config: _Settings = _Settings()


class ForeignJetStreamWatch:
    """A watch for JetStream streams that cover subjects of streams here; loop thread.

    Args:
        streams: returns this broker's streams.
        telemetry: counts covered streams.
        clock: throttles warnings.
    """

    def __init__(
        self, streams: Callable[[], Sequence[StreamPort]], telemetry: Telemetry, clock: Clock
    ) -> None:
        self._streams = streams
        self._telemetry = telemetry
        self._clock = clock
        self._throttle = LogThrottle()
        self._link: NatsConnection | None = None
        """The connection; None without one, or if the server has not answered over it."""
        self._changed = asyncio.Event()

    async def run(self, link: NatsConnection) -> None:
        """Watch over one connection, until cancelled or until there is known to be no JetStream.

        Args:
            link: a new connection.
        """
        self._link = link
        try:
            if await self._ask(NAMES, {}) is None:
                self._telemetry.jetstream_covered_streams = 0
                return
            link.listen(ADVISORIES, self._changed.set)
            while True:
                self._changed.clear()
                await self._check_all()
                await self._changed.wait()
                await asyncio.sleep(SETTLE_S)
        except (TimeoutError, DisconnectedError):
            self._link = None
            logger.info(
                "nats-server does not say whether its JetStream covers subjects of streams here"
            )

    def disconnected(self) -> None:
        """Ask nothing until the next connection."""
        self._link = None

    async def check_creation(self, config: StreamConfig) -> None:
        """Reject a new stream if JetStream would acknowledge its publishes.

        Raises:
            InvalidRequestError: a JetStream stream covers the new stream's subject.
        """
        if self._link is None or not _answers(config):
            return
        try:
            name = await self._covering(config)
        except (TimeoutError, DisconnectedError):
            self._link = None
            return
        if name is not None:
            raise InvalidRequestError(
                f"stream {name!r} of JetStream, on the nats-server that publishers use, covers "
                f"subject {config.subject!r} and would acknowledge its publishes before they are "
                "stored here: set pub_ack to false (--no-pub-ack), or choose another subject"
            )

    async def _check_all(self) -> None:
        """Count and log the streams here whose publishes JetStream acknowledges."""
        count = 0
        for stream in self._streams():
            config = stream.config
            name = await self._covering(config) if _answers(config) else None
            if name is None:
                self._throttle.forget(config.name)
                continue
            count += 1
            if self._throttle.is_due(config.name, self._clock.monotonic_ms() / 1e3):
                logger.warning(
                    "stream %r of JetStream covers the subject of stream %s and acknowledges its "
                    "publishes: such an ack does not mean that a record is stored here. Give "
                    "JetStream's stream another subject or no_ack, or make this one again with "
                    "pub_ack off",
                    name,
                    config.name,
                )
        self._telemetry.jetstream_covered_streams = count

    async def _covering(self, config: StreamConfig) -> str | None:
        """Return the name of a JetStream stream that acknowledges publishes to a stream here.

        Raises:
            TimeoutError, DisconnectedError: the server did not answer.
        """
        patterns = subject_patterns(config)
        filters = [config.subject]
        if len(patterns) > 1:
            filters.append(f"{config.subject}.*")
        found: set[str] = set()
        for each in filters:
            answer = await self._ask(NAMES, {"subject": each})
            found.update(_decoded(answer, _Names()).streams or ())
        for name in sorted(found):
            answer = await self._ask(f"{INFO}{name}".encode(), {})
            settings = _decoded(answer, _Info()).config
            if settings.no_ack:
                continue
            theirs = settings.subjects or [config.subject]
            if any(subjects_overlap(ours, each) for each in theirs for ours in patterns):
                return name
        return None

    async def _ask(self, subject: bytes, question: dict[str, str]) -> bytes | None:
        """Return JetStream's answer to a request; None without JetStream.

        Raises:
            TimeoutError, DisconnectedError: the server did not answer.
        """
        if self._link is None:
            raise DisconnectedError("not connected to nats-server")
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await self._link.request(subject, msgspec.json.encode(question))


def _answers(config: StreamConfig) -> bool:
    return config.pub_ack and not is_internal(config.name)


def _decoded(answer: bytes | None, nothing: AnswerT) -> AnswerT:
    """Return the decoded answer; ``nothing`` if there is none or it is an error."""
    if answer is None:
        return nothing
    try:
        return msgspec.json.decode(answer, type=type(nothing))
    except UNDECODABLE as error:
        logger.warning("cannot decode an answer of JetStream: %s", error)
        return nothing
