"""The clients of Arrow Flight through which the console asks its broker, one for each token.

Rules: a client is connected on first use, and closed when unused for long or when there are too
many.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from strandline.client.client import Client
from strandline.client.tls import Credentials
from strandline.clock import Clock
from strandline.config import BrokerConfig, bracketed

CLIENTS_MAX: Final = 16
IDLE_MS: Final = 10 * 60_000.0
TIMEOUT_S: Final = 8.0
"""The timeout of a call: a page that shows an error is better than no page."""
ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - replaced, not bound


class Reached(Protocol):
    """The part of a broker that a client needs to reach it."""

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings."""
        ...

    @property
    def clock(self) -> Clock:
        """The source of time."""
        ...

    @property
    def flight_address(self) -> str:
        """The broker's Flight address in a cluster; empty for a broker alone."""
        ...


class HeldClient(NamedTuple):
    """A client and the time of its last use."""

    client: Client
    used_ms: float


class ClientPool:
    """Clients by token; any thread.

    Args:
        broker: the broker to connect to.
        flight_port: returns the port of the broker's Arrow Flight.
    """

    def __init__(self, broker: Reached, flight_port: Callable[[], int]) -> None:
        self._broker = broker
        self._flight_port = flight_port
        self._lock = threading.Lock()
        self._held: OrderedDict[str, HeldClient] = OrderedDict()

    def of(self, token: str) -> Client:
        """Return the client that sends this token; an empty token means none.

        Raises:
            StrandlineError: a certificate cannot be read.
        """
        now_ms = self._broker.clock.monotonic_ms()
        with self._lock:
            found = self._held.pop(token, None)
            client = found.client if found is not None else self._connect(token)
            self._held[token] = HeldClient(client, now_ms)
            ended = self._take_unused(now_ms)
        for each in ended:
            each.abandon()
        return client

    def close(self) -> None:
        """Close every client."""
        with self._lock:
            held, self._held = list(self._held.values()), OrderedDict()
        for each in held:
            each.client.abandon()

    def _take_unused(self, now_ms: float) -> list[Client]:
        ended = []
        while self._held:
            token, oldest = next(iter(self._held.items()))
            if len(self._held) <= CLIENTS_MAX and now_ms - oldest.used_ms < IDLE_MS:
                break
            ended.append(self._held.pop(token).client)
        return ended

    def _connect(self, token: str) -> Client:
        config = self._broker.config
        host = bracketed(ANY_ADDRESS.get(config.host, config.host))
        address = self._broker.flight_address or f"{host}:{self._flight_port()}"
        tls = config.tls
        if not tls.is_on:
            credentials = Credentials(token=token)
            return Client(f"grpc://{address}", timeout_s=TIMEOUT_S, credentials=credentials)
        # Without an authority, trust the broker's own certificate.
        authority = tls.authority or config.cluster.tls_authority or tls.certificate
        credentials = Credentials(authority, tls.certificate, tls.key, token)
        return Client(f"tls://{address}", timeout_s=TIMEOUT_S, credentials=credentials)
