"""State of the group coordinator, and the entries that change it.

The state is the result of applying its entries in the order in which they were stored. So a new
coordinator knows what its predecessor knew: members, their partitions, and the committed offsets.
Times of heartbeats are not kept.

Rules: entries carry results, not requests, so applying them decides nothing. Pure.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from strandline.core.groups.transactions import PendingOffsets, TransactionMark, Transactions
from strandline.errors import UNDECODABLE, InvalidRecordError
from strandline.types import PartitionName

Positions = dict[str, dict[int, int]]
"""Stream → partition → offset of the next record to consume."""
Partitions = frozenset[PartitionName]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer of a group, until it leaves or its session times out."""

    id: str
    """Chosen by the member, a new one for each start."""
    instance: str = ""
    """A static member's name, the same after each start; empty for others."""
    streams: tuple[str, ...]
    session_ms: int
    """The member is removed after this long without a heartbeat."""
    epoch: int
    """The epoch at which this member's partitions last changed."""
    assigned: Partitions = frozenset()
    """The partitions that it may consume."""
    revoking: Partitions = frozenset()
    """Partitions that it must release and may still consume; no other member gets them yet."""
    owner: str = ""
    """The principal that joined, which alone may act for it; empty: access was not checked."""

    @property
    def held(self) -> Partitions:
        """The partitions that nobody else may consume now."""
        return self.assigned | self.revoking


class Undecided(NamedTuple):
    """An offset that counts when a transaction commits."""

    transaction: PendingOffsets
    offset: int


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One atomic change of one group, or the beginning or end of a transaction.

    An entry with neither changes at most the epoch.
    """

    group: str = ""
    epoch: int = 0
    members: tuple[GroupMember, ...] = ()
    """New and changed members."""
    gone: tuple[str, ...] = ()
    positions: Positions = {}
    commit_numbers: dict[str, int] = msgspec.field(default_factory=dict, name="committed")
    """Member → number of its last commit; not the offset, which is in ``positions``."""
    is_deleted: bool = False
    transaction: PendingOffsets | None = None
    """The transaction that begins or ends, or that the offsets wait for."""
    mark: TransactionMark | None = None
    """The beginning or the outcome of the transaction."""
    ended: tuple[PendingOffsets, ...] = ()
    """Transactions that have ended with any outcome."""
    began_with: dict[str, int] = {}
    """Stream → how many partitions it had when the group first consumed it."""
    created: dict[str, int] = {}
    """Stream → its creation time, which distinguishes a stream created again under the name."""
    keeps: bool = False
    """Keep the group without members and offsets: its offsets are stored elsewhere."""
    consumer: str = ""
    """The settings and the state of the NATS consumer that owns the group, as it encoded them."""
    consumer_epoch: int = 0
    """The leader epoch under which the consumer works; writes under an older one are rejected."""
    metadata: str | None = None
    """The text that a commit carries beside its offsets; None: unchanged."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(GroupEntry).decode


def encode_entry(entry: GroupEntry) -> bytes:
    """Encode an entry as a record's value."""
    return _encode(entry)


def decode_entry(value: bytes) -> GroupEntry:
    """Decode the entry in a record.

    Raises:
        InvalidRecordError: the value is not an entry.
    """
    try:
        return _decode(value)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not an entry of the group coordinator: {error}") from error


class ConsumerGroup:
    """One consumer group."""

    def __init__(self) -> None:
        self.epoch = 0
        self.members: dict[str, GroupMember] = {}
        self.positions: Positions = {}
        self.commit_numbers: dict[str, int] = {}
        """Number of each member's last commit; an older one that arrives later is rejected."""
        self.began_with: dict[str, int] = {}
        """How many partitions each stream had when the group first consumed it. Those added later
        are newer than the group and are read from their beginning."""
        self.created: dict[str, int] = {}
        """When each stream of ``began_with`` was created; one created again is another stream."""
        self.keeps = False
        """Whether the group is kept without members and offsets: these are stored elsewhere."""
        self.undecided: dict[PartitionName, Undecided] = {}
        """Offsets that wait for transactions; until then no other member gets the partitions."""
        self.undecided_metadata: dict[PendingOffsets, str] = {}
        """The metadata of transactions' commits, until these have ended."""
        self.consumer = ""
        """The settings and state of the NATS consumer that owns the group; empty: none does."""
        self.consumer_epoch = 0
        self.metadata = ""

    @property
    def is_over(self) -> bool:
        """Whether the group can be deleted: nothing is kept in it."""
        return not (
            self.members
            or self.positions
            or self.awaits_transactions
            or self.keeps
            or self.consumer
            or self.metadata
        )

    @property
    def awaits_transactions(self) -> bool:
        """Whether a commit waits for the outcome of its transaction."""
        return bool(self.undecided or self.undecided_metadata)

    def by_instance(self, instance: str) -> GroupMember | None:
        """Return the static member of that name."""
        if not instance:
            return None
        return next((m for m in self.members.values() if m.instance == instance), None)

    def position(self, partition: PartitionName) -> int | None:
        """Return the committed offset, the next to consume; None if there is none."""
        return self.positions.get(partition.stream, {}).get(partition.partition)

    def positions_of(self, partitions: Partitions) -> Positions:
        """Return the committed offsets of these partitions."""
        found: Positions = {}
        for name in sorted(partitions):
            offset = self.position(name)
            if offset is not None:
                found.setdefault(name.stream, {})[name.partition] = offset
        return found


