"""Replica placement: computed before a command is proposed, deterministic for an image.

Rules: a partition's first replica is its preferred leader. It goes to the broker that is preferred
least often, then to the one with the fewest replicas, then to the smallest id. The others go to the
brokers with the fewest replicas, in different racks while there are enough. New replicas go only to
brokers in service that are not being drained.
"""

from collections import Counter
from collections.abc import Iterable

from strandline.core.metadata.commands import ElectLeader, Move, Replicas
from strandline.core.metadata.election import at, leader_change, led_partitions
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.errors import InvalidConfigError, UnavailableError
from strandline.types import BrokerId, PartitionName


class Loads:
    """How many replicas and preferred leaderships each broker is to have."""

    def __init__(self, image: MetadataImage) -> None:
        self._brokers = image.brokers
        self.replicas = image.table.replicas.copy()
        self.preferred = image.table.preferred.copy()

    def add(self, replicas: Replicas) -> None:
        """Count a partition."""
        self.replicas.update(replicas)
        self.preferred.update(replicas[:1])

    def remove(self, replicas: Replicas) -> None:
        """No longer count a partition."""
        self.replicas.subtract(replicas)
        self.preferred.subtract(replicas[:1])

    def has_room(self, broker: BrokerId) -> bool:
        """Whether a broker can keep one more replica; one that reports no limit can."""
        most = self._brokers[broker].partitions_max
        return not most or self.replicas[broker] < most

    def with_room(self, brokers: Iterable[BrokerId]) -> list[BrokerId]:
        """Return the brokers that can keep one more replica."""
        return [broker for broker in brokers if self.has_room(broker)]

    def check_room(self, targets: Iterable[Replicas], before: Iterable[Replicas] = ()) -> None:
        """Check that no broker gets more replicas than it can open; targets are counted already.

        Args:
            targets: the new replicas of partitions.
            before: their present replicas.

        Raises:
            InvalidConfigError: a broker would keep more than it can; the message has its limit.
        """
        more = Counter(broker for replicas in targets for broker in replicas)
        more.subtract(broker for replicas in before for broker in replicas)
        for broker, count in sorted(more.items()):
            most = self._brokers[broker].partitions_max if broker in self._brokers else 0
            if most and count > 0 and self.replicas[broker] > most:
                room = max(0, most - self.replicas[broker] + count)
                raise InvalidConfigError(
                    f"broker {broker} would get {count} more partitions, and there is room for "
                    f"{room}: with the files that it may have open it can keep {most}. Raise that "
                    "with 'ulimit -n' (systemd: LimitNOFILE) and start it again, or add a broker"
                )

    def rack(self, broker: BrokerId) -> str:
        """Return a broker's rack; one without a label is a rack of its own."""
        return self._brokers[broker].rack or f"\0{broker}"

    def best(self, allowed: Iterable[BrokerId], beside: Iterable[BrokerId]) -> BrokerId | None:
        """Return the broker for the next replica of a partition, given those it has.

        Args:
            allowed: brokers that may take it.
            beside: brokers that keep the partition already.
        """
        taken = set(beside)
        racks = Counter(self.rack(broker) for broker in taken)

        def cost(broker: BrokerId) -> tuple[int, int, int, BrokerId]:
            crowd = racks[self.rack(broker)]
            # On a tie take the broker that is preferred leader most often: the others are due to
            # become preferred leaders of other partitions.
            return (crowd, self.replicas[broker], -self.preferred[broker], broker)

        return min((b for b in allowed if b not in taken), key=cost, default=None)

    def first(self, allowed: Iterable[BrokerId]) -> BrokerId:
        """Return the next preferred leader."""
        return min(allowed, key=lambda b: (self.preferred[b], self.replicas[b], b))

    def leader_first(self, replicas: Iterable[BrokerId]) -> Replicas:
        """Return the replicas: first the least often preferred leader, then the others by id."""
        members = sorted(replicas)
        first = self.first(members)
        return (first, *(b for b in members if b != first))


def open_brokers(image: MetadataImage) -> list[BrokerId]:
    """Return the brokers that may take new replicas, ascending."""
    return sorted(b for b, broker in image.brokers.items() if broker.may_take_replicas)


