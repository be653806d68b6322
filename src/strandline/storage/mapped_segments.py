"""Sealed segments that stay mapped for the next reader, of all logs of the process.

Rules: each map uses a descriptor, so there are at most ``maps_max``. A segment that was not read
for two sweeps is unmapped. Readers keep alive what they hold. Any thread.
"""

import threading
from typing import Final, Protocol

MAPS_MAX: Final = 256


class _Mapped(Protocol):
    """A segment with a map."""

    def release(self) -> None:
        """Unmap the segment."""
        ...


class MappedSegments:
    """The mapped segments, the least recently read first."""

    def __init__(self, maps_max: int = MAPS_MAX) -> None:
        self.maps_max = maps_max
        self._lock = threading.Lock()
        self._read_before: dict[_Mapped, None] = {}
        """Segments not read since the last sweep."""
        self._read_since: dict[_Mapped, None] = {}

    def __len__(self) -> int:
        return len(self._read_before) + len(self._read_since)

    def note_use(self, segment: _Mapped) -> None:
        """Note that a segment is being read; others may be unmapped for it."""
        passed: list[_Mapped] = []
        with self._lock:
            self._read_before.pop(segment, None)
            self._read_since.pop(segment, None)
            self._read_since[segment] = None
            while len(self) > self.maps_max:
                oldest = self._read_before or self._read_since
                passed.append(next(iter(oldest)))
                del oldest[passed[-1]]
        for each in passed:
            each.release()

    def forget(self, segment: _Mapped) -> None:
        """Note that a segment was unmapped."""
        with self._lock:
            self._read_before.pop(segment, None)
            self._read_since.pop(segment, None)

    def sweep(self) -> None:
        """Unmap segments that were not read since the previous sweep."""
        with self._lock:
            idle, self._read_before = self._read_before, self._read_since
            self._read_since = {}
        for segment in idle:
            segment.release()


MAPPED_SEGMENTS: Final = MappedSegments()
"""One for the process, because descriptors belong to the process."""
