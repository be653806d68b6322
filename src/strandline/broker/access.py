"""Authorization of requests by the metadata's current policy, for the servers.

Rules: safe on any thread, since a check reads one immutable image. With ``auth.enabled`` off
everything is allowed, and a check only tests that flag. Nothing is cached between checks, so a
revocation also ends requests in progress. A fenced broker may lack rules: its denial is reported as
``UnavailableError``, so that the client asks another broker. An isolated broker may not know of a
revocation: it uses rules and tokens of the metadata only while it has a lease, and afterwards only
the administrators of its own settings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from strandline.api.required_permissions import Need
from strandline.clock import Clock
from strandline.config import AuthConfig, BrokerConfig
from strandline.core.metadata.image import MetadataImage
from strandline.errors import (
    InvalidConfigError,
    NotAllowedError,
    UnauthenticatedError,
    UnavailableError,
)
from strandline.security.acl import Operation, Resource
from strandline.security.policy import ClientCredentials, Identity, Policy, Settings
from strandline.security.principal import ANONYMOUS, Principal
from strandline.security.producer_ids import owner_of
from strandline.security.tokens import BOOTSTRAP_CHARACTERS_MIN, TEXT_BYTES_MAX, fingerprint
from strandline.types import BrokerId

ALONE: Final = 0
"""The id of a broker without a cluster."""
T = TypeVar("T")


class Guarded(Protocol):
    """The parts of a broker that access decisions need."""

    @property
    def clock(self) -> Clock:
        """The broker's clock."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether the rules and tokens known here are recent enough to use."""
        ...


class Access:
    """Authentication and authorization for one server.

    Args:
        config: whether access is checked, and the administrators.
        broker: has the metadata with rules and tokens.

    Raises:
        InvalidConfigError: the file with the administrator's token cannot be used.
    """

    def __init__(self, config: BrokerConfig, broker: Guarded) -> None:
        self._broker = broker
        self.is_on = config.auth.enabled
        self._broker_id = BrokerId(config.cluster.broker_id)
        self._settings = _settings(config.auth)
        self._made: tuple[MetadataImage, Policy] | None = None

    @property
    def policy(self) -> Policy:
        """The current policy; a new object whenever rules or tokens may have changed."""
        image, made = self._broker.image, self._made
        if made is not None:
            of, policy = made
            if of is image or (of.rules is image.rules and of.tokens is image.tokens):
                return policy
        policy = Policy(image.rules, image.tokens, self._settings)
        self._made = (image, policy)
        return policy

    @property
    def partitions(self) -> dict[str, int]:
        """The number of partitions of each stream."""
        streams = self._broker.image.streams.items()
        return {name: len(stream.partitions) for name, stream in streams}

    def identify(self, shown: ClientCredentials) -> "Caller":
        """Authenticate credentials and return the caller.

        Raises:
            UnauthenticatedError: the credentials are unknown.
            UnavailableError: as for ``ask_policy``.
        """
        if not self.is_on:
            return Caller(self, Identity(ANONYMOUS))
        identity = self.ask_policy(lambda policy, now_ns: policy.identify(shown, now_ns))
        self.check_lease(identity)
        return Caller(self, identity)

    def is_leased(self, identity: Identity) -> bool:
        """Whether this principal may be admitted by the metadata's rules and tokens now."""
        is_own = identity.token_id is None and self._settings.is_admin(identity.principal)
        return is_own or self._broker_id == ALONE or self._broker.has_lease

    def check_lease(self, identity: Identity) -> None:
        """Reject a principal that only the metadata allows while the metadata may be outdated.

        Raises:
            UnavailableError: this broker is isolated from its cluster.
        """
        if not self.is_leased(identity):
            raise UnavailableError(
                "this broker is cut off from its cluster and may not know which tokens and rules "
                "were revoked; ask another broker, or retry when it is back"
            )

    def check_producer(self, principal: Principal, producer_id: int) -> None:
        """Reject a producer id that was allocated to another principal, or to nobody.

        Raises:
            NotAllowedError: the id belongs to another principal.
            UnavailableError: the id may be allocated to this principal since a moment, so that this
                broker does not know it yet; or as for ``ask_policy``.
        """
        owners, number = self._broker.image.producer_owners, owner_of(producer_id)
        if number == owners.get(principal.name, -1):
            return
        if principal.name not in owners and number > len(owners):
            raise UnavailableError(
                f"the owner of producer id {producer_id} is not known to this broker yet; retry"
            )
        self.ask_policy(lambda *_: _reject_producer(principal, producer_id))

    def ask_policy(self, decide: Callable[[Policy, int], T]) -> T:
        """Return what ``decide`` returns for the current policy and time.

        Raises:
            UnavailableError: the policy denies, but this broker may not know the newest rules.
            UnauthenticatedError, NotAllowedError: the policy denies.
        """
        try:
            return decide(self.policy, self._broker.clock.now_ns())
        except (UnauthenticatedError, NotAllowedError) as error:
            if self._is_behind():
                raise UnavailableError(
                    "this broker is not in service now and may not know of a rule or token that "
                    "others know; retry, or ask another"
                ) from error
            raise

    def _is_behind(self) -> bool:
        """Whether this broker of a cluster is fenced."""
        if self._broker_id == ALONE:
            return False
        me = self._broker.image.brokers.get(self._broker_id)
        return me is None or me.is_fenced