def place(image: MetadataImage, *, partitions: int, replicas: int) -> tuple[Replicas, ...]:
    """Return the replicas of new partitions, for ``CreateStream`` and ``AddPartitions``.

    Raises:
        UnavailableError: fewer brokers are in service than replicas are asked for.
        InvalidConfigError: a broker would keep more than it can.
    """
    if not image.brokers:
        return ()
    allowed, loads = open_brokers(image), Loads(image)
    if len(allowed) < replicas:
        raise _too_few(replicas, len(allowed))
    placed = []
    for _ in range(partitions):
        free = loads.with_room(allowed)
        if len(free) < replicas:
            free = allowed  # ``check_room`` names the broker without room
        chosen = [loads.first(free)]
        while len(chosen) < replicas:
            broker = loads.best(free, chosen)
            assert broker is not None, "there are enough brokers"
            chosen.append(broker)
        placed.append(tuple(chosen))
        loads.add(placed[-1])
    loads.check_room(placed)
    return tuple(placed)


def _too_few(replicas: int, brokers: int) -> UnavailableError:
    return UnavailableError(
        f"{replicas} replicas need as many brokers in service; there are {brokers}: start more, or "
        "ask for fewer replicas"
    )


def rotated(replicas: Replicas, number: int) -> Replicas:
    """Return a partition's replicas, rotated so that each partition prefers another leader."""
    first = number % len(replicas)
    return replicas[first:] + replicas[:first]


def well_placed(
    image: MetadataImage, partition: PartitionImage, *, replicas: int, loads: Loads
) -> Replicas:
    """Return a partition's replicas by the rules, moving as little as possible.

    A present replica stays unless it is out of service, drained, or shares a rack with another
    that stays while a rack is free. A broker without room is chosen only if no other is left.

    Raises:
        UnavailableError: fewer brokers are in service than replicas are asked for.
    """
    allowed = open_brokers(image)
    if len(allowed) < replicas:
        raise _too_few(replicas, len(allowed))
    staying: list[BrokerId] = []
    for broker in partition.target:
        is_alone = loads.rack(broker) not in map(loads.rack, staying)
        if broker in allowed and is_alone and len(staying) < replicas:
            staying.append(broker)
    while len(staying) < replicas:
        racks = Counter(map(loads.rack, staying))
        staying.append(
            min(
                (b for b in allowed if b not in staying),
                key=lambda b: (
                    b not in partition.target and not loads.has_room(b),
                    racks[loads.rack(b)],
                    b not in partition.target,
                    loads.replicas[b],
                    b,
                ),
            )
        )
    return tuple(staying)


def rebalance_leaders(image: MetadataImage) -> ElectLeader | None:
    """Return changes that give leaderships back to preferred leaders that can take them.

    Placement spreads preferred leaders evenly, so this balances leaderships. It settles: repeated,
    it finds nothing to do.
    """
    led = led_partitions(image)
    changes = []
    for name, partition in image.unsettled():
        preferred = next(iter(partition.target), None)
        if preferred is None or partition.leader in (None, preferred):
            continue
        broker = image.brokers[preferred]
        if preferred in partition.isr and broker.may_take_replicas and not broker.is_impaired:
            changes.append(leader_change(name, partition, preferred, led=led))
    return ElectLeader(tuple(changes), "preferred") if changes else None


def is_under_way(partition: PartitionImage, image: MetadataImage) -> bool:
    """Whether a partition's reassignment is copying records.

    A reassignment that waits for a broker or a leader copies nothing, and must not hold back
    others.
    """
    copying = [b for b in partition.adding if b not in partition.isr]
    return partition.leader is not None and any(not image.brokers[b].is_fenced for b in copying)


def moving(image: MetadataImage) -> int:
    """Count the partitions that are being moved."""
    return sum(is_under_way(partition, image) for _, partition in image.unsettled())


