"""The quota commands."""

from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import cluster
from strandline.api.wire import WireAnswer, WireMessage
from strandline.security.quota import LIMIT_MAX, Quota

_Principal = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Limit = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)]


class SetQuotaRequest(WireMessage, frozen=True, kw_only=True):
    """Limits of a principal at each broker; 0 means no limit."""

    principal: _Principal
    publish_bytes_per_s: _Limit = 0
    read_bytes_per_s: _Limit = 0
    requests_per_s: _Limit = 0
    connections: _Limit = 0

    @property
    def quota(self) -> Quota:
        """The limits alone."""
        return Quota(
            publish_bytes_per_s=self.publish_bytes_per_s,
            read_bytes_per_s=self.read_bytes_per_s,
            requests_per_s=self.requests_per_s,
            connections=self.connections,
        )


class WhoseQuota(WireMessage, frozen=True, kw_only=True):
    """A reference to a principal."""

    principal: _Principal


class QuotaInfo(WireAnswer, frozen=True, kw_only=True):
    """A quota in a list; 0 means no limit."""

    principal: str
    publish_bytes_per_s: int = 0
    read_bytes_per_s: int = 0
    requests_per_s: int = 0
    connections: int = 0


LIST_QUOTAS: Final = AdminCommand(
    name="list_quotas",
    help="List the quotas of principals.",
    request=NoneType,
    result=QuotaInfo,
    needs=lambda _: [cluster("admin")],
)
SET_QUOTA: Final = AdminCommand(
    name="set_quota",
    help="Set a principal's limits at each broker; 0 means no limit.",
    request=SetQuotaRequest,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
REMOVE_QUOTA: Final = AdminCommand(
    name="remove_quota",
    help="Remove a principal's quota.",
    request=WhoseQuota,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
