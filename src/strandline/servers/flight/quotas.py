"""Handlers of the quota actions.

Rules: see ``admin``, which runs them. A quota can be set while access control is off, but is
enforced only while it is on, because only then are callers identified.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from strandline.api import quotas as wire
from strandline.api.wire import decode, refuse_body
from strandline.broker.broker import Broker
from strandline.core.metadata.quota_commands import RemoveQuota, SetQuota
from strandline.security.principal import check_user_name
from strandline.security.quota import check_quota
from strandline.servers.flight.actions import ActionContext, Handler


class QuotaActions:
    """Handlers of the quota actions.

    Args:
        broker: the broker whose metadata they change.
        run: runs a coroutine on the loop and waits for it.
    """

    def __init__(self, broker: Broker, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._broker = broker
        self._run = run
        self.handlers: dict[str, Handler] = {
            wire.LIST_QUOTAS: self._list,
            wire.SET_QUOTA: self._set,
            wire.REMOVE_QUOTA: self._remove,
        }

    def _list(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, wire.LIST_QUOTAS)
        return [
            wire.QuotaInfo(principal=principal, **msgspec.structs.asdict(quota))
            for principal, quota in sorted(self._broker.image.quotas.items())
        ]

    def _set(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.SetQuotaRequest, what=wire.SET_QUOTA)
        check_user_name(request.principal)
        check_quota(request.quota)
        self._run(self._broker.change(SetQuota(request.principal, request.quota)))
        return []

    def _remove(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, wire.WhoseQuota, what=wire.REMOVE_QUOTA)
        self._run(self._broker.change(RemoveQuota(request.principal)))
        return []
