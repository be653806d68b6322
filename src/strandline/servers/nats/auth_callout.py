"""Who may be a client of our nats-server, and for how long.

Each client is asked about once, when it comes. What it may do is fixed then, so when rules change
it is disconnected, if they now say something else about it, and comes again by itself.

Rules: what cannot be understood is not answered, and the server lets nobody in without an answer.
An answer that comes too late lets nobody in either, and nothing is ever told of that client; so who
is not said to have come in within a while is ended like one who leaves, and counts no more.
A client whose token was revoked or has expired is disconnected like one whose rules have changed.
No sockets here; on the loop.
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
    decode_question,
    encode_admission,
    encode_refusal,
)
from strandline.servers.nats.nkeys import KeyPair
from strandline.servers.nats.permissions import permissions_of

logger = logging.getLogger(__name__)

NS_PER_S: Final = 1_000_000_000
ARRIVAL_MS: Final = 2e3 * ANSWER_TIMEOUT_S
"""Within which who was let in has come in; the server waits half as long for our answer."""


class _Client(NamedTuple):
    caller: Caller
    allowance: Allowance
    permissions: Permissions
    quota: Quota
    """In force when it came in."""


class AuthCalloutHandler:
    """The door of one nats-server.

    Args:
        access: who is who, and who may do what.
        metering: how many connections anybody may have.
        issuer: whom the server believes.
        clock: dates answers.
        name_of: the name in a certificate, given its PEM.
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
        """Of the last review."""
        self._clients: dict[int, _Client] = {}
        self._expected: dict[int, float] = {}
        """Who was let in and has not come in yet: until when, by the monotonic clock."""
        self._leaving: set[int] = set()
        """Who was told to leave and may still be there."""

    @property
    def clients(self) -> int:
        """How many are inside."""
        return len(self._clients)

    def opened(self, server_id: str) -> list[int]:
        """The server is heard again; who left meanwhile is not known, so everybody has to.

        Of a server that was started anew nobody is left. Of the same one everybody is told to leave
        until it says that they are gone.
        """
        if server_id != self._server_id:
            self._server_id = server_id
            for connection in list(self._clients):
                self.left(connection)
        self._leaving = set(self._clients)
        return sorted(self._leaving)

    def answer(self, question: bytes) -> bytes | None:
        """Let a client in, or not; None if nobody asked who may."""
        try:
            asked = decode_question(question, self._server_id)
        except InvalidRecordError as error:
            # In a cluster the questions of the other servers come here too, for their brokers.
            logger.debug("a question about a client is not our server's: %s", error)
            return None
        now_s = self._clock.now_ns() // NS_PER_S
        try:
            client = self._admitted(asked)
        except StrandlineError as error:
            logger.info("a NATS client from %s is kept out: %s", asked.host, error.message)
            return encode_refusal(asked, error.code, issuer=self._issuer, now_s=now_s)
        self.left(asked.connection)
        self._clients[asked.connection] = client
        self._expected[asked.connection] = self._clock.monotonic_ms() + ARRIVAL_MS
        return encode_admission(
            asked, client.permissions, issuer=self._issuer, account=STREAMS_ACCOUNT, now_s=now_s
        )

    def _admitted(self, asked: AuthRequest) -> _Client:
        """The client.

        Raises:
            StrandlineError: it is not let in.
        """
        shown = ClientCredentials(
            token=asked.token or None,
            certificate=self._name_of(asked.certificate) if asked.certificate else None,
        )
        caller = self._access.identify(shown)
        caller.check_known()
        allowance = self._metering.of(caller)
        assert allowance is not None, "who is known has one"
        quota = allowance.quota
        allowance.open()
        return _Client(caller, allowance, self._permissions(caller, quota), quota)

    def arrived(self, connection: int) -> None:
        """A client that was let in has come in."""
        self._expected.pop(connection, None)

    def left(self, connection: int) -> None:
        """A client has left."""
        self._expected.pop(connection, None)
        client = self._clients.pop(connection, None)
        if client is not None:
            client.allowance.close()

    def unwelcome(self) -> list[int]:
        """The connections of clients that would not be let in now as they were."""
        before, self._acls = self._acls, self._access.policy.acls
        has_changed = self._acls is not before
        self._leaving &= self._clients.keys()
        now_ms = self._clock.monotonic_ms()
        self._leaving.update(each for each, due_ms in self._expected.items() if due_ms <= now_ms)
        self._leaving.update(
            connection
            for connection, client in self._clients.items()
            if not _is_welcome(client)
            or self._has_other_permissions(client, rules_changed=has_changed)
        )
        return sorted(self._leaving)

    def _has_other_permissions(self, client: _Client, *, rules_changed: bool) -> bool:
        """Whether it would be let in with others than it has."""
        quota = client.allowance.quota
        if not rules_changed and quota == client.quota:
            return False
        return client.permissions != self._permissions(client.caller, quota)

    def _permissions(self, caller: Caller, quota: Quota) -> Permissions:
        return permissions_of(caller.principal, self._access.policy.acls, quota)


def _is_welcome(client: _Client) -> bool:
    try:
        client.caller.check_known()
    except StrandlineError:
        return False  # an answer, not a failure: it is acted upon
    return True
