"""Quota actions of the admin API: their names, bodies and answers.

| action | body | results |
|---|---|---|
| list_quotas | empty | QuotaInfo, one per quota |
| set_quota | SetQuota | none |
| remove_quota | WhoseQuota | none |

Rules: see ``admin``.
"""

from typing import Annotated, Final

import msgspec

from strandline.api.wire import WireAnswer, WireMessage
from strandline.security.quota import LIMIT_MAX, Quota

LIST_QUOTAS: Final = "list_quotas"
SET_QUOTA: Final = "set_quota"
REMOVE_QUOTA: Final = "remove_quota"

ACTIONS: Final[dict[str, str]] = {
    LIST_QUOTAS: "What principals may use of each broker; no body.",
    SET_QUOTA: "Limit a principal; body: {principal, publish_bytes_per_s, read_bytes_per_s, "
    "requests_per_s, connections}, 0: no limit.",
    REMOVE_QUOTA: "Limit a principal no more; body: {principal}.",
}

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
        """Return the limits without the principal."""
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
    """A quota as it is listed; 0 means no limit."""

    principal: str
    publish_bytes_per_s: int = 0
    read_bytes_per_s: int = 0
    requests_per_s: int = 0
    connections: int = 0