class GroupsState:
    """The state of all groups."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.epoch = 0
        """The last epoch given to any group; kept when a group is forgotten."""
        self.transactions = Transactions()

    def apply(self, entry: GroupEntry) -> None:
        """Apply an entry."""
        self.epoch = max(self.epoch, entry.epoch)
        for transaction in entry.ended:
            self._end(transaction, is_commit=False)
        if entry.transaction is not None and entry.mark is not None:
            self._mark(entry.transaction, entry.mark)
        if not entry.group:
            return
        if entry.is_deleted:
            self.groups.pop(entry.group, None)
            return
        group = self.groups.setdefault(entry.group, ConsumerGroup())
        group.epoch = max(group.epoch, entry.epoch)
        for member in entry.members:
            group.members[member.id] = member
        for gone in entry.gone:
            group.members.pop(gone, None)
            group.commit_numbers.pop(gone, None)
        group.commit_numbers |= entry.commit_numbers
        group.began_with |= entry.began_with
        group.created |= entry.created
        group.keeps = group.keeps or entry.keeps
        group.consumer = entry.consumer or group.consumer
        group.consumer_epoch = max(group.consumer_epoch, entry.consumer_epoch)
        if entry.transaction is not None:
            self._wait(group, entry, entry.transaction)
            return
        if entry.metadata is not None:
            group.metadata = entry.metadata
        for stream, offsets in entry.positions.items():
            group.positions.setdefault(stream, {}).update(offsets)

    def _mark(self, transaction: PendingOffsets, mark: TransactionMark) -> None:
        if mark is TransactionMark.BEGIN:
            self.transactions.begin(transaction)
        else:
            self._end(transaction, is_commit=mark is TransactionMark.COMMIT)

    def _wait(self, group: ConsumerGroup, entry: GroupEntry, transaction: PendingOffsets) -> None:
        """Keep a commit's offsets and metadata until its transaction commits."""
        self.transactions.wait(transaction, entry.group)
        if not self.transactions.is_open(transaction):
            return
        if entry.metadata is not None:
            group.undecided_metadata[transaction] = entry.metadata
        for stream, offsets in entry.positions.items():
            for number, offset in offsets.items():
                group.undecided[PartitionName(stream, number)] = Undecided(transaction, offset)

    def _end(self, transaction: PendingOffsets, *, is_commit: bool) -> None:
        """Apply the offsets and metadata of a transaction's commits, or drop them."""
        for name in self.transactions.end(transaction):
            group = self.groups.get(name)
            if group is None:
                continue
            metadata = group.undecided_metadata.pop(transaction, group.metadata)
            waited = [at for at, each in group.undecided.items() if each.transaction == transaction]
            offsets = {at: group.undecided.pop(at).offset for at in waited}
            if not is_commit:
                continue
            group.metadata = metadata
            for at, offset in offsets.items():
                group.positions.setdefault(at.stream, {})[at.partition] = offset

    def entries(self, per_entry: int) -> Iterator[GroupEntry]:
        """Return the whole state as new entries of a limited number of items.

        Older entries that are still in the log do no harm: a later one of them, or one of these,
        replaces what they say of a member or an offset.
        """
        yield GroupEntry(epoch=self.epoch)
        ended = self.transactions.ended()
        for start in range(0, len(ended), per_entry):
            yield GroupEntry(ended=tuple(ended[start : start + per_entry]))
        for transaction in self.transactions.opened():
            yield GroupEntry(transaction=transaction, mark=TransactionMark.BEGIN)
        for name, group in self.groups.items():
            yield GroupEntry(
                group=name,
                epoch=group.epoch,
                keeps=group.keeps,
                consumer=group.consumer,
                consumer_epoch=group.consumer_epoch,
                metadata=group.metadata,
            )
            members = list(group.members.values())
            for start in range(0, len(members), per_entry):
                some = tuple(members[start : start + per_entry])
                last = group.commit_numbers
                numbers = {m.id: last[m.id] for m in some if m.id in last}
                yield GroupEntry(group=name, members=some, commit_numbers=numbers)
            counts = list(group.began_with.items())
            for start in range(0, len(counts), per_entry):
                some_counts = dict(counts[start : start + per_entry])
                created = {s: group.created[s] for s in some_counts if s in group.created}
                yield GroupEntry(group=name, began_with=some_counts, created=created)
            for stream, offsets in group.positions.items():
                items = sorted(offsets.items())
                for start in range(0, len(items), per_entry):
                    part = dict(items[start : start + per_entry])
                    yield GroupEntry(group=name, positions={stream: part})
            for transaction, text in group.undecided_metadata.items():
                yield GroupEntry(group=name, transaction=transaction, metadata=text)
            for at, (transaction, offset) in sorted(group.undecided.items()):
                positions = {at.stream: {at.partition: offset}}
                yield GroupEntry(group=name, positions=positions, transaction=transaction)
