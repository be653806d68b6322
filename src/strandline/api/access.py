"""Access control actions of the admin API: their names, bodies and results.

| action | body | results |
|---|---|---|
| list_rules | empty | Rule, one per rule |
| grant | Rules | none |
| revoke | Rules | none |
| list_tokens | empty | TokenInfo, one per token |
| add_token | AddToken | none |
| revoke_token | WhichToken | none |

Rules: see ``admin``. The caller generates a token and sends only its hash.
"""

from typing import Annotated, Final

import msgspec

from strandline.api.wire import Count, WireAnswer, WireMessage
from strandline.security.acl import Rule

LIST_RULES: Final = "list_rules"
GRANT: Final = "grant"
REVOKE: Final = "revoke"
LIST_TOKENS: Final = "list_tokens"
ADD_TOKEN: Final = "add_token"  # noqa: S105  the name of an action
REVOKE_TOKEN: Final = "revoke_token"  # noqa: S105  the name of an action
RULES_MAX: Final = 1000

ACTIONS: Final[dict[str, str]] = {
    LIST_RULES: "Who may do what; no body.",
    GRANT: "Add rules; body: {rules: [[principal, operation, kind, pattern], …]}.",
    REVOKE: "Take rules back; body as of grant.",
    LIST_TOKENS: "Tokens and for whom they stand; no body.",
    ADD_TOKEN: "Let a token stand for a principal; body: {id, principal, sha256, expires_ns}.",
    REVOKE_TOKEN: "Let a token be worth nothing; body: {id}.",
}

_TokenId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}$")]


class Rules(WireMessage, frozen=True, kw_only=True):
    """Access rules to grant or revoke."""

    rules: Annotated[tuple[Rule, ...], msgspec.Meta(min_length=1, max_length=RULES_MAX)]


class AddTokenRequest(WireMessage, frozen=True, kw_only=True):
    """A new token, represented by its hash."""

    id: _TokenId
    principal: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    sha256: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    """SHA-256 of the token's text; base64 in JSON."""
    expires_ns: Count = 0
    """0: never."""


class WhichToken(WireMessage, frozen=True, kw_only=True):
    """A reference to a token."""

    id: _TokenId


class TokenInfo(WireAnswer, frozen=True, kw_only=True):
    """A token as it is listed, without its text."""

    id: str
    principal: str
    created_ns: int
    expires_ns: int = 0
