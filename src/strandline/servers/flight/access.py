"""Handlers of the access control commands.

Rule: the commands work even if access control is off, so that rules can exist before it is turned
    on.
"""

from strandline.api import access as wire
from strandline.core.metadata.commands import AddToken, Grant, Revoke, RevokeToken
from strandline.security.acl import Rule, check_rule
from strandline.security.principal import check_user_name
from strandline.security.tokens import Token
from strandline.servers.flight.actions import ActionContext, handles


@handles(wire.LIST_RULES)
def _list_rules(context: ActionContext, _: None) -> list[Rule]:
    return list(context.broker.image.rules)


@handles(wire.GRANT)
def _grant(context: ActionContext, request: wire.Rules) -> list[None]:
    for rule in request.rules:
        check_rule(rule)
    context.run(context.broker.change(Grant(request.rules)))
    return []


@handles(wire.REVOKE)
def _revoke(context: ActionContext, request: wire.Rules) -> list[None]:
    context.run(context.broker.change(Revoke(request.rules)))
    return []


@handles(wire.LIST_TOKENS)
def _list_tokens(context: ActionContext, _: None) -> list[wire.TokenInfo]:
    return [
        wire.TokenInfo(
            id=token.id,
            principal=token.principal,
            created_ns=token.created_ns,
            expires_ns=token.expires_ns,
        )
        for _, token in sorted(context.broker.image.tokens.items())
    ]


@handles(wire.ADD_TOKEN)
def _add_token(context: ActionContext, request: wire.AddTokenRequest) -> list[None]:
    check_user_name(request.principal)  # rejects the brokers' own principal
    token = Token(
        id=request.id,
        principal=request.principal,
        sha256=request.sha256,
        created_ns=context.broker.clock.now_ns(),
        expires_ns=request.expires_ns,
    )
    context.run(context.broker.change(AddToken(token)))
    return []


@handles(wire.REVOKE_TOKEN)
def _revoke_token(context: ActionContext, request: wire.WhichToken) -> list[None]:
    context.run(context.broker.change(RevokeToken(request.id)))
    return []