def drain_plan(image: MetadataImage, *, moves_max: int) -> tuple[Move, ...]:
    """Return the next reassignments off brokers that are being drained.

    A partition for which no other broker has room stays until one has.

    Args:
        image: as it is.
        moves_max: how many partitions may be moving at once, including those that already are.
    """
    leaving = _leaving(image)
    if not leaving:
        return ()
    room = moves_max - moving(image)
    allowed, loads = open_brokers(image), Loads(image)
    moves: list[Move] = []
    for name, partition in image.partitions():
        # A reassignment to a broker that is now being drained is redirected at once.
        has_place = is_under_way(partition, image)
        if leaving.isdisjoint(partition.target) or (room <= 0 and not has_place):
            continue
        target = _without(partition, leaving, loads=loads, allowed=allowed)
        if target != partition.target:
            room -= not has_place
            loads.remove(partition.target)
            loads.add(target)
            moves.append(Move(at(name, partition), target))
    return tuple(moves)


def stranded(image: MetadataImage) -> tuple[PartitionName, ...]:
    """Return partitions that cannot leave a drained broker: no other one has room."""
    leaving = _leaving(image)
    if not leaving:
        return ()
    allowed, loads = open_brokers(image), Loads(image)
    found = []
    for name, partition in image.partitions():
        if leaving.isdisjoint(partition.target):
            continue
        target = _without(partition, leaving, loads=loads, allowed=allowed)
        if not leaving.isdisjoint(target):
            found.append(name)
    return tuple(found)


def _leaving(image: MetadataImage) -> set[BrokerId]:
    """Return the drained brokers that still have or will have replicas."""
    kept = image.table.replicas
    return {b for b, broker in image.brokers.items() if broker.is_draining and kept[b]}


def _without(
    partition: PartitionImage,
    leaving: set[BrokerId],
    *,
    loads: Loads,
    allowed: list[BrokerId],
) -> Replicas:
    """Replace each leaving replica in its position, if a broker has room."""
    target = list(partition.target)
    for index, broker in enumerate(partition.target):
        if broker in leaving:
            beside = [b for b in target if b != broker]
            other = loads.best(loads.with_room(allowed), beside)
            target[index] = broker if other is None else other
    return tuple(target)


def rebalance_plan(image: MetadataImage, *, moves_max: int) -> tuple[Move, ...]:
    """Return reassignments to brokers that have fewer replicas, such as one that has just joined.

    An operator orders this, since it copies records. It moves one replica of a partition at a time,
    from the fullest broker to the emptiest, while that lowers the difference and gives no rack a
    second replica. It settles when no broker has two replicas more than another. Brokers without
    room get none.

    Raises:
        InvalidConfigError: only brokers without room should get more; it names the first.
    """
    loads, allowed = Loads(image), open_brokers(image)
    still = {name: p for name, p in image.partitions() if p.replicas and not p.is_moving}
    moves: dict[PartitionName, Move] = {}
    for _ in range(moves_max - moving(image)):
        found = _next_spread(still, loads, allowed, takers=loads.with_room(allowed))
        if found is None:
            if not moves:
                _check_spread(still, loads, allowed)
            break
        name, target = found
        partition = still.pop(name)
        loads.remove(partition.replicas)
        target = loads.leader_first(target)
        loads.add(target)
        moves[name] = Move(at(name, partition), target)
    return tuple(moves.values())


def _check_spread(
    still: dict[PartitionName, PartitionImage], loads: Loads, allowed: list[BrokerId]
) -> None:
    """Raise an error if nothing can move only because brokers lack room.

    Raises:
        InvalidConfigError: names the broker without room.
    """
    found = _next_spread(still, loads, allowed, takers=allowed)
    if found is not None:
        name, target = found
        loads.remove(still[name].replicas)
        loads.add(target)
        loads.check_room([target], [still[name].replicas])


def _next_spread(
    still: dict[PartitionName, PartitionImage],
    loads: Loads,
    allowed: list[BrokerId],
    *,
    takers: list[BrokerId],
) -> tuple[PartitionName, Replicas] | None:
    """Return a partition of the fullest broker that the emptiest taker could keep instead."""
    by_load = sorted(allowed, key=lambda b: (loads.replicas[b], b))
    for empty in (broker for broker in by_load if broker in takers):
        for full in reversed(by_load):
            if loads.replicas[full] - loads.replicas[empty] < 2:
                break
            for name, partition in still.items():
                if full not in partition.replicas or empty in partition.replicas:
                    continue
                others = [b for b in partition.replicas if b != full]
                racks = {loads.rack(b) for b in others}
                if loads.rack(empty) not in racks or loads.rack(full) in racks:
                    return name, (*others, empty)
    return None
