"""Handlers of the access control actions.

Rules: see ``admin``, which runs them. They also work while access control is off, so that rules can
be created before it is turned on.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from strandline.api import access as wire
from strandline.api.wire import decode, refuse_body
from strandline.broker.broker import Broker
from strandline.core.metadata.access_commands import AddToken, Grant, Revoke, RevokeToken
from strandline.security.acl import check_rule
from strandline.security.principal import check_user_name
from strandline.security.tokens import Token
from strandline.servers.flight.actions import ActionContext, Handler


class AccessActions:
    """Handlers of the access control actions.

    Args:
        broker: the broker whose metadata they change.
        run: runs a coroutine on the loop and waits for it.
    """

    def __init__(self, broker: Broker, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._broker = broker
        self._run = run
        self.handlers: dict[str, Handler] = {
            wire.LIST_RULES: self._rules,
            wire.GRANT: self._grant,
            wire.REVOKE: self._revoke,
            wire.LIST_TOKENS: self._tokens,
            wire.ADD_TOKEN: self._add_token,
            wire.REVOKE_TOKEN: self._revoke_token,
        }

    def _rules(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, wire.LIST_RULES)
        return list(self._broker.image.rules)

    def _grant(self, body: bytes, _: ActionContext) -> list[Any]:
        rules = decode(body, wire.Rules, what=wire.GRANT).rules
        for rule in rules:
            check_rule(rule)
        self._run(self._broker.change(Grant(rules)))
        return []

    def _revoke(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.Rules, what=wire.REVOKE)
        self._run(self._broker.change(Revoke(request.rules)))
        return []

    def _tokens(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, wire.LIST_TOKENS)
        return [
            wire.TokenInfo(
                id=token.id,
                principal=token.principal,
                created_ns=token.created_ns,
                expires_ns=token.expires_ns,
            )
            for _, token in sorted(self._broker.image.tokens.items())
        ]

    def _add_token(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.AddTokenRequest, what=wire.ADD_TOKEN)
        check_user_name(request.principal)  # refuses the brokers' own principal
        token = Token(
            id=request.id,
            principal=request.principal,
            sha256=request.sha256,
            created_ns=self._broker.clock.now_ns(),
            expires_ns=request.expires_ns,
        )
        self._run(self._broker.change(AddToken(token)))
        return []

    def _revoke_token(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.WhichToken, what=wire.REVOKE_TOKEN)
        self._run(self._broker.change(RevokeToken(request.id)))
        return []
