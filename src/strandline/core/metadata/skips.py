"""Skipping beyond the end of a partition's log: a new, empty log that starts there replaces it.

Every replica creates the new log from the image, so replicas need not agree on anything. Records of
the old log are below the offset and gone, acknowledged or not. The leader proposes this and accepts
no records until it is decided, since they might be beyond the offset.
"""

import msgspec

from strandline.core.metadata.changes import find_partition
from strandline.core.metadata.commands import SkipTo
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.core.metadata.partitions import OFFSET_MAX, next_epoch, next_version
from strandline.core.metadata.streams import log_id_after
from strandline.types import LogId


def skip_to(image: MetadataImage, command: SkipTo) -> MetadataImage:
    """Give a partition a new, empty log; replicas, leader and ISR stay the same.

    All replicas stay in sync, since an empty log has nothing to copy.
    """
    partition = find_partition(image, command.at)
    if not partition.log_start_offset < command.offset <= OFFSET_MAX:
        raise CommandRejectedError(
            "limit",
            f"offset {command.offset} is not above the log start offset, "
            f"{partition.log_start_offset}",
        )
    fresh = msgspec.structs.replace(
        partition,
        log_id=LogId(image.next_log_id),
        log_start_offset=command.offset,
        leader_epoch=next_epoch(partition.leader_epoch),
        version=next_version(partition.version),
    )
    image = image.with_partitions({command.at.name: fresh})
    return msgspec.structs.replace(image, next_log_id=log_id_after(image, (fresh,)))
