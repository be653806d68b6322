"""Quotas in the image: the limits of each principal, per broker.

Invariant: every quota limits something.
"""

import msgspec

from strandline.core.metadata.commands import RemoveQuota, SetQuota
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.security.principal import check_user_name
from strandline.security.quota import check_quota

QUOTAS_MAX = 10_000


def set_quota(image: MetadataImage, command: SetQuota) -> MetadataImage:
    """Set a principal's limits."""
    check_user_name(command.principal)
    check_quota(command.quota)
    if command.principal not in image.quotas and len(image.quotas) >= QUOTAS_MAX:
        raise CommandRejectedError(
            "limit", f"there are already {QUOTAS_MAX} quotas, the maximum; remove some first"
        )
    quotas = {**image.quotas, command.principal: command.quota}
    return msgspec.structs.replace(image, quotas=quotas)


def remove_quota(image: MetadataImage, command: RemoveQuota) -> MetadataImage:
    """Remove a principal's limits."""
    if command.principal not in image.quotas:
        raise CommandRejectedError(
            "unknown_quota",
            f"{command.principal!r} has no quota; 'strandline quota list' shows those there are",
        )
    quotas = {name: quota for name, quota in image.quotas.items() if name != command.principal}
    return msgspec.structs.replace(image, quotas=quotas)
