"""A checker of what publishers and readers observed of a partition, simulated or real.

Rules: once an ack or a reader reports a record at an offset, that offset always has that record,
and the record no other offset. A publisher's record comes after all records acknowledged to this
publisher before the record was sent. A reader proceeds from offset to offset, across any number of
replicas, and reaches the end. Acknowledged records are in the log at the end, and records certainly
rejected are never seen. A consumer group processes every record at least once. ``ViolationError``
reports a violation. Must not know how a log is implemented.

A publish has three outcomes. Acknowledged. Rejected for certain, before anything was written, by a
broker that does not lead, or leads with too few replicas. Unknown, for example without an answer,
after a leader lost its leadership during the write, or after a failed sync: the record may be
stored or not, and nothing is noted here. Over NATS in a cluster no rejection is certain: every
broker receives the message, and a broker that rejects it cannot answer for the next leader.
"""

import threading
from collections.abc import Sequence


class ViolationError(Exception):
    """A broken promise; the message says what the checker saw."""


class PartitionHistory:
    """The observations of one partition.

    Args:
        name: the name of the partition, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.acked_end = 0
        """The offset after the last acknowledged one."""
        self._values: dict[int, bytes] = {}
        self._offsets: dict[bytes, int] = {}
        self._refused: set[bytes] = set()
        self._next: dict[str, int] = {}

    def placed(self, value: bytes, offset: int) -> None:
        """Note that a record was observed at an offset.

        Raises:
            ViolationError: that contradicts an earlier observation, or the record was rejected.
        """
        if value in self._refused:
            raise ViolationError(f"{self.name}: {value!r} was refused, but is at {offset}")
        if self._values.setdefault(offset, value) != value:
            raise ViolationError(
                f"{self.name}: {value!r} is at {offset}, which had {self._values[offset]!r}"
            )
        if self._offsets.setdefault(value, offset) != offset:
            raise ViolationError(
                f"{self.name}: {value!r} is at {self._offsets[value]} and {offset}"
            )

    def ack(self, value: bytes, offset: int, *, floor: int) -> None:
        """Note an ack.

        Args:
            value: the record.
            offset: the acknowledged offset.
            floor: the end of the records acknowledged to this publisher before it sent this one.

        Raises:
            ViolationError: the offset is below ``floor``, or contradicts an earlier observation.
        """
        if offset < floor:
            raise ViolationError(
                f"{self.name}: {value!r} acked at {offset}, {floor} was acked before it was sent"
            )
        self.placed(value, offset)
        self.acked_end = max(self.acked_end, offset + 1)

    def refused(self, value: bytes) -> None:
        """Note the certain rejection of a record that is not sent again.

        Raises:
            ViolationError: the record was observed.
        """
        self._refused.add(value)
        if value in self._offsets:
            self.placed(value, self._offsets[value])

    def offset_of(self, value: bytes) -> int | None:
        """Return a record's offset, if it was observed."""
        return self._offsets.get(value)

    def read(self, reader: str, offsets: Sequence[int], values: Sequence[bytes]) -> int:
        """Note the records that a reader got; it began at offset 0.

        Returns:
            The next offset of the reader.

        Raises:
            ViolationError: offsets are skipped or repeated, or contradict earlier observations.
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
        """Check that a reader has reached the end, once all faults have ended, after enough time.

        Raises:
            ViolationError: the reader has not reached it.
        """
        at = self._next.get(reader, 0)
        if at != log_end:
            raise ViolationError(f"{self.name}: {reader} is at {at}, the log ends at {log_end}")

    def settled(self, replica: str, log: Sequence[bytes]) -> None:
        """Check the whole log of a replica, from offset 0, once all faults have ended.

        Raises:
            ViolationError: the log lacks acknowledged or observed records, or repeats one.
        """
        for offset, value in enumerate(log):
            self.placed(value, offset)
        known_end = max(self._values, default=-1) + 1
        if known_end > len(log):
            raise ViolationError(
                f"{self.name}: {replica} ends at {len(log)}, acked or seen was up to {known_end}"
            )


class GroupHistory:
    """The records of a partition that a consumer group has processed and committed; thread-safe.

    Args:
        history: the history of the partition.
    """

    def __init__(self, history: PartitionHistory) -> None:
        self._history = history
        self._lock = threading.Lock()
        self.processed_end = 0
        """All records before this offset were processed by a member."""
        self.committed = 0
        """The highest offset whose commit was confirmed."""
        self._next: dict[str, int] = {}

    def begins(self, member: str, at: int) -> None:
        """Note that a member was assigned the partition, and begins at an offset.

        Raises:
            ViolationError: earlier records were not processed, or a commit was lost.
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
        """Note that the partition's member has processed records.

        Raises:
            ViolationError: offsets are skipped or repeated, or contradict earlier observations.
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
        """Note a confirmed commit."""
        with self._lock:
            self.committed = max(self.committed, at)

    def settled(self, log_end: int, position: int | None) -> None:
        """Check the group's end, once faults have ended; ``position`` None: nothing is committed.

        Raises:
            ViolationError: the group has not processed, or not committed, all records.
        """
        if (self.processed_end, position) != (log_end, log_end):
            raise self._broken(
                "the group",
                f"has processed to {self.processed_end}, its position is {position}, the log ends "
                f"at {log_end}",
            )

    def _broken(self, who: str, what: str) -> ViolationError:
        return ViolationError(f"{self._history.name}: {who} {what}")
