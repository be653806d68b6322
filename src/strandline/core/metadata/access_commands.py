"""Commands about who may do what; part of ``commands``.

Rules: as there. Only a token's hash is stored, so neither the metadata log nor its snapshots hold
anything secret.
"""

import msgspec

from strandline.security.acl import Rule
from strandline.security.tokens import Token


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Add rules; a rule that exists is left as it is."""

    rules: tuple[Rule, ...]


class Revoke(msgspec.Struct, frozen=True, tag=True):
    """Remove rules: all of them, or none if one does not exist."""

    rules: tuple[Rule, ...]


class AddToken(msgspec.Struct, frozen=True, tag=True):
    """Add a token for a principal, in place of its earlier one of the same id."""

    token: Token


class RevokeToken(msgspec.Struct, frozen=True, tag=True):
    """Revoke a token."""

    id: str
