"""The access control commands: rules and tokens.

The caller generates a token and sends only its hash.
"""

from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import cluster
from strandline.api.wire import Count, WireAnswer, WireMessage
from strandline.security.acl import Rule

RULES_MAX: Final = 1000

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
    """Unix time; 0: it never expires."""


class WhichToken(WireMessage, frozen=True, kw_only=True):
    """A reference to a token."""

    id: _TokenId


class TokenInfo(WireAnswer, frozen=True, kw_only=True):
    """A token in a list, without its text."""

    id: str
    principal: str
    created_ns: int
    expires_ns: int = 0


LIST_RULES: Final = AdminCommand(
    name="list_rules",
    help="List who may do what.",
    request=NoneType,
    result=Rule,
    needs=lambda _: [cluster("admin")],
)
GRANT: Final = AdminCommand(
    name="grant",
    help="Add rules, each [principal, operation, kind, pattern].",
    request=Rules,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
REVOKE: Final = AdminCommand(
    name="revoke",
    help="Remove rules.",
    request=Rules,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
LIST_TOKENS: Final = AdminCommand(
    name="list_tokens",
    help="List tokens and their principals.",
    request=NoneType,
    result=TokenInfo,
    needs=lambda _: [cluster("admin")],
)
ADD_TOKEN: Final = AdminCommand(
    name="add_token",
    help="Create a token for a principal.",
    request=AddTokenRequest,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
REVOKE_TOKEN: Final = AdminCommand(
    name="revoke_token",
    help="Revoke a token.",
    request=WhichToken,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
