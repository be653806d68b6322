"""Commands about how much a principal may use; part of ``commands``."""

import msgspec

from strandline.security.quota import Quota


class SetQuota(msgspec.Struct, frozen=True, tag=True):
    """Set a principal's limits, in place of earlier ones."""

    principal: str
    quota: Quota


class RemoveQuota(msgspec.Struct, frozen=True, tag=True):
    """Remove a principal's limits."""

    principal: str
