"""Judges of a simulated partition: they see disks, acks and what readers may see, nothing inside.

``truth`` is what was first exposed at each offset, by whichever replica. Every later exposure,
every ack and every log must agree with it. ``ViolationError`` says what was seen.
"""

from strandline.testing.history import History
from strandline.testing.sim.replication_disk import SimLog, Stored
from strandline.testing.sim.world import ViolationError, World


class Checker:
    """Of one partition.

    Args:
        name: for messages.
        world: for the time in messages.
        min_isr: of the stream.
    """

    def __init__(self, name: int, world: World, *, min_isr: int) -> None:
        self.name = name
        self.truth: dict[int, Stored] = {}
        self.committed = 0
        self.history = History(f"partition {name}")
        self.logs: dict[int, SimLog] = {}
        self.wiped: set[int] = set()
        self._world = world
        self._min_isr = min_isr

    def fail(self, what: str) -> None:
        """Report."""
        raise ViolationError(f"{self._world.now_ms:.0f} ms, partition {self.name}: {what}")

    # Exposure

    def exposed(self, broker: int, before: int, after: int, *, isr: tuple[int, ...]) -> None:
        """A replica lets its readers see up to ``after``; ``isr`` as metadata has it now."""
        if after < before:
            self.fail(f"broker {broker} moves its high watermark from {before} back to {after}")
        log = self.logs[broker]
        if after > log.seen.end:
            self.fail(f"broker {broker} exposes {after}, its log ends at {log.seen.end}")
        if after > self.committed:
            self._commit(broker, after, isr)
        self._agree(broker, log.seen.batches, first=max(before, log.seen.start), after=after)

    def _agree(self, broker: int, batches: dict[int, Stored], *, first: int, after: int) -> None:
        """Whether what a replica holds is what was exposed first."""
        while first < after:
            stored, known = batches.get(first), self.truth.get(first)
            if known is None or stored is None:
                self.fail(f"broker {broker} has no batch that begins at {first}")
                return
            if stored is not known and stored != known:
                self.fail(f"broker {broker} has {stored} at {first}, exposed before: {known}")
            first = known.ref.next_offset

    def _commit(self, broker: int, after: int, isr: tuple[int, ...]) -> None:
        """Offsets are committed for the first time: note the truth and look at the disks."""
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
        # A wiped disk may have been counted before anybody knew.
        holders = [b for b in self.logs if b in self.wiped or self._has_synced(b, first, after)]
        if len(holders) < self._min_isr:
            self.fail(f"committed to {after} with {holders} only; min_isr is {self._min_isr}")

    def joined(self, isr: tuple[int, ...]) -> None:
        """Metadata changed the ISR: any of them may have to lead."""
        for member in isr:
            if not self._has_synced(member, 0, self.committed):
                self.fail(f"ISR {isr}, but {member} lacks what is committed to {self.committed}")

    def _has_synced(self, broker: int, first: int, after: int) -> bool:
        """Whether the disk of a broker holds the new truth."""
        disk = self.logs[broker].disk
        if disk.end < after:
            return False
        while first < after:
            known = self.truth[first]
            if first >= disk.start and disk.batches.get(first) != known:
                return False
            first = known.ref.next_offset
        return True

    def _note_records(self, stored: Stored) -> None:
        """A record is committed at one offset only."""
        for offset, value in enumerate(stored.payload.split(b","), stored.ref.base_offset):
            self.history.placed(value, offset)

    # Publishers and readers

    def ack(self, value: bytes, offset: int, *, floor: int) -> None:
        """A publisher is told ``replicated``; ``floor``: what was acked before it was sent."""
        committed = self.history.offset_of(value)
        if committed != offset:
            self.fail(f"{value!r} acked at {offset}, committed: {committed}")
        self.history.ack(value, offset, floor=floor)

    def read(self, broker: int, first: int, high_watermark: int) -> int:
        """A reader reads on from ``first`` on some replica; returns where it goes on."""
        log = self.logs[broker]
        first = max(first, log.seen.start)
        if first >= high_watermark:
            return first
        if not log.damaged:
            self._agree(broker, log.seen.batches, first=first, after=high_watermark)
        return high_watermark

    # The end

    def settled(self, high_watermarks: dict[int, int]) -> None:
        """Everything healed: all logs are one log, and everything acked is in it."""
        ends = {broker: log.seen.end for broker, log in self.logs.items()}
        if len({*ends.values(), *high_watermarks.values()}) != 1:
            self.fail(f"not all caught up: ends {ends}, high watermarks {high_watermarks}")
        for broker, log in self.logs.items():
            for base in sorted(log.damaged):
                # Where retention has left it nowhere else, nobody can help.
                if any(base in other.seen.batches for b, other in self.logs.items() if b != broker):
                    self.fail(f"broker {broker} was not repaired at {base}")
            self._agree(broker, log.seen.batches, first=log.seen.start, after=log.seen.end)
        if self.history.acked_end > self.committed:
            self.fail(f"acked to {self.history.acked_end}, committed to {self.committed} only")
