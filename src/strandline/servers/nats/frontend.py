"""The NATS listeners of a broker: a nats-server and the ingest listener, with common routes.

Clients reach the broker through a nats-server (the broker's child, or an external one) or through
the ingest listener, which saves the hop. Rules: everything runs on the broker's loop. When streams
are created or deleted, their subscriptions begin or end at once. ``cryptography``, which takes 7
MiB of memory, is imported only with access control.
"""

import asyncio
import logging
import secrets
import ssl
import zlib
from collections.abc import Collection, Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strandline.api.monitoring import ConnectionInfo
from strandline.broker.access import Access, read_secret
from strandline.broker.routing import Binding
from strandline.config import BrokerConfig, bracketed
from strandline.errors import DisconnectedError, UnavailableError
from strandline.servers.metering import Metering
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.client import NatsClient
from strandline.servers.nats.connection import MESSAGE_SLACK_BYTES
from strandline.servers.nats.embedded_server import LEAF_HOST, EmbeddedNatsServer
from strandline.servers.nats.foreign_jetstream import ForeignJetStreamWatch
from strandline.servers.nats.inboxes import private_inbox
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.jetstream.api import JetStreamApi
from strandline.servers.nats.jetstream.consumers import ConsumerCalls
from strandline.servers.nats.jetstream.streams import StreamCalls
from strandline.servers.nats.leaf_link import LeafClient
from strandline.servers.nats.listener import IngestListener
from strandline.servers.nats.ports import FrontEndPort
from strandline.servers.nats.receivers import Receivers
from strandline.servers.nats.routes import ServerRoutes
from strandline.servers.nats.server_clients import server_clients
from strandline.servers.nats.server_link import (
    PAYLOAD_BYTES_MAX,
    parse_leaf_url,
    parse_server_url,
)
from strandline.servers.tls import calling_context, calling_own_context

if TYPE_CHECKING:
    # The forwarder imports the client, which a broker alone does not need.
    from strandline.servers.forward import Forwarder

if TYPE_CHECKING:
    from strandline.servers.nats.accounts import Accounts
    from strandline.servers.nats.auth_callout import AuthCalloutHandler
    from strandline.servers.nats.system_account import SystemAccountClient

logger = logging.getLogger(__name__)

CONNECTIONS: Final = 4
"""The number of connections to nats-server, each for a share of the streams. nats-server queues up
to 64 MiB for one connection: behind a flood in that queue a publisher waits for seconds."""
CLIENTS_TIMEOUT_S: Final = 1.0
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  not a bind
"""Listening address → the address at which such a server is reached."""


