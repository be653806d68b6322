"""Access control at a client: rules and tokens, changed at any broker.

Rule: a token is made here, and only its hash is sent: nobody but the caller ever has its text.
"""

import secrets
import time

from strandline.client.cluster_client import ClusterClient
from strandline.errors import InvalidRequestError
from strandline.protocol import access
from strandline.security.acl import Kind, Operation, Rule, check_rule
from strandline.security.principal import check_user_name
from strandline.security.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    fingerprint,
    token_id,
    token_text,
)

S_PER_DAY = 86_400


class AccessControl:
    """Who may do what; what ``Client.access`` gives.

    Args:
        brokers: who is asked.
    """

    def __init__(self, brokers: ClusterClient) -> None:
        self._brokers = brokers

    def rules(self) -> list[Rule]:
        """Every rule, by principal."""
        return self._brokers.ask(access.LIST_RULES, None, Rule)

    def grant(self, principal: str, operation: Operation, kind: Kind, *patterns: str) -> None:
        """Allow a principal an operation; harmless when repeated.

        Args:
            principal: the name in a certificate, or that a token stands for.
            operation: ``read``, ``publish``, ``group`` or ``admin``.
            kind: ``stream``, ``subject``, ``group`` or ``cluster``.
            *patterns: of a subject with the wildcards of NATS; else a name, or its beginning and
                ``*``.

        Raises:
            InvalidRequestError: no such rule can be.
            NotAllowedError: the caller does not administer the cluster.
        """
        rules = [Rule(principal, operation, kind, pattern) for pattern in patterns]
        self._brokers.change(access.GRANT, _checked(rules), Rule)

    def revoke(self, principal: str, operation: Operation, kind: Kind, *patterns: str) -> None:
        """Take back what ``grant`` allowed; arguments as there.

        Raises:
            InvalidRequestError: one of these rules is not there; nothing was taken back.
            NotAllowedError: the caller does not administer the cluster.
        """
        rules = [Rule(principal, operation, kind, pattern) for pattern in patterns]
        self._brokers.change(access.REVOKE, _checked(rules), Rule)

    def tokens(self) -> list[access.TokenInfo]:
        """Every token: for whom it stands and until when."""
        return self._brokers.ask(access.LIST_TOKENS, None, access.TokenInfo)

    def create_token(self, principal: str, *, days: float | None = None) -> str:
        """A new token that stands for a principal; it is shown this once.

        Args:
            principal: its name.
            days: after which it is worth nothing; None: never.

        Raises:
            InvalidRequestError: not a name for a principal, or days that no clock can count.
            NotAllowedError: the caller does not administer the cluster.
        """
        check_user_name(principal)
        text = token_text(secrets.token_bytes(ID_BYTES + SECRET_BYTES))
        try:
            expires_ns = 0 if days is None else time.time_ns() + int(days * S_PER_DAY * 1e9)
        except (OverflowError, ValueError) as error:
            raise InvalidRequestError(f"days is {days}; None is for ever") from error
        body = access.AddToken(
            id=token_id(text) or "",
            principal=principal,
            sha256=fingerprint(text),
            expires_ns=expires_ns,
        )
        self._brokers.change(access.ADD_TOKEN, body, access.TokenInfo)
        return text

    def revoke_token(self, token: str) -> None:
        """Let a token, given by its id, be worth nothing.

        Raises:
            InvalidRequestError: there is no such token.
            NotAllowedError: the caller does not administer the cluster.
        """
        body = access.WhichToken(id=token)
        self._brokers.change(access.REVOKE_TOKEN, body, access.TokenInfo)


def _checked(rules: list[Rule]) -> access.Rules:
    for rule in rules:
        check_rule(rule)
    return access.Rules(rules=tuple(rules))