class Caller:
    """The caller of a request, or of a connection.

    Args:
        access: the server's access rules.
        identity: the authenticated principal.
    """

    __slots__ = ("_access", "_identity", "_is_on")

    def __init__(self, access: Access, identity: Identity) -> None:
        self._access = access
        self._identity = identity
        self._is_on = access.is_on

    @property
    def is_checked(self) -> bool:
        """Whether access is checked at all."""
        return self._is_on

    @property
    def principal(self) -> Principal:
        """The authenticated principal; the anonymous one where access is not checked."""
        return self._identity.principal

    @property
    def is_leased(self) -> bool:
        """Whether a cached decision for this caller may still be used."""
        return not self._is_on or self._access.is_leased(self._identity)

    def check(self, resource: Resource, *operations: Operation) -> None:
        """Check that the caller may do at least one of the given operations.

        Raises:
            UnauthenticatedError: its token was revoked or has expired.
            NotAllowedError: no rule allows it.
            UnavailableError: as for ``Access.ask_policy``.
        """
        if not self._is_on:
            return

        def decide(policy: Policy, now_ns: int) -> None:
            policy.check_current(self._identity, now_ns)
            policy.check(self.principal, operations, resource)

        self._access.check_lease(self._identity)
        self._access.ask_policy(decide)

    def check_producer(self, producer_id: int) -> None:
        """Reject a producer id that was allocated to another principal, or to nobody.

        Raises:
            NotAllowedError: the id belongs to another principal.
            UnavailableError: as for ``Access.check_producer``.
        """
        if self._is_on:
            self._access.check_producer(self.principal, producer_id)

    def check_known(self) -> None:
        """Check that at least one rule names the caller.

        Raises:
            UnauthenticatedError: its token was revoked or has expired.
            NotAllowedError: no rule names it.
            UnavailableError: as for ``Access.ask_policy``.
        """
        if not self._is_on:
            return

        def decide(policy: Policy, now_ns: int) -> None:
            policy.check_current(self._identity, now_ns)
            policy.check_known(self.principal)

        self._access.check_lease(self._identity)
        self._access.ask_policy(decide)

    def may(self, resource: Resource, *operations: Operation) -> bool:
        """Return whether the caller may do at least one of the operations."""
        if not self._is_on:
            return True
        if not self.is_leased:
            return False
        policy = self._access.policy
        return any(policy.allows(self.principal, each, resource) for each in operations)

    def has(self, need: Need) -> bool:
        """Return whether the caller has a required permission."""
        return self.may(need.resource, *need.operations)


def _reject_producer(principal: Principal, producer_id: int) -> None:
    raise NotAllowedError(
        f"producer id {producer_id} was not given to {principal}: ask the broker for one "
        "(new_producer), or begin a transaction, and write under that"
    )


def read_secret(file: str, *, key: str) -> str:
    """Return the secret in a file, without surrounding white space.

    Raises:
        InvalidConfigError: the file cannot be read, or holds no token of the right length; the
            message does not show the secret.
    """
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(TEXT_BYTES_MAX + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{key}: cannot read {file}: {error}") from error
    if not BOOTSTRAP_CHARACTERS_MIN <= len(text) <= TEXT_BYTES_MAX:
        raise InvalidConfigError(
            f"{key}: {file} holds no token of {BOOTSTRAP_CHARACTERS_MIN} to {TEXT_BYTES_MAX} "
            "characters; make one with 'openssl rand -hex 32'"
        )
    return text


def _settings(auth: AuthConfig) -> Settings:
    if not auth.enabled:
        return Settings()
    token = auth.admin_token
    if auth.admin_token_file:
        token = read_secret(auth.admin_token_file, key="auth.admin_token_file")
    return Settings(fingerprint(token) if token else b"", frozenset(auth.admins))
