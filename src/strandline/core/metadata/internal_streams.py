"""Internal streams: groups, transactions, cursors and activity.

They are created at first use. Rules: they have a replica on each broker that can take one, three at
most, also when brokers join later. Once added replicas are in sync, ``replicas`` and ``min_isr``
are raised, so that an acknowledgement promises as much as if the stream had been created with them.
The number of replicas never falls.
"""

from typing import Final

import msgspec

from strandline.config import StreamConfig
from strandline.core.metadata.commands import Move, PartitionAt, Replicas
from strandline.core.metadata.election import at
from strandline.core.metadata.image import (
    INTERNAL_PREFIX,
    MetadataImage,
    PartitionImage,
    StreamImage,
)
from strandline.core.metadata.placement import Loads, moving, open_brokers
from strandline.types import BrokerId

COPIES_MAX: Final = 3


def is_internal(name: str) -> bool:
    """Whether a stream is an internal one."""
    return name.startswith(INTERNAL_PREFIX)


def copies_wanted(image: MetadataImage) -> int:
    """Return how many replicas an internal stream should have now."""
    return max(1, min(COPIES_MAX, len(open_brokers(image))))


def with_copies(config: StreamConfig, copies: int) -> StreamConfig:
    """Return an internal stream's settings for this many replicas."""
    acks = "replicated" if config.acks == "disk" and copies > 1 else config.acks
    return msgspec.structs.replace(config, replicas=copies, min_isr=copies // 2 + 1, acks=acks)


def widen_plan(image: MetadataImage, *, moves_max: int) -> tuple[Move, ...]:
    """Return reassignments that add replicas to internal streams with too few.

    Args:
        image: as it is.
        moves_max: how many partitions may be moving at once, including those that already are.
    """
    copies, room = copies_wanted(image), moves_max - moving(image)
    loads, allowed = Loads(image), open_brokers(image)
    moves: list[Move] = []
    for name, partition in image.unsettled():
        if len(moves) >= room:
            break
        if is_internal(name.stream) and partition.replicas and not partition.is_moving:
            target = _widened(partition, copies, loads=loads, allowed=allowed)
            if target != partition.target:
                loads.remove(partition.target)
                loads.add(target)
                moves.append(Move(at(name, partition), target))
    return tuple(moves)


def _widened(
    partition: PartitionImage, copies: int, *, loads: Loads, allowed: list[BrokerId]
) -> Replicas:
    target = list(partition.target)
    while len(target) < copies:
        broker = loads.best(loads.with_room(allowed), target)
        if broker is None:
            break  # no other broker may take a replica, or has room for one
        target.append(broker)
    return tuple(target)


def adapt_settings(image: MetadataImage, moved: tuple[PartitionAt, ...]) -> MetadataImage:
    """Raise ``replicas`` and ``min_isr`` after reassignments have finished."""
    changed: dict[str, StreamImage | None] = {}
    for name in {each.stream for each in moved if is_internal(each.stream)} & image.streams.keys():
        stream = image.streams[name]
        copies = min(len(partition.replicas) for partition in stream.partitions)
        is_settled = not any(partition.is_moving for partition in stream.partitions)
        if is_settled and copies > stream.config.replicas:
            config = with_copies(stream.config, copies)
            changed[name] = msgspec.structs.replace(stream, config=config)
    return image.with_streams(changed) if changed else image
