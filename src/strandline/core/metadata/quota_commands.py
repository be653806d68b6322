"""Commands about how much a principal may use; part of ``commands``."""

import msgspec

from strandline.security.quota import Quota


class SetQuota(msgspec.Struct, frozen=True, tag=True):
    """Limit a principal, in place of the limits it had."""

    principal: str
    quota: Quota


class RemoveQuota(msgspec.Struct, frozen=True, tag=True):
    """Limit a principal no more."""

    principal: str
