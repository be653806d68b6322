"""The access policy: identification of clients and decisions about their operations.

Rules: by default nothing is allowed. Only credentials that can be verified count. A wrong token is
rejected even together with a valid certificate. A policy is immutable; a change of rules or tokens
makes a new one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from strandline.errors import NotAllowedError, UnauthenticatedError
from strandline.security.acl import CLUSTER, Acls, Operation, Resource, Rule
from strandline.security.principal import (
    ANONYMOUS,
    BOOTSTRAP_ADMIN,
    BROKERS,
    Principal,
    is_user_name,
)
from strandline.security.tokens import TEXT_BYTES_MAX, Token, is_text_of, token_id

WRONG_TOKEN = "the token is not known here, was revoked or has expired; ask for another"  # noqa: S105  a message
NO_TOKEN = "this broker wants to know who asks: show a token (STRANDLINE_TOKEN) or a certificate"  # noqa: S105  a message
_OF_BROKERS = Rule(BROKERS.name, "publish", "stream", "*")
"""Lets a broker forward publishes, which it has checked itself."""


class ClientCredentials(NamedTuple):
    """The credentials that a client presents."""

    token: str | None = None
    certificate: str | None = None
    """The name in a certificate that TLS has verified."""


class Identity(NamedTuple):
    """The principal of a client, and the token that proved it, if any."""

    principal: Principal
    token_id: str | None = None


class Settings(NamedTuple):
    """The broker's own access settings, which apply in addition to the metadata."""

    admin_sha256: bytes = b""
    """The SHA-256 of the token that may do everything; empty: there is none."""
    admins: frozenset[str] = frozenset()
    """The principals that may do everything."""

    def is_admin(self, principal: Principal) -> bool:
        """Return whether the settings alone allow the principal everything."""
        return principal == BOOTSTRAP_ADMIN or principal.name in self.admins


class Policy:
    """An access policy; immutable.

    Args:
        rules: the rules in the metadata.
        tokens: the tokens in the metadata, by id.
        settings: this broker's settings.
    """

    def __init__(
        self, rules: Iterable[Rule], tokens: Mapping[str, Token], settings: Settings
    ) -> None:
        self._tokens = tokens
        self._settings = settings
        admins = (BOOTSTRAP_ADMIN.name, *sorted(settings.admins))
        own = [Rule(name, "admin", "cluster", "*") for name in admins]
        self.acls = Acls([*rules, *own, _OF_BROKERS])

    def identify(self, shown: ClientCredentials, now_ns: int) -> Identity:
        """Return the identity that credentials prove.

        Raises:
            UnauthenticatedError: there are no credentials, or they are wrong.
        """
        if shown.token is not None:
            return self._bearer(shown.token, now_ns)
        if shown.certificate is None:
            raise UnauthenticatedError(NO_TOKEN)
        if not is_user_name(shown.certificate):
            raise UnauthenticatedError(
                "the certificate's name is not valid for a principal; see docs/security.md"
            )
        return Identity(Principal(shown.certificate))

    def _bearer(self, text: str, now_ns: int) -> Identity:
        if len(text) > TEXT_BYTES_MAX:
            raise UnauthenticatedError(WRONG_TOKEN)
        if is_text_of(text, self._settings.admin_sha256):
            return Identity(BOOTSTRAP_ADMIN)
        token = self._tokens.get(token_id(text) or "")
        if token is None or not is_text_of(text, token.sha256) or not _is_current(token, now_ns):
            raise UnauthenticatedError(WRONG_TOKEN)
        return Identity(Principal(token.principal), token.id)

    def check_current(self, identity: Identity, now_ns: int) -> None:
        """Reject an identity whose token is no longer valid.

        Raises:
            UnauthenticatedError: the token was revoked, or has expired.
        """
        if identity.token_id is None:
            return
        token = self._tokens.get(identity.token_id)
        if (
            token is None
            or token.principal != identity.principal.name
            or not _is_current(token, now_ns)
        ):
            raise UnauthenticatedError(WRONG_TOKEN)

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed."""
        return principal != ANONYMOUS and self.acls.allows(principal, operation, resource)

    def check(
        self, principal: Principal, operations: tuple[Operation, ...], resource: Resource
    ) -> None:
        """Reject a principal that may do none of these operations; one of them suffices.

        Raises:
            NotAllowedError: no rule allows any of them; the message names the missing rule.
        """
        if not any(self.allows(principal, operation, resource) for operation in operations):
            pattern = "'*'" if resource == CLUSTER else f"'{resource.name}'"
            raise NotAllowedError(
                f"{principal} may not {' or '.join(operations)} {resource}; who administers the "
                f"cluster can allow it: strandline acl grant '{principal}' {operations[0]} "
                f"{resource.kind} {pattern}"
            )

    def check_known(self, principal: Principal) -> None:
        """Reject a principal for which there is no rule.

        Raises:
            NotAllowedError: no rule names the principal.
        """
        if principal == ANONYMOUS or not self.acls.knows(principal):
            raise NotAllowedError(f"{principal} is allowed nothing here; no rule names it")


def _is_current(token: Token, now_ns: int) -> bool:
    return not token.expires_ns or now_ns < token.expires_ns
