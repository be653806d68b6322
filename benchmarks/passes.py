"""Timed passes of consumers, and what the passes of a whole benchmark add up to.

Rules: memory is touched and garbage collected before a pass; each pass keeps its rate and the CPU
time that client and server took, since the latter says more on a machine that others use too.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.figures import Figure
from benchmarks.report import table
from benchmarks.sources.source import Pass, with_cpu
from benchmarks.warmup import NO_PREPARATION, Preparation

CPU_TEXT: Final = (
    "Client and server of a pass run in parallel, each on one core at best: the inverse of the "
    "larger figure is what two idle cores allow. These figures vary less than rates do when others "
    "use the machine."
)


@dataclass
class Samples:
    """Values by case, system and unit, in the order of first appearance."""

    values: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    cpu: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def add(self, case: str, system: str, unit: str, value: float) -> None:
        """One run."""
        self.values.setdefault((case, system, unit), []).append(value)

    def add_pass(self, case: str, system: str, done: Pass, *, by_bytes: bool) -> None:
        """One run, as GiB/s or records/s, with the CPU it took."""
        if by_bytes:
            self.add(case, system, "GiB/s", done.gib_per_s)
        else:
            self.add(case, system, "records/s", done.records_per_s)
        self.add_cpu(case, system, done)

    def add_cpu(self, case: str, system: str, done: Pass) -> None:
        """The CPU time of one run."""
        self.cpu.setdefault((case, system), []).append(done.cpu_per_gib)

    def figures(self) -> list[Figure]:
        """Return the results of the runs."""
        return [
            Figure(case, system, unit, values)
            for (case, system, unit), values in self.values.items()
        ]

    def cpu_table(self) -> str:
        """CPU seconds per GiB of values, medians."""
        head = ["CPU seconds per GiB of values", "system", "client", "server"]
        rows = []
        for (case, system), pairs in self.cpu.items():
            client, server = (statistics.median(side) for side in zip(*pairs, strict=True))
            rows.append([case, system, f"{client:.2f}", f"{server:.2f}"])
        return table(head, rows)


def timed(
    case: str,
    label: str,
    one_pass: Callable[[], Pass],
    *,
    pid: int,
    preparation: Preparation = NO_PREPARATION,
) -> Pass:
    """One counted pass against the server `pid`, announced."""
    gc.collect()
    preparation.run()
    done = with_cpu(pid, one_pass)
    rates = f"{done.gib_per_s:6.2f} GiB/s {done.records_per_s:12,.0f} records/s"
    client, server = done.cpu_per_gib
    cpu = f"CPU s/GiB: client {client:.2f}, server {server:.2f}"
    print(f"  {case:<28} {label:<40} {rates}  {cpu}", flush=True)
    return done
