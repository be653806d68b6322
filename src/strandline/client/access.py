"""Access control of a client: list, grant and revoke rules and tokens.

Rule: tokens are generated here, and only their hash is sent. So only the caller has the text.
"""

import secrets
import time

from strandline.api import access
from strandline.api.wire import INT64_MAX
from strandline.client.cluster_client import ClusterClient
from strandline.errors import InvalidRequestError
from strandline.security.acl import Kind, Operation, Rule, check_rule
from strandline.security.principal import check_user_name
from strandline.security.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    check_token_id,
    fingerprint,
    token_id,
    token_text,
)

S_PER_DAY = 86_400


class AccessControl:
    """The rules and tokens of a broker or cluster. Returned by ``Client.access``.

    Args:
        brokers: the brokers that are asked.
    """

    def __init__(self, brokers: ClusterClient) -> None:
        self._brokers = brokers

    def rules(self) -> list[Rule]:
        """Return every rule, sorted by principal."""
        return self._brokers.ask(access.LIST_RULES, None)

    def grant(self, principal: str, operation: Operation, kind: Kind, *patterns: str) -> None:
        """Allow a principal an operation; has no effect when repeated.

        Args:
            principal: the name in a certificate, or the principal of a token.
            operation: ``read``, ``publish``, ``group`` or ``admin``.
            kind: ``stream``, ``subject``, ``group`` or ``cluster``.
            *patterns: subjects with NATS wildcards; for other kinds a name, or a prefix followed by
                ``*``.

        Raises:
            InvalidRequestError: a rule is malformed.
            NotAllowedError: the caller does not administer the cluster.
        """
        rules = [Rule(principal, operation, kind, pattern) for pattern in patterns]
        self._brokers.change(access.GRANT, _checked(rules))

    def revoke(self, principal: str, operation: Operation, kind: Kind, *patterns: str) -> None:
        """Remove rules that ``grant`` added; takes the same arguments.

        Raises:
            InvalidRequestError: one of the rules does not exist; none was removed.
            NotAllowedError: the caller does not administer the cluster.
        """
        rules = [Rule(principal, operation, kind, pattern) for pattern in patterns]
        self._brokers.change(access.REVOKE, _checked(rules))

    def tokens(self) -> list[access.TokenInfo]:
        """Return every token with its principal and expiry."""
        return self._brokers.ask(access.LIST_TOKENS, None)

    def create_token(self, principal: str, *, days: float | None = None) -> str:
        """Create a token for a principal; its text cannot be retrieved again.

        Args:
            principal: the principal's name.
            days: the days until the token expires; None: never.

        Raises:
            InvalidRequestError: the name is not valid, or ``days`` is out of range.
            NotAllowedError: the caller does not administer the cluster.
        """
        check_user_name(principal)
        text = token_text(secrets.token_bytes(ID_BYTES + SECRET_BYTES))
        now_ns = time.time_ns()
        if days is not None and not 0 < days < (INT64_MAX - now_ns) / 1e9 / S_PER_DAY:
            raise InvalidRequestError(f"days is out of range: {days}; give None for no expiry")
        expires_ns = 0 if days is None else now_ns + int(days * S_PER_DAY * 1e9)
        body = access.AddTokenRequest(
            id=token_id(text) or "",
            principal=principal,
            sha256=fingerprint(text),
            expires_ns=expires_ns,
        )
        self._brokers.change(access.ADD_TOKEN, body)
        return text

    def revoke_token(self, token: str) -> None:
        """Revoke the token with this id.

        Raises:
            InvalidRequestError: there is no such token.
            NotAllowedError: the caller does not administer the cluster.
        """
        check_token_id(token)
        body = access.WhichToken(id=token)
        self._brokers.change(access.REVOKE_TOKEN, body)


def _checked(rules: list[Rule]) -> access.Rules:
    for rule in rules:
        check_rule(rule)
    return access.Rules(rules=tuple(rules))
