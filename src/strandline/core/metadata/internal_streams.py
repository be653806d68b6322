"""Streams of the cluster's own: groups, transactions, cursors, what happened.

They are made at first use, with as many copies as there are brokers then. Rules: they have a copy
on each broker that may take one, three at most, whenever that was; when the copies that were added
are in sync the settings follow, so that an acknowledgement means what it means where there are so
many. They are never made smaller.
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
    """Whether a stream is the cluster's own."""
    return name.startswith(INTERNAL_PREFIX)


def copies_wanted(image: MetadataImage) -> int:
    """Return how many replicas an internal stream is to have now."""
    return max(1, min(COPIES_MAX, len(open_brokers(image))))


def with_copies(config: StreamConfig, copies: int) -> StreamConfig:
    """The settings of such a stream with so many copies."""
    acks = "replicated" if config.acks == "disk" and copies > 1 else config.acks
    return msgspec.structs.replace(config, replicas=copies, min_isr=copies // 2 + 1, acks=acks)


def widen_plan(image: MetadataImage, *, moves_max: int) -> tuple[Move, ...]:
    """The next copies for streams that have fewer than they are to have.

    Args:
        image: as it is.
        moves_max: how many partitions may be moving at once, those that are included.
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
            break  # some that have a copy may take no more, others have no room: nobody else
        target.append(broker)
    return tuple(target)


def adapt_settings(image: MetadataImage, moved: tuple[PartitionAt, ...]) -> MetadataImage:
    """The image after moves have ended: settings say how many copies there are now."""
    changed: dict[str, StreamImage | None] = {}
    for name in {each.stream for each in moved if is_internal(each.stream)} & image.streams.keys():
        stream = image.streams[name]
        copies = min(len(partition.replicas) for partition in stream.partitions)
        is_settled = not any(partition.is_moving for partition in stream.partitions)
        if is_settled and copies > stream.config.replicas:
            config = with_copies(stream.config, copies)
            changed[name] = msgspec.structs.replace(stream, config=config)
    return image.with_streams(changed) if changed else image
