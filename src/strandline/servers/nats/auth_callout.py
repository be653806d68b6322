"""Authorization of the child nats-server's clients.

The server asks the broker once about each client, when it connects; its permissions do not change
after that. When a change of the rules gives a client other permissions, it is disconnected, and
reconnects by itself.

Rules: a malformed request is not answered, and without an answer the server rejects the client. The
server also rejects a client, without reporting it, if the answer comes too late. So an authorized
client that is not reported as connected in time is disconnected and no longer counted. A client
whose token was revoked or has expired is disconnected, too. No sockets here; loop thread.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from strandline.broker.access import Access, Caller
from strandline.clock import Clock
from strandline.errors import InvalidRecordError, StrandlineError
from strandline.security.acl import Acls
from strandline.security.policy import ClientCredentials
from strandline.security.quota import Quota
from strandline.servers.metering import Allowance, Metering
from strandline.servers.nats.accounts import ANSWER_TIMEOUT_S, STREAMS_ACCOUNT
from strandline.servers.nats.callout import (
    AuthRequest,
    Permissions,
    decode_request,
    encode_admission,
    encode_rejection,
)
from strandline.servers.nats.nkeys import KeyPair
from strandline.servers.nats.permissions import permissions_of

logger = logging.getLogger(__name__)

NS_PER_S: Final = 1_000_000_000
CONNECT_MS: Final = 2e3 * ANSWER_TIMEOUT_S
"""How long an authorized client may take to connect; the server waits half of it for the answer."""


class _AuthorizedClient(NamedTuple):
    caller: Caller
    allowance: Allowance
    permissions: Permissions
    quota: Quota
    """The quota that applied when the client connected."""


class AuthCalloutHandler:
    """The handler of one nats-server's authorization requests.

    Args:
        access: identifies clients and has the rules.
        metering: limits the connections per principal.
        issuer: the key whose signature the server accepts.
        clock: dates the answers.
        name_of: returns the name in a PEM certificate.
    """

    def __init__(
        self,
        access: Access,
        metering: Metering,
        issuer: KeyPair,
        *,
        clock: Clock,
        name_of: Callable[[str], str | None],
    ) -> None:
        self._access = access
        self._metering = metering
        self._issuer = issuer
        self._clock = clock
        self._name_of = name_of
        self._server_id = ""
        self._acls: Acls | None = None
        """The rules at the last call of ``connections_to_close``."""
        self._clients: dict[int, _AuthorizedClient] = {}
        self._expected: dict[int, float] = {}
        """Authorized clients that have not connected yet → their deadlines, in monotonic ms."""
        self._closing: set[int] = set()
        """Clients that the server was asked to disconnect and that may still be connected."""

    @property
    def clients(self) -> int:
        """The number of authorized clients."""
        return len(self._clients)

    def principal_of(self, connection: int) -> str:
        """Return the principal of an authorized client; empty if the number is unknown."""
        client = self._clients.get(connection)
        return "" if client is None else client.caller.principal.name

    def server_connected(self, server_id: str) -> list[int]:
        """Return the clients to disconnect after a connection to a server was (re)established.

        Reports of disconnects may have been missed. A restarted server has no clients. If it is the
        same server, it is asked to disconnect all of them until it reports that they are gone.
        """
        if server_id != self._server_id:
            self._server_id = server_id
            for connection in list(self._clients):
                self.client_disconnected(connection)
        self._closing = set(self._clients)
        return sorted(self._closing)

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to an authorization request; None if another server sent it."""
        try:
            request = decode_request(data, self._server_id)
        except InvalidRecordError as error:
            # In a cluster other servers' requests arrive here, too; their brokers answer them.
            logger.debug("ignoring an authorization request of another server: %s", error)
            return None
        now_s = self._clock.now_ns() // NS_PER_S
        try:
            client = self._authorize(request)
        except StrandlineError as error:
            logger.info("rejected a NATS client from %s: %s", request.host, error.message)
            return encode_rejection(request, error.code, issuer=self._issuer, now_s=now_s)
        self.client_disconnected(request.connection)
        self._clients[request.connection] = client
        self._expected[request.connection] = self._clock.monotonic_ms() + CONNECT_MS
        return encode_admission(
            request, client.permissions, issuer=self._issuer, account=STREAMS_ACCOUNT, now_s=now_s
        )

    def _authorize(self, request: AuthRequest) -> _AuthorizedClient:
        """Authorize a client and count its connection.

        Raises:
            StrandlineError: the client may not connect.
        """
        shown = ClientCredentials(
            token=request.token or None,
            certificate=self._name_of(request.certificate) if request.certificate else None,
        )
        caller = self._access.identify(shown)
        caller.check_known()
        allowance = self._metering.of(caller)
        assert allowance is not None, "who is known has one"
        quota = allowance.quota
        allowance.open()
        return _AuthorizedClient(caller, allowance, self._permissions(caller, quota), quota)

    def client_connected(self, connection: int) -> None:
        """Record that an authorized client has connected."""
        self._expected.pop(connection, None)

    def client_disconnected(self, connection: int) -> None:
        """Record that a client has disconnected."""
        self._expected.pop(connection, None)
        client = self._clients.pop(connection, None)
        if client is not None:
            client.allowance.close()

    def connections_to_close(self) -> list[int]:
        """Return the connections of clients that must reconnect or are no longer allowed."""
        before, self._acls = self._acls, self._access.policy.acls
        has_changed = self._acls is not before
        self._closing &= self._clients.keys()
        now_ms = self._clock.monotonic_ms()
        self._closing.update(each for each, due_ms in self._expected.items() if due_ms <= now_ms)
        self._closing.update(
            connection
            for connection, client in self._clients.items()
            if not _is_allowed(client)
            or self._has_other_permissions(client, rules_changed=has_changed)
        )
        return sorted(self._closing)

    def _has_other_permissions(self, client: _AuthorizedClient, *, rules_changed: bool) -> bool:
        """Return whether the client would get other permissions if it connected now."""
        quota = client.allowance.quota
        if not rules_changed and quota == client.quota:
            return False
        return client.permissions != self._permissions(client.caller, quota)

    def _permissions(self, caller: Caller, quota: Quota) -> Permissions:
        acls = self._access.policy.acls
        partitions = self._access.partitions
        return permissions_of(caller.principal, acls, quota, partitions=partitions)


def _is_allowed(client: _AuthorizedClient) -> bool:
    try:
        client.caller.check_known()
    except StrandlineError:
        return False  # not a failure: the client will be disconnected
    return True
