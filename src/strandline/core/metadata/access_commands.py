"""Commands about who may do what; part of ``commands``.

Rules: as there. Of a token the hash alone is here, so that neither the metadata's log nor its
snapshots hold anything to show.
"""

import msgspec

from strandline.security.acl import Rule
from strandline.security.tokens import Token


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Allow something; a rule that is there already is left alone."""

    rules: tuple[Rule, ...]


class Revoke(msgspec.Struct, frozen=True, tag=True):
    """Take rules back, all of them or, if one is not there, none."""

    rules: tuple[Rule, ...]


class AddToken(msgspec.Struct, frozen=True, tag=True):
    """Let a token stand for a principal, in place of its earlier one of the same id."""

    token: Token


class RevokeToken(msgspec.Struct, frozen=True, tag=True):
    """Let a token be worth nothing."""

    id: str
