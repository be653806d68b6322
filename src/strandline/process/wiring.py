"""Construction of a broker and its servers, and the order in which they start and stop.

Start: broker first, listeners last, so that no client reaches a broker that is half started. Stop:
    listeners first, broker last, so that every accepted record gets its ack.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from strandline.broker.broker import Broker
from strandline.clock import Clock
from strandline.config import BrokerConfig
from strandline.encryption.master_keys import MasterKeys
from strandline.process.master_keys import master_keys
from strandline.process.renewal import CertificateWatch, certificate_files
from strandline.servers.flight.server import FlightFrontEnd
from strandline.servers.metering import Metering
from strandline.servers.nats.frontend import NatsFrontEnd
from strandline.servers.tasks import end_task, start_task
from strandline.servers.tls import renew
from strandline.storage.disk import Disk

if TYPE_CHECKING:
    from strandline.broker.cluster.broker import ClusterBroker
    from strandline.servers.forward import Forwarder
    from strandline.servers.grpc.frontend import GrpcFrontEnd
    from strandline.servers.http.frontend import HttpFrontEnd


class FrontEnd(Protocol):
    """A listener of the broker."""

    async def start(self) -> None:
        """Start listening."""
        ...

    async def stop(self) -> None:
        """Stop listening, and let clients finish."""
        ...


class BrokerApp:
    """A broker with its servers.

    Args:
        config: the broker's settings.
        with_nats: False omits NATS, for tests that do not need it.
        disk: the file system; tests inject faults here.
        clock: the source of time.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        with_nats: bool = True,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        keys = master_keys(config, os.environ)
        self._member = _member(config, disk=disk, clock=clock, keys=keys)
        self.broker: Broker = self._member or Broker(
            config, disk=disk, clock=clock, master_keys=keys
        )
        metering = Metering(self.broker)
        self._flight = FlightFrontEnd(self.broker, config, metering)
        self._http = _http(self.broker, config, lambda: self._flight.port)
        self._forwarder = forwarder = _forwarder(self._member)
        self._nats = None
        if with_nats:
            self._nats = NatsFrontEnd(self.broker, config, metering, forwarder=forwarder)
        self._grpc = _grpc(self.broker, config, metering, forwarder=forwarder)
        self._started: list[FrontEnd] = []
        self._watch: CertificateWatch | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def flight_port(self) -> int:
        """Return the port of Arrow Flight."""
        return self._flight.port

    @property
    def http_port(self) -> int | None:
        """Return the port of the console, metrics and health checks; None when off."""
        return self._http.port if self._http else None

    @property
    def nats_port(self) -> int | None:
        """Return the port of the child nats-server; None with external servers."""
        return self._nats.nats_port if self._nats else None

    @property
    def ingest_port(self) -> int | None:
        """Return the port of the ingest listener; None when off."""
        return self._nats.ingest_port if self._nats else None

    async def start(self) -> None:
        """Recover, then listen.

        Raises:
            StrandlineError: the data directory or a port is not available; nothing is left running.
        """
        files = certificate_files(self.config)
        self._watch = CertificateWatch(files, self._renew_certificates) if files else None
        await self.broker.start()
        try:
            for front_end in (self._nats, self._flight, self._grpc, self._http):
                if front_end is not None:
                    await front_end.start()
                    self._started.append(front_end)
        except BaseException:
            await self.stop()
            raise
        if self._watch is not None:
            self._watching = start_task(self._watch.run(), "certificates")
        if self._member is not None:
            grpc = {}
            if self._grpc is not None:
                grpc = {"grpc_address": self._grpc.address, "beam_address": self._grpc.beam_address}
            self._member.announce(self.flight_port, **grpc)

    def look_at_certificates(self) -> None:
        """Reload certificates that have changed, without waiting for the next check."""
        if self._watch is not None:
            self._watch.look_now()

    def _renew_certificates(self) -> None:
        """Reload the certificates of every listener that does not need a restart for that.

        Raises:
            InvalidConfigError: a file cannot be used.
        """
        if self.config.tls.is_on:
            renew(self.config.tls)
            if self._nats is not None:
                self._nats.certificates_renewed()
            if self._forwarder is not None:
                self._forwarder.renew_client()
        if self._member is not None:
            self._member.membership.renew_tls()

    async def stop(self) -> None:
        """Transfer leaderships, stop listening, finish appends and release the data directory."""
        await end_task(self._watching)
        try:
            await self.broker.prepare_stop()
            while self._started:
                await self._started.pop().stop()
            if self._forwarder is not None:
                await self._forwarder.stop()
        finally:
            await self.broker.stop()

    def ready_line(self) -> dict[str, object]:
        """Return the object that ``strandline serve --output json`` prints when ready."""
        cluster = self.config.cluster
        part = {"broker_id": cluster.broker_id, "peer_port": cluster.peer_port}
        return {
            "event": "ready",
            "data_dir": str(self.broker.data_dir),
            "host": self.config.host,
            "nats_port": self.nats_port,
            "ingest_port": self.ingest_port,
            "flight_port": self.flight_port,
            "http_port": self.http_port,
            "grpc_port": self._grpc.port if self._grpc else None,
            "beam_port": self._grpc.beam_port if self._grpc else None,
            **(part if cluster.is_on else {}),
        }


def _member(
    config: BrokerConfig, *, disk: Disk | None, clock: Clock | None, keys: MasterKeys
) -> "ClusterBroker | None":
    """Return the broker of a cluster; None, without importing the class, for a broker alone."""
    if not config.cluster.is_on:
        return None
    from strandline.broker.cluster.broker import ClusterBroker

    return ClusterBroker(config, disk=disk, clock=clock, master_keys=keys)


def _forwarder(member: "ClusterBroker | None") -> "Forwarder | None":
    """Return the forwarder of publishes; None, without importing its client, for a broker alone."""
    if member is None:
        return None
    from strandline.servers.forward import Forwarder

    return Forwarder(member)


def _grpc(
    broker: Broker, config: BrokerConfig, metering: Metering, *, forwarder: "Forwarder | None"
) -> "GrpcFrontEnd | None":
    """Return the gRPC server; it is imported only if it is configured."""
    if config.grpc.port < 0 and config.grpc.beam_port < 0:
        return None
    from strandline.servers.grpc.frontend import GrpcFrontEnd

    return GrpcFrontEnd(broker, config, metering, forwarder=forwarder)


def _http(
    broker: Broker, config: BrokerConfig, flight_port: Callable[[], int]
) -> "HttpFrontEnd | None":
    """Return the HTTP server; it is imported only if it is configured."""
    if config.http_port < 0:
        return None
    from strandline.servers.http.frontend import HttpFrontEnd

    return HttpFrontEnd(broker, config, flight_port)


async def run_until(app: BrokerApp, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set; the app must have been started."""
    try:
        await stop.wait()
    finally:
        await app.stop()
