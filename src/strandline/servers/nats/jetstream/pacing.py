"""The pace of a consumer's deliveries: that of the original publishes, or a bit rate.

Rules: with the policy ``original``, records that exist when the consumer starts are delivered with
the pauses between their publishes; records published later are delivered at once. A rate limit may
be exceeded by one burst. Pure.
"""

from typing import Final

from strandline.servers.nats.jetstream.times import NS_PER_MS

BURST_BYTES: Final = 1 << 20
PAUSE_MIN_MS: Final = 1.0
"""Shorter pauses are left out."""


class Pacer:
    """The earliest times at which records may be delivered.

    Args:
        original_to: the last sequence with original pauses; 0 for none.
        bits_per_s: the rate; 0 for no limit.
    """

    def __init__(self, original_to: int = 0, bits_per_s: int = 0) -> None:
        self._original_to = original_to
        self._ms_per_byte = 8e3 / bits_per_s if bits_per_s else 0.0
        self._sent_ms = 0.0
        self._sent_ns: int | None = None
        """When the record delivered at ``_sent_ms`` was published; None before any delivery."""
        self._spent_ms = 0.0
        """The time by which everything sent so far conforms to the rate."""

    @property
    def is_on(self) -> bool:
        """Whether records may have to wait."""
        return bool(self._original_to or self._ms_per_byte)

    def due_ms(self, sequence: int, time_ns: int) -> float:
        """Return the time before which a record must not be delivered; 0 if there is none."""
        due_ms = 0.0
        if self._ms_per_byte:
            due_ms = self._spent_ms - BURST_BYTES * self._ms_per_byte
        if self._sent_ns is not None and sequence <= self._original_to:
            pause_ms = (time_ns - self._sent_ns) / NS_PER_MS
            if pause_ms > PAUSE_MIN_MS:
                due_ms = max(due_ms, self._sent_ms + pause_ms)
        return due_ms

    def sent(self, time_ns: int, size: int, now_ms: float) -> None:
        """Note the delivery of a record, with the time when it was published."""
        self._sent_ms, self._sent_ns = now_ms, time_ns
        if self._ms_per_byte:
            self._spent_ms = max(self._spent_ms, now_ms) + size * self._ms_per_byte
