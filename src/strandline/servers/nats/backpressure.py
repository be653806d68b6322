"""Connections of NATS with an output queue, and the reasons for which they stop reading.

Rules: output is queued, and written once per group commit or once per read. A connection stops
reading while the peer does not read its replies, and while too many bytes wait to be stored. Input
gets a share of each round of the loop (``round_budget``), however many messages it contains.
Nothing here blocks or interprets messages.
"""

import asyncio
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, cast

from strandline.api.monitoring import ConnectionInfo
from strandline.servers.connections import address_text
from strandline.servers.nats.protocol import Event, Parser
from strandline.servers.round_budget import PIECES_MAX, SPENT, RoundBudget
from strandline.types import Offset, PartitionName

OUTPUT_BYTES_MAX: Final = 1 << 20
"""The size of unread replies above which the connection stops reading."""
OVERLOAD: Final = "overload"
"""The reason to stop reading when the broker has too much to store."""
FORWARDING: Final = "forwarding"
"""The reason to stop reading when publishes wait for other brokers."""
QUOTA: Final = "quota"
"""The reason to stop reading when the principal's quota is used up."""
ROUND: Final = "round"
"""The reason to stop reading when input has used its share of the loop's round."""
SLICE_S: Final = 0.004
ROUND_S: Final = 0.008
"""Time in a round, for one connection and for all. With less, a group commit has fewer records."""
HIGH_WATER: Final = 0.5
LOW_WATER: Final = 0.25
"""Shares of ``limits.pending_bytes`` at which reading stops and resumes."""


class _NoTransport(asyncio.Transport):
    """A placeholder for the transport until the connection is made."""

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


NO_TRANSPORT: Final[asyncio.Transport] = _NoTransport()


class Reading(Protocol):
    """A source of messages whose reading can be paused."""

    def hold_reading(self, why: str) -> None:
        """Stop reading for a reason, until ``release_reading`` is called with the same reason."""
        ...

    def release_reading(self, why: str) -> None:
        """End a reason to stop; resume reading unless another reason remains."""
        ...


AckedRun = tuple[PartitionName, Offset, Sequence[bytes | None]]
"""Acks of consecutive records: their partition, the first offset, and each record's reply subject.

A reply subject is None if the publisher asked for no ack.
"""


