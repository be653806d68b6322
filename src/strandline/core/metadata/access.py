"""Access rules and tokens in the image.

Invariants: each rule exists once, and rules are in ascending order, so that every broker lists them
alike; a token's id never passes to another principal while the token exists.
"""

import msgspec

from strandline.core.metadata.commands import AddToken, Grant, Revoke, RevokeToken
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.security.acl import Rule, check_rule
from strandline.security.tokens import check_token

RULES_MAX = 10_000
TOKENS_MAX = 10_000


def grant(image: MetadataImage, command: Grant) -> MetadataImage:
    """Add rules."""
    for rule in command.rules:
        check_rule(rule)
    rules = {*image.rules, *command.rules}
    if len(rules) > RULES_MAX:
        raise CommandRejectedError(
            "limit", f"there are already {RULES_MAX} rules, the maximum; remove some first"
        )
    return _with_rules(image, rules)


def revoke(image: MetadataImage, command: Revoke) -> MetadataImage:
    """Remove rules."""
    known = set(image.rules)
    for rule in command.rules:
        if rule not in known:
            raise CommandRejectedError(
                "unknown_rule",
                f"there is no rule that {rule}; 'strandline acl list' shows those there are",
            )
    return _with_rules(image, known.difference(command.rules))


def _with_rules(image: MetadataImage, rules: set[Rule]) -> MetadataImage:
    ordered = sorted(rules, key=lambda r: (r.principal, r.kind, r.pattern, r.operation))
    return msgspec.structs.replace(image, rules=tuple(ordered))


def add_token(image: MetadataImage, command: AddToken) -> MetadataImage:
    """Add a token."""
    token = command.token
    check_token(token)
    known = image.tokens.get(token.id)
    if known is not None and known.principal != token.principal:
        raise CommandRejectedError(
            "duplicate_token", f"a token with the id {token.id} exists; create one with another id"
        )
    if known is None and len(image.tokens) >= TOKENS_MAX:
        raise CommandRejectedError(
            "limit", f"there are already {TOKENS_MAX} tokens, the maximum; revoke some first"
        )
    return msgspec.structs.replace(image, tokens={**image.tokens, token.id: token})


def revoke_token(image: MetadataImage, command: RevokeToken) -> MetadataImage:
    """Revoke a token."""
    if command.id not in image.tokens:
        raise CommandRejectedError(
            "unknown_token",
            f"there is no token {command.id!r}; 'strandline token list' shows those there are",
        )
    tokens = {key: token for key, token in image.tokens.items() if key != command.id}
    return msgspec.structs.replace(image, tokens=tokens)
