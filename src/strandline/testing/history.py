"""Judge of one partition as its publishers and readers saw it, in simulations and real clusters.

Rules: whoever says where a record is, an ack or a reader, says it for ever: an offset has one
record and a record one offset. A publisher's record comes after all that was acked to it before the
record was sent. A reader goes from offset to offset, over however many replicas, and to the end
once there is one. What is acked is in the log at the end, and what was refused for certain is never
seen. A consumer group processes every record, at least once. ``ViolationError`` says what was seen.
Must not know how a log comes about.

A publish has three outcomes: acked; refused for certain, before anything was written (by one that
does not lead, or leads with too few replicas); unknown (no answer, a leader that gave up what it
had written, a failed sync): then the record may be stored or not, and nothing is told here. Over
NATS in a cluster no refusal is certain: each broker hears the message, and one that refuses cannot
speak for the next leader.
"""

import threading
from collections.abc import Sequence

from strandline.testing.sim.world import ViolationError


class History:
    """What was heard of one partition.

    Args:
        name: of the partition, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.acked_end = 0
        """One beyond the last offset that was acked."""
        self._values: dict[int, bytes] = {}
        self._offsets: dict[bytes, int] = {}
        self._refused: set[bytes] = set()
        self._next: dict[str, int] = {}

    def placed(self, value: bytes, offset: int) -> None:
        """Somebody says that a record is at an offset.

        Raises:
            ViolationError: somebody said otherwise, or that it was refused.
        """
        if value in self._refused:
            raise ViolationError(f"{self.name}: {value!r} was refused, and is at {offset}")
        if self._values.setdefault(offset, value) != value:
            raise ViolationError(
                f"{self.name}: {value!r} is at {offset}, where {self._values[offset]!r} was"
            )
        if self._offsets.setdefault(value, offset) != offset:
            raise ViolationError(
                f"{self.name}: {value!r} is at {self._offsets[value]} and {offset}"
            )

    def ack(self, value: bytes, offset: int, *, floor: int) -> None:
        """A publisher is told where its record is.

        Args:
            value: the record.
            offset: as told.
            floor: the end of what was acked to this publisher before it sent the record.

        Raises:
            ViolationError: a record before it was acked here, or it elsewhere.
        """
        if offset < floor:
            raise ViolationError(
                f"{self.name}: {value!r} acked at {offset}, {floor} was acked before it was sent"
            )
        self.placed(value, offset)
        self.acked_end = max(self.acked_end, offset + 1)

    def refused(self, value: bytes) -> None:
        """A publisher is told that its record is not stored, and does not send it again.

        Raises:
            ViolationError: somebody has seen it.
        """
        self._refused.add(value)
        if value in self._offsets:
            self.placed(value, self._offsets[value])

    def offset_of(self, value: bytes) -> int | None:
        """Where a record is, as far as anybody has said."""
        return self._offsets.get(value)

    def read(self, reader: str, offsets: Sequence[int], values: Sequence[bytes]) -> int:
        """A reader, which reads from the start, gets records.

        Returns:
            where it goes on.

        Raises:
            ViolationError: they are not the ones that follow, or others were there before.
        """
        at = self._next.get(reader, 0)
        for offset, value in zip(offsets, values, strict=True):
            if offset != at:
                raise ViolationError(f"{self.name}: {reader} gets {offset} in the place of {at}")
            self.placed(value, offset)
            at += 1
        self._next[reader] = at
        return at

    def arrived(self, reader: str, log_end: int) -> None:
        """Everything has healed and a reader has had time enough to read it all.

        Raises:
            ViolationError: it has not.
        """
        at = self._next.get(reader, 0)
        if at != log_end:
            raise ViolationError(f"{self.name}: {reader} is at {at}, the log ends at {log_end}")

    def settled(self, replica: str, log: Sequence[bytes]) -> None:
        """Everything has healed: the whole log of a replica, from offset 0.

        Raises:
            ViolationError: it lacks what was acked or seen, or has a record twice.
        """
        for offset, value in enumerate(log):
            self.placed(value, offset)
        known_end = max(self._values, default=-1) + 1
        if known_end > len(log):
            raise ViolationError(
                f"{self.name}: {replica} ends at {len(log)}, acked or seen was up to {known_end}"
            )


class GroupHistory:
    """What a consumer group processed and committed of one partition; for members in threads.

    Args:
        history: of the partition.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self.processed_end = 0
        """All records before were processed by some member."""
        self.committed = 0
        """The furthest position whose commit was confirmed."""
        self._next: dict[str, int] = {}

    def begins(self, member: str, at: int) -> None:
        """A member gets the partition, and is to go on at a position.

        Raises:
            ViolationError: records before were processed by nobody, or a commit was forgotten.
        """
        with self._lock:
            if at > self.processed_end:
                raise self._broken(
                    member, f"begins at {at}, {self.processed_end} was not processed"
                )
            if at < self.committed:
                raise self._broken(member, f"begins at {at}, {self.committed} was committed")
            self._next[member] = at

    def processed(self, member: str, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        """A member, to whom the partition belongs, has processed records.

        Raises:
            ViolationError: they are not the ones that follow, or others were there before.
        """
        with self._lock:
            at = self._next[member]
            for offset, value in zip(offsets, values, strict=True):
                if offset != at:
                    raise self._broken(member, f"gets {offset} in the place of {at}")
                self._history.placed(value, offset)
                at += 1
            self._next[member] = at
            self.processed_end = max(self.processed_end, at)

    def commits(self, at: int) -> None:
        """The commit of a position was confirmed to a member."""
        with self._lock:
            self.committed = max(self.committed, at)

    def settled(self, log_end: int, position: int | None) -> None:
        """Everything has healed and the group has had time enough; None: it has no position.

        Raises:
            ViolationError: it has not processed all, or its position does not say so.
        """
        if (self.processed_end, position) != (log_end, log_end):
            raise self._broken(
                "the group",
                f"has processed to {self.processed_end}, its position is {position}, the log ends "
                f"at {log_end}",
            )

    def _broken(self, who: str, what: str) -> ViolationError:
        return ViolationError(f"{self._history.name}: {who} {what}")