class NatsFrontEnd:
    """The NATS listeners of a broker.

    Args:
        broker: a started broker; it must be stopped after this front end.
        config: the broker's settings.
        metering: the meters of principals, if shared with other servers.
        forwarder: forwards publishes to other leaders; None for a broker alone.
    """

    def __init__(
        self,
        broker: FrontEndPort,
        config: BrokerConfig,
        metering: Metering | None = None,
        *,
        forwarder: "Forwarder | None" = None,
    ) -> None:
        self._forwarder = forwarder
        self._broker = broker
        self._config = config
        self._access = Access(config, broker)
        self._metering = metering or Metering(broker)
        self._accounts: Accounts | None = None
        """The accounts of the child nats-server; None if access is not checked."""
        self._child: EmbeddedNatsServer | None = None
        self._authorizer: AuthCalloutHandler | None = None
        self._control: SystemAccountClient | None = None
        self._api: JetStreamApi | None = None
        """The JetStream API: for clients of the child nats-server, or a domain at external ones."""
        self._consumers: ConsumerCalls | None = None
        self._leaf: LeafClient | None = None
        self._receivers: Receivers | None = None
        self._subscribers: list[NatsClient] = []
        self._listener: IngestListener | None = None

    @property
    def nats_port(self) -> int | None:
        """The port of the child nats-server; None with external servers."""
        return self._child.port if self._child is not None else None

    @property
    def ingest_port(self) -> int | None:
        """The port of the ingest listener; None if it is off."""
        return self._listener.port if self._listener is not None else None

    @property
    def nats_pid(self) -> int | None:
        """The process id of the child nats-server; None without one."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> None:
        """Start the child nats-server if there is one, subscribe, and listen.

        Raises:
            InvalidConfigError: a NATS URL is malformed, or a certificate cannot be used.
            UnavailableError: a server or a port is not available; nothing is left running.
        """
        config, broker = self._config, self._broker
        ingest = MessageIngest(
            broker.clock,
            broker.routes,
            broker.admission,
            backpressure=Backpressure(config.limits.pending_bytes),
            forwarder=self._forwarder,
        )
        broker.on_answered(ingest.send_answers)
        broker.on_streams_changed(self._streams_changed)
        broker.on_stream_created(self.synced)
        jetstream = None
        if config.nats.servers:  # the child nats-server has no JetStream
            jetstream = ForeignJetStreamWatch(broker.streams, broker.telemetry, broker.clock)
            broker.on_creating_stream(jetstream.check_creation)
        try:
            servers = list(config.nats.servers)
            tls = self._calling_context()
            if not servers:
                servers = [await self._start_child(tls)]
            login = self._accounts.broker_login if self._accounts is not None else None
            for number in range(CONNECTIONS):
                subscriber = NatsClient(
                    broker,
                    ingest=ingest,
                    jetstream=jetstream if number == 0 else None,
                    is_alone=self._is_server_alone,
                    tls=tls,
                    login=login,
                    peer_subject=self._peer_subject if number == 0 else b"",
                )
                self._subscribers.append(subscriber)
                names = [stream.config.name for stream in broker.streams()]
                await subscriber.start(
                    servers, self._subscriptions(names, number), is_awaited=self._is_server_there
                )
            await self._start_api(broker, ingest, servers=servers, tls=tls)
            if config.nats.ingest_port >= 0:
                self._listener = IngestListener(
                    broker,
                    config,
                    routes=broker.routes,
                    ingest=ingest,
                    metering=self._metering,
                    api=self._api,
                    receivers=self._receivers,
                )
                await self._listener.start()
        except BaseException:
            await self.stop()
            raise

    async def _start_api(
        self,
        broker: FrontEndPort,
        ingest: MessageIngest,
        *,
        servers: list[str],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Answer the JetStream API over a connection of its own.

        An external server may have a JetStream of its own. So there the API is a JetStream domain,
        and it needs the server's listener for leaf nodes.
        """
        accounts, nats = self._accounts, self._config.nats
        if self._child is None and not nats.leafnodes:
            return
        self._leaf = self._leaf_client()
        self._api = JetStreamApi(broker, nats.domain if self._child is None else "")
        self._receivers = Receivers(self._leaf)
        self._consumers = ConsumerCalls(self._api, broker.consumers, self._receivers)
        StreamCalls(self._api, self._config, self._consumers)
        await self._leaf.start(is_awaited=self._is_server_there)
        asking = NatsClient(
            broker,
            ingest=ingest,
            api=self._api,
            is_alone=self._is_server_alone,
            tls=tls,
            login=accounts.broker_login if accounts is not None else None,
        )
        self._subscribers.append(asking)  # last: the first ones carry the streams
        await asking.start(servers, {}, is_awaited=self._is_server_there)
        self._consumers.start()
        if self._child is not None:
            loop = asyncio.get_running_loop()
            self._metering.connections.add_source(
                lambda: asyncio.run_coroutine_threadsafe(self._clients(asking), loop).result()
            )

    async def _clients(self, asking: NatsClient) -> list[ConnectionInfo]:
        """Return the clients of the child nats-server, which is asked over ``asking``."""
        infos = [each.server_info for each in self._subscribers]
        server, authorizer = asking.server_info, self._authorizer
        try:
            if server is None:
                raise DisconnectedError("not connected")
            async with asyncio.timeout(CLIENTS_TIMEOUT_S):
                return await server_clients(
                    asking.request,
                    server=server.server_name,
                    payload_max=server.max_payload,
                    ours={info.client_id for info in infos if info is not None},
                    principal_of=authorizer.principal_of if authorizer else lambda _: "",
                )
        except (TimeoutError, UnavailableError) as error:
            reason = str(error) or "no answer in time"
            logger.warning("the clients of the embedded nats-server are not listed: %s", reason)
            return []

    def _leaf_client(self) -> LeafClient:
        """Return the client that delivers records, not connected yet."""
        child, accounts, name = self._child, self._accounts, self._config.cluster.broker_id
        if child is not None:
            return LeafClient(
                f"strandline-{name}",
                lambda: (LEAF_HOST, child.leaf_port),
                login=accounts.leaf_login if accounts is not None else None,
                is_restricted=accounts is not None,
            )
        urls = list(map(parse_leaf_url, self._config.nats.leafnodes))
        attempts = cycle(urls)
        last = urls[0]

        def address() -> tuple[str, int]:
            nonlocal last
            last = next(attempts)
            return last.host, last.port

        return LeafClient(
            # A random name, because clusters that share a server need different ones.
            f"strandline-{name}-{secrets.token_hex(4)}",
            address,
            login=lambda _: last.credentials,
            server=" or ".join(f"{each.host}:{each.port}" for each in urls),
        )

    async def stop(self) -> None:
        """Stop receiving, answer received messages, disconnect, and stop the child."""
        if self._listener is not None:
            self._listener.pause()
        if self._forwarder is not None:
            await self._forwarder.quiesce()
        await asyncio.gather(*(each.stop() for each in self._subscribers))
        if self._consumers is not None:
            await self._consumers.stop()
        if self._api is not None:
            await self._api.stop()
        if self._leaf is not None:
            await self._leaf.stop()
        if self._listener is not None:
            await self._listener.stop()
        if self._control is not None:
            await self._control.stop()
        if self._child is not None:
            await self._child.stop()

    def certificates_renewed(self) -> None:
        """Let the child nats-server load its renewed certificate."""
        if self._child is not None:
            self._child.reload()

    async def synced(self, name: str) -> None:
        """Wait until nats-server delivers a stream's messages and its consumers' acknowledgements.

        This is awaited before the creation of a stream is answered. Otherwise a publish could find
        no responders, or at another broker's server reach only that broker, which leaves the
        answer to the leader.
        """
        number = _connection_of(name)
        carrying = self._subscribers[number : number + 1]
        others = self._subscribers[CONNECTIONS:]
        peers = self._peers() if self._leads(name) else []
        await asyncio.gather(
            *(each.synced(peers) for each in carrying), *(each.synced() for each in others)
        )

    def _leads(self, name: str) -> bool:
        """Return whether this broker leads a partition of a stream."""
        found = (each.stream.partitions for each in self._broker.routes.bindings(name))
        return any(partition.is_led for partitions in found for partition in partitions)

    def _peers(self) -> list[bytes]:
        """Return the subjects at which the other brokers in service answer this one."""
        if self._is_server_alone:
            return []
        cluster = self._config.cluster
        return [
            _subject_of_peer(cluster.name, broker.id)
            for broker in self._broker.image.brokers.values()
            if broker.id != cluster.broker_id and not broker.is_fenced
        ]

    @property
    def _peer_subject(self) -> bytes:
        """The subject at which this broker answers other brokers; empty without such brokers."""
        cluster = self._config.cluster
        if self._is_server_alone or not cluster.is_on:
            return b""
        return _subject_of_peer(cluster.name, cluster.broker_id)

    async def _start_child(self, tls: ssl.SSLContext | None) -> str:
        """Start the child nats-server and its authorization; return its URL."""
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
            await self._start_authorization(self._accounts, tls)
        return self._child_url()

    async def _start_authorization(self, accounts: "Accounts", tls: ssl.SSLContext | None) -> None:
        """Start to answer the child's authorization requests."""
        from strandline.servers.nats.auth_callout import AuthCalloutHandler
        from strandline.servers.nats.certificates import certificate_name
        from strandline.servers.nats.system_account import SystemAccountClient

        self._authorizer = handler = AuthCalloutHandler(
            self._access,
            self._metering,
            accounts.issuer,
            clock=self._broker.clock,
            name_of=certificate_name,
        )
        self._control = SystemAccountClient(
            handler,
            lambda: parse_server_url(self._child_url()),
            login=accounts.system_login,
            tls=tls,
        )
        await self._control.start(is_awaited=self._is_server_there)

    @property
    def _is_server_there(self) -> bool:
        """Whether the server should be reachable: no child is waiting for disk space."""
        return self._child is None or self._child.pid is not None

    @property
    def _is_server_alone(self) -> bool:
        """Whether no other broker receives what is published at the nats-server."""
        config = self._config
        return not config.nats.servers and not config.cluster.nats_addresses

    def _child_url(self) -> str:
        """Return the URL of the child nats-server."""
        assert self._child is not None, "started first"
        config = self._config
        host = LOOPBACK.get(config.host, config.host)
        scheme = "tls" if config.tls.is_on else "nats"
        return f"{scheme}://{bracketed(host)}:{self._child.port}"

    def _calling_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to servers; None if none uses TLS.

        Raises:
            InvalidConfigError: a certificate cannot be used.
        """
        config = self._config
        if not config.nats.servers:
            return calling_own_context(config.tls) if config.tls.is_on else None
        return calling_context(config.tls, authority=config.nats.authority)

    def _subscriptions(self, names: Iterable[str], number: int) -> dict[str, list[Binding]]:
        """Return the bindings that one of the connections subscribes to, by stream."""
        takes_all, routes = self._is_server_alone, self._broker.routes
        return {
            name: [each for each in routes.bindings(name) if each.is_ours or takes_all]
            for name in names
            if _connection_of(name) == number
        }

    def _streams_changed(self, names: Collection[str]) -> None:
        if self._listener is not None:
            self._listener.streams_changed()
        for number, subscriber in enumerate(self._subscribers):
            subscriber.streams_changed(self._subscriptions(names, number))


def _connection_of(name: str) -> int:
    """Return the number of the connection for a stream; only one, to keep the stream's order."""
    return zlib.crc32(name.encode()) % CONNECTIONS


def _subject_of_peer(cluster: str, broker: int) -> bytes:
    """Return the subject at which a broker answers others: an inbox, so they may publish to it."""
    return f"{private_inbox(f'strandline {cluster}')}.{broker}".encode()


def _routes(config: BrokerConfig) -> ServerRoutes | None:
    """Return the child's routes to other brokers' servers; None if there are none.

    Raises:
        InvalidConfigError: the file with the routes' secret cannot be used.
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
