"""The records of a simulated cluster's replicas, as plain lists.

Rules: each record is a distinct number. A follower first drops what its leader does not have, then
copies. A record is committed once every member of the ISR has it, if these are at least
``min_isr``. While an ISR change is proposed, all members of both ISRs must have it, until the
partition has another version, at which the proposal can no longer apply. A replica loses records
only with its disk.
"""

from strandline.core.metadata.commands import ChangeIsr, Command, ElectLeader, Replicas
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.testing.history import ViolationError
from strandline.types import BrokerId, LogId


class Records:
    """The logs of all replicas, and the committed records."""

    def __init__(self) -> None:
        self.mail: list[ChangeIsr] = []
        self._logs: dict[tuple[LogId, BrokerId], list[int]] = {}
        self._committed: dict[LogId, list[int]] = {}
        self._without_disk: set[BrokerId] = set()
        self._next = 0

    def append(self, partition: PartitionImage) -> None:
        """Append a record at the leader."""
        assert partition.leader is not None
        self._next += 1
        self._log(partition, partition.leader).append(self._next)

    def copy(self, partition: PartitionImage, follower: BrokerId, count: int) -> None:
        """Truncate a follower to the leader's log, then copy ``count`` records to it."""
        assert partition.leader is not None
        log, source = self._log(partition, follower), self._log(partition, partition.leader)
        if follower != partition.leader:
            same = _common(log, source)
            log[same:] = source[same : same + count]

    def has_all(self, partition: PartitionImage, broker: BrokerId) -> bool:
        """Whether a replica has the same records as its leader."""
        assert partition.leader is not None
        return self._log(partition, broker) == self._log(partition, partition.leader)

    def wanted_isr(self, partition: PartitionImage) -> Replicas:
        """Return the members of a proposed ISR change that may still apply; empty without one."""
        for command in self.mail:
            [change] = command.changes
            if (change.at.log_id, change.at.version) == (partition.log_id, partition.version):
                return change.isr
        return ()

    def commit(self, partition: PartitionImage, min_isr: int) -> None:
        """Commit the records that all members of the ISR have, if these are ``min_isr`` or more."""
        assert partition.leader is not None
        if len(partition.isr) < min_isr:
            return
        members = {*partition.isr, *self.wanted_isr(partition)}
        source = self._log(partition, partition.leader)
        count = min(_common(self._log(partition, b), source) for b in members)
        committed = self._committed.setdefault(partition.log_id, [])
        if count > len(committed):
            self._check_members(partition, {partition.leader})
            self._committed[partition.log_id] = source[:count]

    def committed(self, partition: PartitionImage) -> int:
        """Return the number of committed records."""
        return len(self._committed.get(partition.log_id, ()))

    def wipe(self, broker: BrokerId) -> None:
        """Lose a disk; the broker does nothing until it registers with another one."""
        self._without_disk.add(broker)
        self._logs = {key: log for key, log in self._logs.items() if key[1] != broker}

    def let_in(self, broker: BrokerId) -> None:
        """Note that a broker has registered with its present disk."""
        self._without_disk.discard(broker)

    def note(self, before: MetadataImage, after: MetadataImage, command: Command) -> None:
        """Check leaders and ISRs; drop records lost to unclean elections and deletions."""
        if before.streams is after.streams:
            return
        earlier = {p.log_id: p for _, p in before.partitions()}
        is_unclean = isinstance(command, ElectLeader) and command.reason == "unclean"
        for _, partition in after.partitions():
            old = earlier.pop(partition.log_id, None)
            if old is None or old is partition:
                continue
            if is_unclean and partition.leader is not None:
                # Only committed records count: an ISR of one may be too small to commit more.
                log = self._log(partition, partition.leader)
                committed = self._committed.get(partition.log_id, [])
                self._committed[partition.log_id] = log[: _common(log, committed)]
            self._check_members(partition, set(partition.isr) - set(old.isr))
            if partition.leader not in (None, old.leader):
                self._check_members(partition, {partition.leader})
        for log_id in earlier:
            self._committed.pop(log_id, None)
        for _, partition in after.partitions():
            if partition.log_start_offset > self.committed(partition):
                raise ViolationError(f"the log start is beyond the leader's log: {partition}")

    def _check_members(self, partition: PartitionImage, members: set[BrokerId]) -> None:
        committed = self._committed.get(partition.log_id, [])
        for broker in sorted(members - self._without_disk):
            if self._log(partition, broker)[: len(committed)] != committed:
                raise ViolationError(f"broker {broker} lacks committed records: {partition}")

    def _log(self, partition: PartitionImage, broker: BrokerId) -> list[int]:
        return self._logs.setdefault((partition.log_id, broker), [])


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix of two logs."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
