"""The connections of the Flight listener, which gRPC accepts by itself and without a limit.

A thread checks them every ``LOOK_S`` seconds, and more often while there are too many. It closes
those whose client has not made a permitted call within ``IDENTIFY_S``. When the broker has too many
connections, it also closes idle ones, least recently used first; clients reconnect when they need
to.

Rules: only connected sockets of this process whose local port is the listener's are touched.
"""

import ipaddress
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow.flight as fl

from strandline.api.monitoring import ConnectionInfo
from strandline.broker.log_throttle import LogThrottle
from strandline.clock import Clock
from strandline.config import bracketed
from strandline.errors import DisconnectedError
from strandline.servers.connections import ConnectionLimit
from strandline.servers.flight.sockets import PeerAddress, cut_connections, peers_of

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
FLOODED_LOOK_S: Final = 0.1
IDENTIFY_S: Final = 10.0


@dataclass(slots=True)
class _ClientConnection:
    """A connection of a client and its use."""

    since_ms: float
    """The time when the connection was seen first, or was last used."""
    is_known: bool = False
    """Whether a call on the connection was permitted."""
    calls: int = 0
    """The number of calls in progress."""
    calls_made: int = 0
    principal: str = ""
    """The principal of the last call."""


class FlightConnections:
    """A supervisor of one listener's connections; any thread.

    Args:
        clock: measures how long connections are idle.
        limit: the limit for all listeners of the broker together.
    """

    def __init__(self, clock: Clock, limit: ConnectionLimit) -> None:
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._notice = LogThrottle()
        self._clients: dict[PeerAddress, _ClientConnection] = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        """Start supervising the listener on ``port``."""
        self._thread = threading.Thread(
            target=self._run, args=(port,), name="flight-connections", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop supervising."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._limit.note_flight(0)

    def note_call(self, context: fl.ServerCallContext, principal: str = "") -> None:
        """Record that a client has made a permitted call."""
        with self._lock:
            client = self._client(context)
            client.is_known, client.since_ms = True, self._clock.monotonic_ms()
            client.principal = principal
            client.calls_made += 1

    def clients(self) -> list[ConnectionInfo]:
        """Return the clients of all listeners."""
        with self._lock:
            ours = [
                ConnectionInfo(
                    listener="flight",
                    address=f"{bracketed(peer.host)}:{peer.port}",
                    principal=client.principal,
                    messages=client.calls_made,
                )
                for peer, client in self._clients.items()
            ]
        return ours + self._limit.clients()

    @contextmanager
    def call(self, context: fl.ServerCallContext) -> Iterator[None]:
        """Mark the client's connection as in use for the duration of the context."""
        with self._lock:
            client = self._client(context)
            client.calls += 1
        try:
            yield
        finally:
            with self._lock:
                client.calls -= 1
                client.since_ms = self._clock.monotonic_ms()

    def _client(self, context: fl.ServerCallContext) -> _ClientConnection:
        address = _parsed(context.peer())
        return self._clients.setdefault(address, _ClientConnection(self._clock.monotonic_ms()))

    def _run(self, port: int) -> None:
        pause_s = LOOK_S
        while not self._is_over.wait(pause_s):
            try:
                pause_s = FLOODED_LOOK_S if self.look(port) else LOOK_S
            except Exception:
                logger.exception("checking the connections of Arrow Flight failed")

    def look(self, port: int) -> bool:
        """Close unidentified and surplus connections; return whether there were too many."""
        peers = peers_of(port)
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            for peer in peers:
                self._clients.setdefault(peer, _ClientConnection(now_ms))
            for gone in self._clients.keys() - peers:
                if not self._clients[gone].calls:
                    del self._clients[gone]
            self._limit.note_flight(len(peers))
            is_flooded = self._limit.excess > 0
            doomed = self._doomed(now_ms)
        if doomed:
            cut = cut_connections(port, doomed)
            if self._notice.is_due("ended", now_ms / 1e3):
                logger.info("closed %d idle connections of Arrow Flight", cut)
            self._limit.note_flight(len(peers) - cut)
        return is_flooded

    def _doomed(self, now_ms: float) -> set[PeerAddress]:
        """Return the connections to close: unidentified for too long, or idle above the limit."""
        oldest_ms = now_ms - IDENTIFY_S * 1e3
        idle = {peer: c for peer, c in self._clients.items() if not c.calls}
        doomed = {p for p, c in idle.items() if not c.is_known and c.since_ms <= oldest_ms}
        order = sorted(idle, key=lambda peer: (idle[peer].is_known, idle[peer].since_ms))
        more = max(0, self._limit.excess - len(doomed))
        return doomed | set([peer for peer in order if peer not in doomed][:more])


def _parsed(peer: str) -> PeerAddress:
    """Parse gRPC's notation of a client's address, such as ``ipv4:127.0.0.1:50000``.

    Raises:
        DisconnectedError: the client has disconnected, so gRPC no longer knows its address.
    """
    _, _, place = unquote(peer).partition(":")
    host, _, port = place.rpartition(":")
    if not host:
        raise DisconnectedError("the client has closed its connection")
    address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return PeerAddress(str(mapped or address), int(port))
