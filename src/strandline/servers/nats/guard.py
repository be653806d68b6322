"""Access control of a connection to the ingest listener: identity at CONNECT, then each subject.

Rules: before CONNECT is accepted, no other operation and no large payload is accepted. An allowed
subject is cached until a rule or token changes, so that a publish costs one set lookup. A client
whose token was revoked is disconnected when its next bytes arrive.
"""

from typing import Final

import msgspec

from strandline.broker.access import Access, Caller
from strandline.errors import StrandlineError
from strandline.record.subjects import subject_matches
from strandline.security.acl import Resource
from strandline.security.policy import ClientCredentials, Policy
from strandline.security.quota import Quota
from strandline.servers.metering import Metering

EARLY_PAYLOAD_MAX: Final = 64 << 10
"""The largest payload before the client is identified."""
REQUESTS: Final = b"$JS.API."
"""The prefix of requests to the JetStream API; rules about streams and groups allow them."""
ACKNOWLEDGEMENTS: Final = (b"$JS.ACK.", b"$JS.FC.")
"""The prefixes of answers to deliveries; each answer has a subject of its own."""
CONSUMER_TOKENS: Final = 4
"""The number of first tokens in such a subject that name the consumer."""
REMEMBERED_MAX: Final = 16_384


class Claims(msgspec.Struct, frozen=True):
    """The credentials in CONNECT, as standard clients send them."""

    auth_token: str | None = None
    password: str | None = msgspec.field(default=None, name="pass")
    """A token, too, for clients that can only send a user and a password; the user is ignored."""

    @property
    def token(self) -> str | None:
        """The token; None without one."""
        return self.auth_token if self.auth_token is not None else self.password


class ClientOptions(msgspec.Struct, frozen=True):
    """The options in CONNECT that are used here; their defaults are nats-server's."""

    verbose: bool = True
    headers: bool = False
    no_responders: bool = False


class PublishGuard:
    """The access control of one connection.

    Args:
        access: identifies clients and has the rules.
        metering: the meters, which have the quotas.
    """

    def __init__(self, access: Access, metering: Metering) -> None:
        self._access = access
        self._metering = metering
        self._caller: Caller | None = None
        self._policy: Policy | None = None
        self._allowed: set[bytes] = set()

    @property
    def is_open(self) -> bool:
        """Whether the client has been identified."""
        return self._caller is not None

    @property
    def caller(self) -> Caller:
        """The identified client."""
        assert self._caller is not None, "asked after connect"
        return self._caller

    def connect(self, claims: Claims, certificate: str | None) -> None:
        """Identify the client.

        Raises:
            StrandlineError: the client is unknown, or has no permission at all.
        """
        caller = self._access.identify(ClientCredentials(claims.token, certificate))
        caller.check_known()
        self._caller = caller
        self._forget()

    def refresh(self) -> None:
        """Drop the cached subjects if rules or tokens have changed, or may have changed.

        Raises:
            StrandlineError: the client's identity is no longer valid.
        """
        if self._caller is None:
            return
        if self._access.policy is not self._policy or not self._caller.is_leased:
            self.check_current()
            self._forget()

    def check_current(self) -> None:
        """Check that the client's identity is still valid.

        Raises:
            StrandlineError: the identity is no longer valid.
        """
        if self._caller is not None:
            self._caller.check_known()

    def _forget(self) -> None:
        self._policy = self._access.policy
        self._allowed.clear()

    def allows(self, subject: bytes) -> bool:
        """Return whether the client may publish to a subject without wildcards."""
        return subject in self._allowed or self._ask(subject)

    def _ask(self, subject: bytes) -> bool:
        assert self._caller is not None, "connected"
        if subject.startswith(ACKNOWLEDGEMENTS):
            return self._may_acknowledge(subject)
        if subject.startswith(REQUESTS):
            return self._may_request(subject.decode(errors="replace"))
        try:
            self._caller.check(Resource("subject", subject.decode()), "publish")
        except StrandlineError:
            return False
        return self._remember(subject)

    def _may_acknowledge(self, subject: bytes) -> bool:
        """Return whether the client may answer a consumer's deliveries; cached by consumer."""
        consumer = b".".join(subject.split(b".")[:CONSUMER_TOKENS])
        if consumer in self._allowed:
            return True
        is_allowed = self._may_request(subject.decode(errors="replace"))
        return is_allowed and self._remember(consumer)

    def _may_request(self, subject: str) -> bool:
        """Return whether the client may send an API request; the rules are those at nats-server."""
        # Imported here: it imports cryptography, which only access control needs.
        from strandline.servers.nats.permissions import permissions_of

        acls, allowance = self._access.policy.acls, self._metering.of(self.caller)
        if acls.is_admin(self.caller.principal):
            return True
        quota = allowance.quota if allowance is not None else Quota()
        partitions = self._access.partitions
        found = permissions_of(self.caller.principal, acls, quota, partitions=partitions)
        return any(subject_matches(each, subject) for each in found.publish)

    def _remember(self, subject: bytes) -> bool:
        if len(self._allowed) >= REMEMBERED_MAX:
            self._allowed.clear()
        self._allowed.add(subject)
        return True
