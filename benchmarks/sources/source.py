"""What every filled system has in common: a label, and one pass of one consumer over its data.

Rules: a pass starts at the first record and counts records and bytes of values, in the way a Python
program would look at them; it ends at the last record, or after its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Pass:
    """One read from the beginning."""

    records: int
    value_bytes: int
    seconds: float
    client_cpu_s: float = 0.0
    server_cpu_s: float = 0.0

    @property
    def gib(self) -> float:
        """GiB of values."""
        return self.value_bytes / GIB

    @property
    def cpu_per_gib(self) -> tuple[float, float]:
        """CPU seconds per GiB of values, of client and server.

        On a machine that others use too these vary far less than rates do. One client can get no
        more than one core's worth each: the inverse of the larger is the rate to hope for on two
        idle cores.
        """
        gib = self.gib or 1.0
        return self.client_cpu_s / gib, self.server_cpu_s / gib

    @property
    def records_per_s(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def gib_per_s(self) -> float:
        """GiB of values per second."""
        return self.gib / self.seconds if self.seconds else 0.0


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

    @property
    def pid(self) -> int:
        """Process id of the server."""

    def read(self, seconds_max: float) -> Pass:
        """One pass, cut after `seconds_max`."""


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process, all its threads, to the nanosecond (Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def with_cpu(pid: int, one_pass: Callable[[], Pass]) -> Pass:
    """The pass, with the CPU time that it took here and in the server."""
    client, server = time.process_time(), process_cpu_s(pid)
    done = one_pass()
    return replace(
        done,
        client_cpu_s=time.process_time() - client,
        server_cpu_s=process_cpu_s(pid) - server,
    )
