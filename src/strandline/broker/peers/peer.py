"""One peer: connects to it, keeps the session with it, and notifies the link's owner of changes.

Rules: there is one connection attempt at a time, and always one while there is no outgoing
connection. The session decides; this module executes. Callbacks run on the loop, never inside a
call of the owner.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypedDict, cast

from strandline.broker.peers.backoff import ReconnectBackoff
from strandline.broker.peers.connection import Incoming, Outgoing, PeerConnection, describe
from strandline.broker.peers.frame import Data, Frame
from strandline.broker.peers.handshake import PeerIdentity
from strandline.broker.peers.limits import LinkLimits
from strandline.broker.peers.session import Back, Close, Effect, Lost, PeerSession
from strandline.types import BrokerId

logger = logging.getLogger(__name__)


class Address(NamedTuple):
    """The address at which a broker listens for its peers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PeerEvents(Protocol):
    """The callbacks of a link's owner; for each peer: back, frames, lost, back, and so on.

    They must not raise: an exception is a bug, which is logged and ends the connection.
    """

    def on_frame(self, peer: BrokerId, frame: Frame) -> None:
        """Handle a frame; frames arrive in the order sent."""
        ...

    def on_peer_back(self, peer: BrokerId) -> None:
        """Handle that the peer is connected: frames pass in both directions."""
        ...

    def on_peer_lost(self, peer: BrokerId) -> None:
        """Handle that the peer is disconnected: frames may be lost in both directions."""
        ...


class Peer:
    """The session with one broker, and the connection attempts that keep it.

    Args:
        broker: the peer's id.
        address: the peer's address.
        me: this broker.
        limits: sizes and timeouts.
        events: the callbacks of the link's owner.
        tls: None for plain TCP.
        rng: randomizes the waits between attempts.
        on_begin: called for each connection that this broker opened.
        on_end: called for each connection that ended; it must call ``ended``.
    """

    def __init__(
        self,
        broker: BrokerId,
        address: Address,
        *,
        me: PeerIdentity,
        limits: LinkLimits,
        events: PeerEvents,
        tls: ssl.SSLContext | None,
        rng: random.Random,
        on_begin: Callable[[PeerConnection], None],
        on_end: Callable[[PeerConnection], None],
    ) -> None:
        self.broker = broker
        self.address = address
        self._me = me
        self._limits = limits
        self._events = events
        self._tls = tls
        self._rng = rng
        self._on_begin = on_begin
        self._on_end = on_end
        self._session = PeerSession()
        self._backoff = ReconnectBackoff(limits.backoff_min_s, limits.backoff_max_s)
        self._out: Outgoing | None = None
        self._in: Incoming | None = None
        self._is_retired = False
        self._logged = (logging.NOTSET, "")
        self._quiet_until_s = 0.0
        self._up_since_s = 0.0
        self._lasted_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the peer is up, so that frames are exchanged."""
        return self._session.is_up

    @property
    def queued_bytes(self) -> int:
        """The number of bytes that the peer has not accepted yet."""
        return self._out.queued_bytes if self._out is not None else 0

    def send(self, buffers: list[Data]) -> bool:
        """Queue a frame; False if the peer is disconnected."""
        return self._session.is_up and self._out is not None and self._out.send(buffers)

    def flush(self) -> None:
        """Write the queue to the socket now, instead of in the loop's next round."""
        if self._out is not None:
            self._out.flush()

    def retire(self) -> None:
        """End the callbacks to the owner."""
        self._is_retired = True

    def hang_up(self, reason: str) -> None:
        """Close the outgoing connection, and so end the session; ``run`` connects again."""
        if self._out is not None:
            self._out.abort(reason)

    async def run(self) -> None:
        """Connect, and reconnect whenever the connection ends, until cancelled."""
        self._quiet_until_s = asyncio.get_running_loop().time() + self._limits.patience_s
        while True:
            self._lasted_s = 0.0
            self._log_reason(await self._call())
            wait_s = self._backoff.next_s(self._rng.random(), lasted_s=self._lasted_s)
            await asyncio.sleep(wait_s)

    async def _call(self) -> str:
        """Connect and stay connected; return the reason of the end."""
        loop = asyncio.get_running_loop()
        host, port = self.address
        timeout_s = self._limits.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection: Outgoing
                _, connection = await loop.create_connection(
                    self._make_outgoing,
                    host,
                    port,
                    ssl=self._tls,
                    **tls_times(self._limits, self._tls),
                )
        except TimeoutError:
            return f"no connection within {timeout_s:g} s"
        except OSError as error:
            return describe(error)
        # Not `await connection.closed`: cancelling this task would cancel the future, too.
        await asyncio.wait([connection.closed])
        return connection.closed.result()

    def _make_outgoing(self) -> Outgoing:
        return Outgoing(
            self._limits,
            me=self._me,
            to=self.broker,
            on_answer=self._answered,
            on_begin=self._on_begin,
            on_end=self._on_end,
        )

    # Connection events

    def _answered(self, connection: Outgoing) -> None:
        """Handle that the peer accepted this broker's connection."""
        self._out = connection
        self._carry_out(self._session.opened("out", connection), "it was started anew")

    def called(self, connection: Incoming) -> None:
        """Handle that the peer connected and was accepted."""
        self._in = connection
        self._carry_out(self._session.opened("in", connection), "it called anew")

    def ended(self, connection: PeerConnection) -> None:
        """Handle the end of a connection with this peer, perhaps of an earlier session."""
        if connection is self._out:
            self._out = None
        if connection is self._in:
            self._in = None
        self._carry_out(self._session.closed(connection), connection.closed.result())

    def _carry_out(self, effects: list[Effect], reason: str) -> None:
        for effect in effects:
            if self._is_retired and not isinstance(effect, Close):
                continue
            match effect:
                case Close(half):
                    cast("PeerConnection", half).abort(reason)
                case Lost():
                    self._lost()
                case Back():
                    self._back()

    def _back(self) -> None:
        assert self._in is not None, "the session has both connections"
        self._logged, self._quiet_until_s = (logging.NOTSET, ""), 0.0
        self._up_since_s = asyncio.get_running_loop().time()
        logger.info("broker %d is connected, at %s", self.broker, self.address)
        self._events.on_peer_back(self.broker)
        self._in.release()

    def _lost(self) -> None:
        self._lasted_s = asyncio.get_running_loop().time() - self._up_since_s
        self._events.on_peer_lost(self.broker)

    def _log_reason(self, reason: str) -> None:
        """Log why there is no connection: each reason once, not at each attempt."""
        is_early = asyncio.get_running_loop().time() < self._quiet_until_s
        entry = (logging.INFO if is_early else logging.WARNING, reason)
        if entry != self._logged:
            self._logged = entry
            logger.log(
                entry[0], "no link to broker %d at %s: %s", self.broker, self.address, reason
            )


class TlsTimes(TypedDict):
    """The TLS timeouts for asyncio, which must be None without TLS."""

    ssl_handshake_timeout: float | None
    ssl_shutdown_timeout: float | None


def tls_times(limits: LinkLimits, tls: ssl.SSLContext | None) -> TlsTimes:
    """Return the timeouts of TLS."""
    return TlsTimes(
        ssl_handshake_timeout=limits.handshake_timeout_s if tls else None,
        ssl_shutdown_timeout=limits.close_timeout_s if tls else None,
    )
