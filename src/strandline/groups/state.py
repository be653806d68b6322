"""What the coordinator of consumer groups keeps, and the entries that change it.

The state is exactly what its entries say, applied in the order in which they were stored, so a
coordinator that begins anew knows what the one before it knew: members, what each may consume, and
the positions that were committed. Who was heard of when is not kept.

Rules: entries carry results, not requests, so that applying them decides nothing. Pure.
"""

from collections.abc import Iterator

import msgspec

from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.types import PartitionName

Positions = dict[str, dict[int, int]]
"""Stream → partition → offset of the next record to consume."""
Partitions = frozenset[PartitionName]


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer of a group, as long as it is heard of."""

    id: str
    """Made by the member, another one for each life of it."""
    instance: str = ""
    """A static member's name, the same in each life of it; empty for others."""
    streams: tuple[str, ...]
    session_ms: int
    """It is removed when it was not heard of for so long."""
    epoch: int
    """The group's when this member's partitions changed last."""
    assigned: Partitions = frozenset()
    """What it may consume."""
    revoking: Partitions = frozenset()
    """What it was told to give up and may still be consuming: nobody else gets it before."""

    @property
    def held(self) -> Partitions:
        """What nobody else may consume now."""
        return self.assigned | self.revoking


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One atomic change of one group; without a group it moves the epoch at most."""

    group: str = ""
    epoch: int = 0
    members: tuple[Member, ...] = ()
    """New, or as they are from now on."""
    gone: tuple[str, ...] = ()
    positions: Positions = {}
    committed: dict[str, int] = {}
    """Member → number of its last commit."""
    is_deleted: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def encode_entry(entry: Entry) -> bytes:
    """The entry as a record's value."""
    return _encode(entry)


def decode_entry(value: bytes) -> Entry:
    """The entry in a record.

    Raises:
        InvalidRecordError: there is none.
    """
    try:
        return _decode(value)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not an entry of the group coordinator: {error}") from error


class Group:
    """One consumer group."""

    def __init__(self) -> None:
        self.epoch = 0
        self.members: dict[str, Member] = {}
        self.positions: Positions = {}
        self.committed: dict[str, int] = {}
        """Number of each member's last commit: one that was overtaken on its way is void."""

    def by_instance(self, instance: str) -> Member | None:
        """The static member of that name."""
        if not instance:
            return None
        return next((m for m in self.members.values() if m.instance == instance), None)

    def position(self, partition: PartitionName) -> int | None:
        """The offset of the next record to consume; None if none was committed."""
        return self.positions.get(partition.stream, {}).get(partition.partition)

    def positions_of(self, partitions: Partitions) -> Positions:
        """What was committed for these partitions."""
        found: Positions = {}
        for name in sorted(partitions):
            offset = self.position(name)
            if offset is not None:
                found.setdefault(name.stream, {})[name.partition] = offset
        return found


class GroupsState:
    """Everything that entries have said so far."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.epoch = 0
        """The last one given to any group; groups that are forgotten do not take it along."""

    def apply(self, entry: Entry) -> None:
        """Take a change over."""
        self.epoch = max(self.epoch, entry.epoch)
        if not entry.group:
            return
        if entry.is_deleted:
            self.groups.pop(entry.group, None)
            return
        group = self.groups.setdefault(entry.group, Group())
        group.epoch = max(group.epoch, entry.epoch)
        for member in entry.members:
            group.members[member.id] = member
        for gone in entry.gone:
            group.members.pop(gone, None)
            group.committed.pop(gone, None)
        group.committed |= entry.committed
        for stream, offsets in entry.positions.items():
            group.positions.setdefault(stream, {}).update(offsets)

    def entries(self, per_entry: int) -> Iterator[Entry]:
        """The whole state anew, as entries of a limited number of items; nothing else is needed.

        Entries that are older and still there do no harm: whatever they say of a member or a
        position was overruled among them, or is said here again.
        """
        yield Entry(epoch=self.epoch)
        for name, group in self.groups.items():
            yield Entry(group=name, epoch=group.epoch)
            members = list(group.members.values())
            for start in range(0, len(members), per_entry):
                some = tuple(members[start : start + per_entry])
                numbers = {m.id: group.committed[m.id] for m in some if m.id in group.committed}
                yield Entry(group=name, members=some, committed=numbers)
            for stream, offsets in group.positions.items():
                items = sorted(offsets.items())
                for start in range(0, len(items), per_entry):
                    part = dict(items[start : start + per_entry])
                    yield Entry(group=name, positions={stream: part})
