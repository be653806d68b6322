"""The peer link: frames to and from the other brokers of a cluster.

Rules: one event loop, no threads; every method is called on the loop. ``send`` never waits and
never calls back. Between ``on_peer_back`` and ``on_peer_lost`` frames arrive in order and without
gaps, in both directions; whenever a frame may be missing, both brokers get ``on_peer_lost``. The
link repeats no frames: the cores do, since they know which are still needed.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Sequence

from strandline.broker.log_throttle import LogThrottle
from strandline.broker.peers.connection import Incoming, Outgoing, PeerConnection
from strandline.broker.peers.errors import HandshakeError
from strandline.broker.peers.frame import Data, Frame, encode_frame
from strandline.broker.peers.handshake import HANDSHAKE_CHANNEL, Hello, PeerIdentity, accept_hello
from strandline.broker.peers.limits import LinkLimits
from strandline.broker.peers.peer import Address, Peer, PeerEvents, tls_times
from strandline.broker.peers.tls import TlsFiles, calling_context, listening_context, load
from strandline.errors import UnavailableError
from strandline.types import BrokerId

logger = logging.getLogger(__name__)


class PeerLinks:
    """The links of one broker.

    Args:
        me: this broker.
        events: called on the loop.
        listen: the address for peers; port 0 selects a free one.
        admits: raises ``HandshakeError`` for a known peer that must be rejected.
        tls: files for mutual TLS; None for plain TCP.
        limits: sizes and timeouts.
        rng: randomizes the waits between attempts; tests pass a seeded one.

    Raises:
        InvalidConfigError: the TLS files cannot be used.
    """

    def __init__(
        self,
        me: PeerIdentity,
        events: PeerEvents,
        *,
        listen: Address = Address("127.0.0.1", 0),  # noqa: B008  immutable
        admits: Callable[[Hello], None] | None = None,
        tls: TlsFiles | None = None,
        limits: LinkLimits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.me = me
        self._events = events
        self._listen = listen
        self._admits = admits
        self._tls = tls
        self._accepting = listening_context(tls) if tls is not None else None
        self._calling = calling_context(tls) if tls is not None else None
        self._limits = limits or LinkLimits()
        self._rng = rng or secrets.SystemRandom()
        self._server: asyncio.Server | None = None
        self._peers: dict[BrokerId, Peer] = {}
        self._calls: dict[BrokerId, asyncio.Task[None]] = {}
        self._connections: set[PeerConnection] = set()
        self._strangers: dict[PeerConnection, None] = {}
        self._rejections = LogThrottle()
        self.port = 0
        """The port that it listens on, once started."""

    # Start and stop

    def renew_tls(self) -> None:
        """Reload the certificate files, for new connections.

        Raises:
            InvalidConfigError: a file cannot be used; nothing changed.
        """
        if self._tls is None or self._accepting is None or self._calling is None:
            return
        listening_context(self._tls)  # test the files first: loading a half-changed pair is harmful
        load(self._accepting, self._tls)
        load(self._calling, self._tls)

    async def start(self) -> None:
        """Listen, and connect to the peers added so far.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._make_incoming,
                self._listen.host,
                self._listen.port,
                ssl=self._accepting,
                **tls_times(self._limits, self._accepting),
            )
        except OSError as error:
            raise UnavailableError(f"cannot listen for peers on {self._listen}: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        for peer in self._peers.values():
            self._call(peer)

    async def stop(self) -> None:
        """Send queued frames and close all connections; no callbacks from now on."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        calls = list(self._calls.values())
        up = {broker for broker, peer in self._peers.items() if peer.is_up}
        for broker in list(self._peers):
            self._retire(broker)
        await asyncio.gather(*calls, return_exceptions=True)
        for connection in list(self._connections):
            if isinstance(connection, Outgoing):
                connection.finish("this broker stops")
            elif connection.peer not in up:
                connection.close("this broker stops")
            # A connection opened by a peer that is up stays open until the peer ends it, which it
            # does after our last frame. If it were closed now, the peer would end its session too
            # early.
        await self._all_closed()
        for connection in list(self._connections):
            connection.abort("this broker stops")
        await self._all_closed()

    async def _all_closed(self) -> None:
        """Wait for a limited time until all connections have ended."""
        closing = [each.closed for each in self._connections]
        if closing:
            await asyncio.wait(closing, timeout=self._limits.close_timeout_s)

    # Peers

    def add_peer(self, broker: BrokerId, address: Address) -> None:
        """Connect to a broker, after ``start``; a new address replaces the old one."""
        assert broker != self.me.broker_id, "a broker is no peer of its own"
        known = self._peers.get(broker)
        if known is not None:
            if known.address != address:
                known.address = address
                known.hang_up(f"broker {broker} moved to {address}")
            return
        peer = Peer(
            broker,
            address,
            me=self.me,
            limits=self._limits,
            events=self._events,
            tls=self._calling,
            rng=self._rng,
            on_begin=self._begun,
            on_end=self._ended,
        )
        self._peers[broker] = peer
        if self._server is not None:
            self._call(peer)

    def remove_peer(self, broker: BrokerId) -> None:
        """Forget a broker: close its connections, and send no more callbacks about it."""
        if broker in self._peers:
            self._retire(broker)
        for connection in self._connections:
            if connection.peer == broker:
                connection.abort(f"broker {broker} was removed")

    def _call(self, peer: Peer) -> None:
        call = asyncio.create_task(peer.run(), name=f"peer-{peer.broker}")
        call.add_done_callback(_report)
        self._calls[peer.broker] = call

    def _retire(self, broker: BrokerId) -> None:
        self._peers.pop(broker).retire()
        call = self._calls.pop(broker, None)
        if call is not None:
            call.cancel()

    def is_up(self, broker: BrokerId) -> bool:
        """Whether the link to a broker is up, so that frames are exchanged."""
        peer = self._peers.get(broker)
        return peer is not None and peer.is_up

    def queued_bytes(self, broker: BrokerId) -> int:
        """Return the bytes that wait to be sent to the broker."""
        peer = self._peers.get(broker)
        return peer.queued_bytes if peer is not None else 0

    # Frames

    def send(
        self, broker: BrokerId, channel: int, header: bytes, *, attachments: Sequence[Data] = ()
    ) -> bool:
        """Queue a frame for a broker; return at once.

        Args:
            broker: the receiver.
            channel: 1 to 255; its meaning is defined by the caller.
            header: not interpreted by the link.
            attachments: not copied, so they must not change while the peer is up.

        Returns:
            False if the broker is disconnected, and the frame was dropped: ``on_peer_back`` will
            follow. True means only that ``on_peer_lost`` was not called yet; the frame may still be
            lost.
        """
        assert HANDSHAKE_CHANNEL < channel <= 0xFF, "channels are one byte, and 0 is ours"
        assert len(attachments) <= self._limits.attachments_max, "the caller keeps to the limit"
        peer = self._peers.get(broker)
        if peer is None or not peer.is_up:
            return False
        return peer.send(encode_frame(channel, header, attachments))

    def flush(self) -> None:
        """Send queued frames now, because the caller is about to block the loop."""
        for peer in self._peers.values():
            peer.flush()

    # Connections

    def _make_incoming(self) -> Incoming:
        return Incoming(
            self._limits,
            on_frame=self._on_frame,
            on_hello=self._on_hello,
            on_begin=self._begun,
            on_end=self._ended,
        )

    def _begun(self, connection: PeerConnection) -> None:
        self._connections.add(connection)
        if isinstance(connection, Outgoing):
            return
        self._strangers[connection] = None
        if len(self._strangers) > self._limits.strangers_max:
            # Close the oldest: a handshake takes milliseconds, and strangers must not block peers.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort("too many connections that do not say who they are")

    def _on_hello(self, connection: Incoming, frame: Frame) -> None:
        """Accept a peer, or reject it with the reason."""
        self._strangers.pop(connection, None)
        try:
            hello = accept_hello(frame, self.me, self._peers, certified=connection.certified())
            if self._admits is not None:
                self._admits(hello)
        except HandshakeError as error:
            # Throttled: a rejected peer tries again each second.
            if self._rejections.is_due(str(error), asyncio.get_running_loop().time()):
                logger.warning("rejected a connection: %s", error)
            connection.reject(error)
            return
        connection.accept(hello, self.me)
        self._peers[BrokerId(hello.broker_id)].called(connection)

    def _on_frame(self, broker: BrokerId, frame: Frame) -> None:
        if broker in self._peers:
            self._events.on_frame(broker, frame)

    def _ended(self, connection: PeerConnection) -> None:
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        peer = self._peers.get(connection.peer) if connection.peer is not None else None
        if peer is not None:
            peer.ended(connection)


def _report(call: "asyncio.Task[None]") -> None:
    if not call.cancelled() and call.exception() is not None:
        logger.critical("task %s died, please report", call.get_name(), exc_info=call.exception())
