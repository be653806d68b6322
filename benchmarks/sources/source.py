"""What every filled system has in common: a label, and one pass of one consumer over its data.

Rules: a pass starts at the first record and counts records and bytes of values, in the way a Python
program would look at them; it ends at the last record, or after its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Pass:
    """One read from the beginning."""

    records: int
    value_bytes: int
    seconds: float

    @property
    def records_per_s(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def gib_per_s(self) -> float:
        """GiB of values per second."""
        return self.value_bytes / GIB / self.seconds if self.seconds else 0.0


class Source(Protocol):
    """A filled system."""

    @property
    def label(self) -> str:
        """For a table."""

    @property
    def version(self) -> str:
        """Versions of what is measured, client included."""

    @property
    def records(self) -> int:
        """How many it holds."""

    def read(self, seconds_max: float) -> Pass:
        """One pass, cut after `seconds_max`."""
