"""Handlers of the quota commands.

Rule: a quota can be set while access control is off, but it is enforced only while access control
    is
on, because only then callers are identified.
"""

import msgspec

from strandline.api import quotas as wire
from strandline.core.metadata.commands import RemoveQuota, SetQuota
from strandline.security.principal import check_user_name
from strandline.security.quota import check_quota
from strandline.servers.flight.actions import ActionContext, handles


@handles(wire.LIST_QUOTAS)
def _list(context: ActionContext, _: None) -> list[wire.QuotaInfo]:
    return [
        wire.QuotaInfo(principal=principal, **msgspec.structs.asdict(quota))
        for principal, quota in sorted(context.broker.image.quotas.items())
    ]


@handles(wire.SET_QUOTA)
def _set(context: ActionContext, request: wire.SetQuotaRequest) -> list[None]:
    check_user_name(request.principal)
    check_quota(request.quota)
    context.run(context.broker.change(SetQuota(request.principal, request.quota)))
    return []


@handles(wire.REMOVE_QUOTA)
def _remove(context: ActionContext, request: wire.WhoseQuota) -> list[None]:
    context.run(context.broker.change(RemoveQuota(request.principal)))
    return []
