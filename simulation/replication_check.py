"""Checks of a simulated partition from outside: its disks, acks and readers.

``truth`` has the record that was first exposed at each offset, by any replica. Every later
exposure, every ack and every log must agree with it. ``ViolationError`` has the difference.
"""

from simulation.replication_disk import Image, SimLog
from simulation.replication_keys import StoredKey, is_null, key_of, state_of, tail
from simulation.world import World
from strandline.testing.history import PartitionHistory, ViolationError


class ReplicationChecker:
    """The checker of one partition.

    Args:
        name: the partition's name in messages.
        world: has the time in messages.
        min_isr: the stream's ``min_isr``.
        is_compacted: whether a record may be removed once another with its key is committed.
    """

    def __init__(
        self, name: int, world: World, *, min_isr: int, is_compacted: bool = False
    ) -> None:
        self.name = name
        self.is_compacted = is_compacted
        self.truth: dict[int, StoredKey] = {}
        self.committed = 0
        self.history = PartitionHistory(f"partition {name}")
        self.logs: dict[int, SimLog] = {}
        self.wiped: set[int] = set()
        self._world = world
        self._min_isr = min_isr
        self._records: dict[int, bytes] = {}
        self._epochs: dict[int, int] = {}
        self._bases: dict[int, int] = {}
        """Offset → base offset of the batch in ``truth`` that contains it."""
        self._newest: dict[int, int] = {}

    def fail(self, what: str) -> None:
        """Raise a ``ViolationError``."""
        raise ViolationError(f"{self._world.now_ms:.0f} ms, partition {self.name}: {what}")

    # Exposure

    def exposed(self, broker: int, before: int, after: int, *, isr: tuple[int, ...]) -> None:
        """Check records that a replica exposes up to ``after``; ``isr`` is the metadata's."""
        if after < before:
            self.fail(f"broker {broker} moves its high watermark from {before} back to {after}")
        log = self.logs[broker]
        if after > log.seen.end:
            self.fail(f"broker {broker} exposes {after}, its log ends at {log.seen.end}")
        if after > self.committed:
            self._commit(broker, after, isr)
        self._agree(broker, log.seen, first=max(before, log.seen.start), after=after)

    def started_over(self, broker: int, *, isr: tuple[int, ...]) -> None:
        """Note that a replica empties its log, so that its records no longer count."""
        if broker in isr or broker not in self.wiped:
            self.fail(f"broker {broker} empties its log, ISR {isr}, wiped {sorted(self.wiped)}")

    def _agree(self, broker: int, image: Image, *, first: int, after: int) -> None:
        """Check that a replica's records are those that were exposed first."""
        if self.is_compacted:
            wrong = self._difference(image, first, after)
            if wrong:
                self.fail(f"broker {broker} {wrong}")
            return
        while first < after:
            stored, known = image.at(first), self._known(first)
            if known is None or stored is None:
                self.fail(f"broker {broker} has no batch that begins at {first}")
                return
            if stored is not known and stored != known:
                self.fail(f"broker {broker} has {stored} at {first}, exposed before: {known}")
            first = known.ref.next_offset

    def _known(self, offset: int) -> StoredKey | None:
        """Return the batch of the truth with an offset, from that on; a log may start inside it."""
        base = self._bases.get(offset)
        if base is None:
            return None
        return self.truth[base] if base == offset else tail(self.truth[base], offset)

    def _difference(self, image: Image, first: int, after: int) -> str:
        """Describe what is wrong in a compacted log; empty if nothing is.

        Records that compaction may remove may be missing.
        """
        while first < after:
            stored = image.at(first)
            if stored is None:
                return f"has no batch that begins at {first}"
            for offset, value in stored.records:
                known = self._records.get(offset, b"")
                if self._epochs.get(offset) != stored.ref.leader_epoch:
                    return f"has epoch {stored.ref.leader_epoch} at {offset}, not as exposed before"
                if value != known and (value or not self._may_go(offset, known)):
                    return f"has {value!r} at {offset}, exposed before: {known!r}"
            first = stored.ref.next_offset
        return ""

    def _may_go(self, offset: int, value: bytes) -> bool:
        """Whether compaction may have removed a record, judged by one offset."""
        return is_null(value) or self._newest[key_of(value)] > offset

    def _commit(self, broker: int, after: int, isr: tuple[int, ...]) -> None:
        """Note the truth of offsets that are committed for the first time, and check the disks."""
        batches = self.logs[broker].seen.batches
        first = offset = self.committed
        while offset < after:
            stored = batches.get(offset)
            if stored is None:
                self.fail(f"broker {broker} commits to {after} without a batch at {offset}")
                return
            self.truth[offset] = stored
            self._note_records(stored)
            offset = stored.ref.next_offset
        self.committed = offset
        for member in isr:
            if not self._has_synced(member, first, after):
                self.fail(f"committed to {after}, but not on the disk of {member}, ISR {isr}")
        # A replica may have been counted before its disk was known to be wiped.
        holders = [b for b in self.logs if b in self.wiped or self._has_synced(b, first, after)]
        if len(holders) < self._min_isr:
            self.fail(f"committed to {after} with {holders} only; min_isr is {self._min_isr}")

    def joined(self, isr: tuple[int, ...]) -> None:
        """Check an ISR that the metadata has set: any member may have to lead."""
        for member in isr:
            if not self._has_synced(member, 0, self.committed):
                self.fail(f"ISR {isr}, but {member} lacks what is committed to {self.committed}")
            self.same_state(member, self.committed)

    def _has_synced(self, broker: int, first: int, after: int) -> bool:
        """Whether the disk of a broker has the newly committed records."""
        disk = self.logs[broker].disk
        if disk.end < after:
            return False
        if self.is_compacted:
            return not self._difference(disk, max(first, disk.start), after)
        while first < after:
            known = self.truth[first]
            if first >= disk.start and disk.batches.get(first) != known:
                return False
            first = known.ref.next_offset
        return True

    def _note_records(self, stored: StoredKey) -> None:
        """Check that a record is committed at one offset only."""
        for offset, value in stored.records:
            self.history.placed(value, offset)
            self._records[offset], self._epochs[offset] = value, stored.ref.leader_epoch
            self._bases[offset] = stored.ref.base_offset
            self._newest[key_of(value)] = offset

    # Publishers and readers

    def ack(self, value: bytes, offset: int, *, floor: int) -> None:
        """Check a ``replicated`` ack; ``floor``: the offset acked before the record was sent."""
        committed = self.history.offset_of(value)
        if committed != offset:
            self.fail(f"{value!r} acked at {offset}, committed: {committed}")
        self.history.ack(value, offset, floor=floor)

    def read(self, broker: int, first: int, high_watermark: int) -> int:
        """Check a read from ``first`` on at a replica; return the next offset."""
        log = self.logs[broker]
        first = max(first, log.seen.start)
        if first >= high_watermark:
            return first
        if not log.corrupt:
            self._agree(broker, log.seen, first=first, after=high_watermark)
        return high_watermark

    # The end

    def settled(self, high_watermarks: dict[int, int]) -> None:
        """Check after healing that all logs are equal and have everything that was acked."""
        ends = {broker: log.seen.end for broker, log in self.logs.items()}
        if len({*ends.values(), *high_watermarks.values()}) != 1:
            self.fail(f"not all caught up: ends {ends}, high watermarks {high_watermarks}")
        for broker, log in self.logs.items():
            for base in sorted(log.corrupt):
                # If retention removed the records everywhere else, nobody can repair them.
                others = (other.seen for b, other in self.logs.items() if b != broker)
                if any(base in other.batches and other.start <= base for other in others):
                    self.fail(f"broker {broker} was not repaired at {base}")
            self._agree(broker, log.seen, first=log.seen.start, after=log.seen.end)
            self.same_state(broker, log.seen.end)
        if self.history.acked_end > self.committed:
            self.fail(f"acked to {self.history.acked_end}, committed to {self.committed} only")

    def same_state(self, broker: int, exposed: int) -> None:
        """Check that a compacted log has the same state of every key as all records together.

        A log that is behind may lack records that newer ones have replaced.
        """
        image = self.logs[broker].seen
        if not self.is_compacted or exposed < self.committed:
            return
        kept = range(image.start, exposed)
        wanted = state_of((offset, self._records[offset]) for offset in kept)
        found = state_of(
            each
            for stored in image.batches.values()
            for each in stored.records
            if image.start <= each[0] < exposed
        )
        wrong = {key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)}
        for key in sorted(wrong):
            here, all_say = found.get(key), wanted.get(key)
            self.fail(f"broker {broker} makes {here!r} of key {key}, all records make {all_say!r}")
