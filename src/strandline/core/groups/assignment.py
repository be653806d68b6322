"""The assignment of partitions to the members of a consumer group.

Rules: every partition that a member subscribes to has exactly one reader, who subscribes to it; no
single move between two members would make their numbers more even; and a partition stays where it
is unless moving it makes the numbers more even. The same input gives the same answer.

Must not know epochs or time.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping

from strandline.types import PartitionName

Readers = dict[str, set[PartitionName]]
"""Member → what it reads."""


def assign(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[str, Collection[PartitionName]],
) -> Readers:
    """Return which member reads which partitions.

    Args:
        subscriptions: streams by member.
        partitions: how many each stream has; one that is missing has none.
        current: who reads what, or was to, so far.
    """
    readers: Readers = {member: set() for member in subscriptions}
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member in sorted(subscriptions):
        for stream in sorted(set(subscriptions[member])):
            subscribers[stream].append(member)
    free = {
        PartitionName(stream, number)
        for stream in subscribers
        for number in range(partitions.get(stream, 0))
    }
    for member in sorted(readers):
        kept = free.intersection(
            name for name in current.get(member, ()) if name.stream in subscriptions[member]
        )
        readers[member] |= kept
        free -= kept
    _hand_out(free, readers, subscribers)
    while _even_out(readers, subscribers):
        pass
    return readers


def _hand_out(
    free: Collection[PartitionName], readers: Readers, subscribers: Mapping[str, list[str]]
) -> None:
    """Give each free partition to the subscriber that has the fewest; among equals the first."""
    heaps = {
        stream: [(len(readers[member]), member) for member in members]
        for stream, members in subscribers.items()
    }
    for heap in heaps.values():
        heapq.heapify(heap)
    for name in sorted(free):
        heap = heaps[name.stream]
        # Numbers only grow here: one that is out of date is too small, and comes up by itself.
        while heap[0][0] != len(readers[heap[0][1]]):
            heapq.heapreplace(heap, (len(readers[heap[0][1]]), heap[0][1]))
        member = heap[0][1]
        readers[member].add(name)
        heapq.heapreplace(heap, (len(readers[member]), member))


def _even_out(readers: Readers, subscribers: Mapping[str, list[str]]) -> bool:
    """Let each, who has most first, give one partition to who has at least two fewer.

    One at a time: who gives many at once falls below others, who would then give to it. Each move
    makes the sum of the squares of the numbers smaller, so this comes to an end.

    Returns:
        whether any moved.
    """
    has_moved = False
    for giver in sorted(readers, key=lambda member: (-len(readers[member]), member)):
        streams = {name.stream for name in readers[giver]}
        takers = {
            min(subscribers[stream], key=lambda member: (len(readers[member]), member)): stream
            for stream in sorted(streams, reverse=True)
        }
        taker = min(takers, key=lambda member: (len(readers[member]), member), default=giver)
        if len(readers[taker]) + 1 < len(readers[giver]):
            moved = max(name for name in readers[giver] if name.stream == takers[taker])
            readers[giver].remove(moved)
            readers[taker].add(moved)
            has_moved = True
    return has_moved
