"""The NATS front end: two ways in for publishers, one set of routes.

Publishers reach the broker through a nats-server (a child of ours, or servers of the user's) or
through our own listener, which saves the hop. Rules: everything runs on the broker's loop; streams
that come and go are re-bound at once; what needs ``cryptography``, which takes 7 MiB of memory, is
imported where access is checked.
"""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.broker.access import Access, read_secret
from strandline.broker.routing import Binding, RouteTable, stream_bindings
from strandline.config import BrokerConfig, bracketed
from strandline.servers.forwarding import ForwarderPort
from strandline.servers.metering import Metering
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.client import NatsClient
from strandline.servers.nats.embedded_server import EmbeddedNatsServer
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.jetstream import JetStreamWatch
from strandline.servers.nats.listener import MESSAGE_SLACK_BYTES, IngestListener
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.routes import ServerRoutes
from strandline.servers.nats.server_link import PAYLOAD_BYTES_MAX, parse_server_url
from strandline.servers.tls import calling_context, calling_own_context

if TYPE_CHECKING:
    from strandline.servers.nats.accounts import Accounts
    from strandline.servers.nats.system_account import SystemAccountClient

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  not a bind
"""How to reach a server that listens on every address."""


class NatsFrontEnd:
    """NATS in, acks out.

    Args:
        broker: started, and stopped after this.
        config: settings.
        metering: what principals use, if other front ends count too.
        forwarder: in a cluster: for what other brokers lead.
    """

    def __init__(
        self,
        broker: BrokerPort,
        config: BrokerConfig,
        metering: Metering | None = None,
        *,
        forwarder: ForwarderPort | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._broker = broker
        self._config = config
        self._access = Access(config, broker)
        self._metering = metering or Metering(broker)
        self._accounts: Accounts | None = None
        """Of our own nats-server, where access is checked."""
        self._child: EmbeddedNatsServer | None = None
        self._control: SystemAccountClient | None = None
        self._subscriber: NatsClient | None = None
        self._listener: IngestListener | None = None
        self._routes = RouteTable()

    @property
    def nats_port(self) -> int | None:
        """Port of the nats-server child; None with servers of the user's."""
        return self._child.port if self._child is not None else None

    @property
    def ingest_port(self) -> int | None:
        """Port of our own listener; None when it is off."""
        return self._listener.port if self._listener is not None else None

    @property
    def nats_pid(self) -> int | None:
        """Process id of the nats-server child; None without one."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> None:
        """Start the child if there is one, subscribe, listen.

        Raises:
            InvalidConfigError: a NATS URL is wrong, or a certificate of no use.
            UnavailableError: a server cannot be reached or a port cannot be had; nothing runs on.
        """
        config, broker = self._config, self._broker
        gate = Backpressure(config.limits.pending_bytes)
        intake = MessageIngest(
            broker.clock, self._routes, broker.admission, forwarder=self._forwarder
        )
        broker.on_answered(intake.read_on)
        bindings = self._bind()
        broker.on_streams_changed(self._streams_changed)
        broker.on_stream_created(self.synced)
        jetstream = None
        if config.nats.servers:  # ours has no JetStream
            jetstream = JetStreamWatch(broker.streams, broker.telemetry, broker.clock)
            broker.on_creating_stream(jetstream.check_creation)
        try:
            servers = list(config.nats.servers)
            tls = self._calling_context()
            if not servers:
                servers = [await self._start_child(tls)]
            login = self._accounts.broker_login if self._accounts is not None else None
            self._subscriber = NatsClient(
                broker,
                intake=intake,
                gate=gate,
                jetstream=jetstream,
                is_alone=self._is_server_alone,
                tls=tls,
                login=login,
            )
            await self._subscriber.start(servers, bindings, is_awaited=self._is_server_there)
            if config.nats.ingest_port >= 0:
                self._listener = IngestListener(
                    broker,
                    config,
                    routes=self._routes,
                    intake=intake,
                    gate=gate,
                    metering=self._metering,
                )
                await self._listener.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Take nothing more, answer what was taken, disconnect, end the child."""
        if self._listener is not None:
            self._listener.pause()
        if self._forwarder is not None:
            await self._forwarder.quiesce()
        if self._subscriber is not None:
            await self._subscriber.stop()
        if self._listener is not None:
            await self._listener.stop()
        if self._control is not None:
            await self._control.stop()
        if self._child is not None:
            await self._child.stop()

    def certificates_renewed(self) -> None:
        """Let our own nats-server read its certificate again."""
        if self._child is not None:
            self._child.reload()

    async def synced(self) -> None:
        """Wait until nats-server delivers for every stream there is.

        Await it before telling anyone that a stream was created: a publish that overtakes the
        subscription would find no responders.
        """
        if self._subscriber is not None:
            await self._subscriber.synced()

    async def _start_child(self, tls: ssl.SSLContext | None) -> str:
        """Start the nats-server child, and watch its door; answers its URL."""
        config, telemetry = self._config, self._broker.telemetry

        def restarted() -> None:
            telemetry.nats_server_restarts += 1

        if self._access.is_on:
            from strandline.servers.nats.accounts import Accounts

            self._accounts = Accounts()
        self._child = EmbeddedNatsServer(
            Path(config.data_dir) / "nats",
            host=config.host,
            port=config.nats.port,
            payload_max=min(config.limits.record_bytes + MESSAGE_SLACK_BYTES, PAYLOAD_BYTES_MAX),
            on_restart=restarted,
            routes=_routes(config),
            tls=config.tls,
            accounts=self._accounts,
        )
        await self._child.start()
        if self._accounts is not None:
            await self._watch_door(self._accounts, tls)
        return self._child_url()

    async def _watch_door(self, accounts: "Accounts", tls: ssl.SSLContext | None) -> None:
        """Answer the child's questions about its clients from now on."""
        from strandline.servers.nats.auth_callout import AuthCalloutHandler
        from strandline.servers.nats.certificates import certificate_name
        from strandline.servers.nats.system_account import SystemAccountClient

        door = AuthCalloutHandler(
            self._access,
            self._metering,
            accounts.issuer,
            clock=self._broker.clock,
            name_of=certificate_name,
        )
        self._control = SystemAccountClient(
            door,
            lambda: parse_server_url(self._child_url()),
            login=accounts.system_login,
            tls=tls,
        )
        await self._control.start(is_awaited=self._is_server_there)

    @property
    def _is_server_there(self) -> bool:
        """Whether there should be somebody to connect to: no child waits for space."""
        return self._child is None or self._child.pid is not None

    @property
    def _is_server_alone(self) -> bool:
        """Whether no other broker hears what is published at the nats-server."""
        config = self._config
        return not config.nats.servers and not config.cluster.nats_addresses

    def _child_url(self) -> str:
        """Where the child listens."""
        assert self._child is not None, "started first"
        config = self._config
        host = LOOPBACK.get(config.host, config.host)
        scheme = "tls" if config.tls.is_on else "nats"
        return f"{scheme}://{bracketed(host)}:{self._child.port}"

    def _calling_context(self) -> ssl.SSLContext | None:
        """Whom we trust as a server when we connect with TLS; None: we never do.

        Raises:
            InvalidConfigError: a certificate is of no use.
        """
        config = self._config
        if not config.nats.servers:
            return calling_own_context(config.tls) if config.tls.is_on else None
        return calling_context(config.tls, authority=config.nats.authority)

    def _bind(self) -> list[Binding]:
        """Route by the streams there are now; what of them is to be subscribed to."""
        bindings = [
            binding for stream in self._broker.streams() for binding in stream_bindings(stream)
        ]
        self._routes.replace(bindings)
        return [binding for binding in bindings if binding.is_ours or self._is_server_alone]

    def _streams_changed(self) -> None:
        bindings = self._bind()
        if self._listener is not None:
            self._listener.streams_changed()
        if self._subscriber is not None:
            self._subscriber.streams_changed(bindings)


def _routes(config: BrokerConfig) -> ServerRoutes | None:
    """How the child meets those of the other brokers, if it is to.

    Raises:
        InvalidConfigError: the file with the secret is of no use.
    """
    cluster = config.cluster
    addresses = cluster.nats_addresses
    if not cluster.is_on or not addresses:
        return None
    others = tuple(at for number, at in addresses.items() if number != cluster.broker_id)
    port = addresses[cluster.broker_id][1]
    secret = ""
    if cluster.nats_secret_file:
        secret = read_secret(cluster.nats_secret_file, key="cluster.nats_secret_file")
    return ServerRoutes(cluster.name, config.peer_host, port, others, config.tls, secret)