class NatsPeer(asyncio.Protocol):
    """One end of a NATS connection, with an output queue."""

    def __init__(self) -> None:
        self.is_open = False
        self.output: list[bytes] = []
        self.acks: list[AckedRun] = []
        """Acks to send; ``flush`` encodes all of them in one call."""
        self._transport = NO_TRANSPORT
        self._held_for: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, now that the connection is made."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Drop the queued output."""
        self.is_open = False
        self.acks.clear()
        self.output.clear()

    async def start_tls(
        self, context: ssl.SSLContext, *, server_name: str | None = None, timeout_s: float
    ) -> None:
        """Start TLS as NATS does: after the first line, before anything else.

        Args:
            context: the certificate to present and the authorities to trust.
            server_name: the server's name; None if this end is the server.
            timeout_s: the limit of the handshake.

        Raises:
            OSError, TimeoutError: the handshake failed; the connection is closed.
        """
        is_server = server_name is None
        transport = await asyncio.get_running_loop().start_tls(
            self._transport,
            self,
            context,
            server_side=is_server,
            server_hostname=server_name,
            ssl_handshake_timeout=timeout_s,
        )
        if transport is None:
            raise ConnectionAbortedError("the connection was closed during the TLS handshake")
        self._transport = transport
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        if self._held_for and self._is_alive():
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Stop reading, because the peer does not read its replies."""
        self.hold_reading("output")

    def resume_writing(self) -> None:
        """Resume reading, because the peer has caught up."""
        self.release_reading("output")

    def hold_reading(self, why: str) -> None:
        """Stop reading for a reason, until ``release_reading`` is called with the same reason."""
        if not self._held_for and self._is_alive():
            self._transport.pause_reading()
        self._held_for.add(why)

    def release_reading(self, why: str) -> None:
        """End a reason to stop; resume reading unless another reason remains."""
        if why not in self._held_for:
            return
        self._held_for.discard(why)
        if not self._held_for and self._is_alive():
            self._transport.resume_reading()

    def _is_alive(self) -> bool:
        """Return whether the transport may be used: a closing one would raise."""
        return self.is_open and not self._transport.is_closing()

    def is_held(self, why: str) -> bool:
        """Return whether reading has stopped for this reason."""
        return why in self._held_for

    def write(self, data: bytes) -> None:
        """Write at once, ahead of the queued output."""
        if self.is_open:
            self._transport.write(data)

    def flush(self) -> None:
        """Write queued output."""
        if self.is_open:
            if self.acks:
                self.output.append(self._ack_lines(self.acks))
            if data := b"".join(self.output):
                self._transport.write(data)
        self.acks.clear()
        self.output.clear()

    def _ack_lines(self, acks: Sequence[AckedRun]) -> bytes:
        """Return the protocol lines of acks; connections that acknowledge publishes override it."""
        raise NotImplementedError

    def close(self) -> None:
        """Write queued output and close."""
        self.flush()
        self.is_open = False
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        self._transport.abort()


class MessageReader(NatsPeer):
    """A connection that parses its input for a share of each round of the loop.

    Args:
        parser: parses the input.
        budget: the time for all connections of the listener.
    """

    def __init__(self, parser: Parser, budget: RoundBudget) -> None:
        super().__init__()
        self.parser = parser
        self._budget = budget
        self._received: deque[bytes] = deque()
        self._is_deferred = False
        self.principal = ""
        """The principal of the client; empty if access is not checked."""
        self.message_count = 0
        """The number of messages received so far."""

    def client_info(self) -> ConnectionInfo:
        """Return the client's address and principal; any thread."""
        return ConnectionInfo(
            listener="ingest",
            address=address_text(self._transport),
            principal=self.principal,
            messages=self.message_count,
        )

    def data_received(self, data: bytes) -> None:
        """Parse and handle input, now or in later rounds."""
        budget = self._budget
        if self._is_deferred:
            self._keep(data)
        elif budget.unclocked <= 0 and budget.slice_end() == SPENT:
            self._keep(data)
            self._defer()
        elif self.is_open:
            # Most reads are small: one look at the clock serves several of them.
            events = self.parser.feed(data, PIECES_MAX)
            budget.unclocked -= len(events) + 1
            self._take(events)
            if self.parser.unparsed is not None:
                self._read_on(len(data))
            else:
                self._taken(len(data))

    def _keep(self, data: bytes) -> None:
        """Keep input for a later round of the loop."""
        self._received.append(data)

    def _read_on(self, size: int = 0) -> None:
        """Handle kept input until this round's share is used up.

        Args:
            size: the number of bytes that the parser has got already.
        """
        self._is_deferred = False
        loop = asyncio.get_running_loop()
        end_s = self._budget.slice_end()
        now_s = loop.time() if size else SPENT  # without events so far, handle at least one piece
        while self.is_open and (self._received or self.parser.unparsed is not None):
            if now_s >= end_s:
                self._defer()
                break
            if self.parser.unparsed is not None:
                events = self.parser.resume(PIECES_MAX)
            else:
                size += len(data := self._received.popleft())
                events = self.parser.feed(data, PIECES_MAX)
            self._take(events)
            now_s = loop.time()
        else:
            self.release_reading(ROUND)
        self._taken(size)

    def _defer(self) -> None:
        self._is_deferred = True
        self.hold_reading(ROUND)
        self._budget.defer(self._read_on)

    @abstractmethod
    def _take(self, events: Sequence[Event]) -> None:
        """Handle events."""

    @abstractmethod
    def _taken(self, size: int) -> None:
        """Follow up on the events of ``size`` bytes: write answers, count, stop reading."""


class Backpressure:
    """A pause in reading while too much is pending, shared by all connections.

    Args:
        pending_max: the limit, such as ``limits.pending_bytes``.
        reason: the reason that is passed to ``hold_reading``.
    """

    def __init__(self, pending_max: float, reason: str = OVERLOAD) -> None:
        self.pending_high = pending_max * HIGH_WATER
        self._pending_low = pending_max * LOW_WATER
        self._reason = reason
        self._held: set[Reading] = set()

    def hold(self, peer: Reading) -> None:
        """Stop reading a connection until there is room."""
        peer.hold_reading(self._reason)
        self._held.add(peer)

    def release(self, pending: float) -> None:
        """Resume reading if ``pending`` is low enough."""
        if self._held and pending <= self._pending_low:
            held, self._held = self._held, set()
            for peer in held:
                peer.release_reading(self._reason)
