"""The assignment of partitions to the members of a consumer group.

Rules: every subscribed partition has exactly one reader, which subscribes to it. No single move
between two members would make their counts more even. A partition stays where it is unless moving
it makes the counts more even. The same input gives the same assignment.

Must not know epochs or time.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping

from strandline.types import PartitionName

Readers = dict[str, set[PartitionName]]
"""Member → its partitions."""


def assign(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, int],
    current: Mapping[str, Collection[PartitionName]],
) -> Readers:
    """Return the partitions of each member.

    Args:
        subscriptions: streams by member.
        partitions: how many each stream has; a missing stream has none.
        current: the assignment so far.
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
    """Give each free partition to the subscriber with the fewest; on a tie to the first."""
    heaps = {
        stream: [(len(readers[member]), member) for member in members]
        for stream, members in subscribers.items()
    }
    for heap in heaps.values():
        heapq.heapify(heap)
    for name in sorted(free):
        heap = heaps[name.stream]
        # Counts only grow here, so a stale heap entry is too small and is corrected here.
        while heap[0][0] != len(readers[heap[0][1]]):
            heapq.heapreplace(heap, (len(readers[heap[0][1]]), heap[0][1]))
        readers[heap[0][1]].add(name)


def _even_out(readers: Readers, subscribers: Mapping[str, list[str]]) -> bool:
    """Move one partition from each member, fullest first, to one with at least two fewer.

    One partition a member: if a member gave several at once, it would fall below others, which
    would then give to it. Each move lowers the sum of the squared counts, so this terminates.

    Returns:
        whether any partition moved.
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
