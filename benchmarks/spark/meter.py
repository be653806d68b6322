"""Measures Spark's work: wall clock, CPU of Spark and of a broker apart, streaming queries.

Rules: a streaming query's seconds are those of its micro-batches, as Spark reports them; what it
takes to start one (processes of Python, a checkpoint) is a figure of its own. CPU is that of the
JVM and of Python, ended workers included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext

from benchmarks.figures import Figure
from benchmarks.peers.process import cpu_seconds
from benchmarks.warmup import Preparation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

QUERY_S_MAX: Final = 300.0
RATE: Final = "records/s"
WHOLE: Final = "s with the query's start and end"
SPARK_CPU: Final = "µs of Spark's CPU per record"
BROKER_CPU: Final = "µs of the broker's CPU per record"
CPU: Final = "µs of CPU per record, broker included"


@dataclass(frozen=True)
class Cost:
    """What some work took."""

    seconds: float
    whole_s: float
    """With what is not the work itself, as starting a query."""
    spark_cpu_s: float
    broker_cpu_s: float


@dataclass(frozen=True)
class Turn:
    """One system's way of doing the work."""

    system: str
    work: Callable[[], float | None]
    """Does it; returns its seconds if they are not those of the clock."""
    broker_pid: int | None = None


def measure(turn: Turn) -> Cost:
    """What one turn takes."""
    before, started = _used(turn.broker_pid), time.perf_counter()
    said = turn.work()
    whole_s, after = time.perf_counter() - started, _used(turn.broker_pid)
    seconds = whole_s if said is None else said
    return Cost(seconds, whole_s, after[0] - before[0], after[1] - before[1])


def _used(broker_pid: int | None) -> tuple[float, float]:
    """CPU seconds so far of Spark (this process, the JVM, its Python workers), and of a broker."""
    jvm_pid = SparkContext._gateway.proc.pid  # noqa: SLF001 - nothing public tells it
    broker = cpu_seconds(broker_pid) if broker_pid is not None else 0.0
    return time.process_time() + cpu_seconds(jvm_pid), broker


class Runs:
    """The figures of all runs, by case, system and unit."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def take_turns(
        self,
        case: str,
        turns: Sequence[Turn],
        *,
        records: int,
        count: int,
        preparation: Preparation,
    ) -> None:
        """So many runs of every system, each in its turn, after one that is not counted."""
        for run in range(-1, count):
            for turn in turns:
                preparation.run()
                cost = measure(turn)
                if run >= 0:
                    self.add_cost(case, turn.system, cost, records=records)

    def add(self, case: str, system: str, values: Mapping[str, float]) -> None:
        """Values of one run, by unit."""
        for unit, value in values.items():
            self._values.setdefault((case, system, unit), []).append(value)

    def add_cost(self, case: str, system: str, cost: Cost, *, records: int) -> None:
        """One run over so many records; prints it."""
        values = {RATE: records / cost.seconds}
        if cost.seconds != cost.whole_s:
            values[WHOLE] = cost.whole_s
        values[SPARK_CPU] = cost.spark_cpu_s * 1e6 / records
        if cost.broker_cpu_s:
            values[BROKER_CPU] = cost.broker_cpu_s * 1e6 / records
        values[CPU] = (cost.spark_cpu_s + cost.broker_cpu_s) * 1e6 / records
        self.add(case, system, values)
        cpu = f"CPU: Spark {cost.spark_cpu_s:5.1f} s, broker {cost.broker_cpu_s:5.1f} s"
        rate = f"{records / cost.seconds:12,.0f} records/s"
        print(f"  {case:<28} {system:<34} {rate}  {cpu}", flush=True)

    def figures(self) -> list[Figure]:
        """All of them."""
        return [Figure(*key, values) for key, values in self._values.items()]

    def ratio(self, case: str, over: tuple[str, str], unit: str = RATE) -> float | None:
        """Quotient of two systems' medians; None if one was not measured."""
        top, bottom = (self._median(case, system, unit) for system in over)
        return top / bottom if top is not None and bottom else None

    def _median(self, case: str, system: str, unit: str) -> float | None:
        values = self._values.get((case, system, unit))
        return Figure(case, system, unit, values).median if values else None


def write_noop(frame: DataFrame) -> None:
    """Every row and column, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def run_to_end(writer: DataStreamWriter, records: int, *, path: str | None = None) -> float:
    """Runs a query over everything there is; seconds of its micro-batches.

    Raises:
        RuntimeError: it did not end in time, or did not read `records`.
    """
    return seconds_of(writer.trigger(availableNow=True).start(path), records)


def seconds_of(query: StreamingQuery, records: int) -> float:
    """Waits for the end of a query that ends by itself; seconds of its micro-batches.

    Raises:
        RuntimeError: as `run_to_end`.
    """
    if not query.awaitTermination(QUERY_S_MAX):
        query.stop()
        raise RuntimeError(f"a query did not end within {QUERY_S_MAX:.0f} s")
    batches = busy_batches(query)
    found = sum(each["numInputRows"] for each in batches)
    if found != records:
        raise RuntimeError(f"a query read {found} of {records} records")
    return sum(trigger_ms(each) for each in batches) / 1e3


def busy_batches(query: StreamingQuery) -> list[Any]:
    """Progress of the micro-batches that had records."""
    return [each for each in query.recentProgress if each["numInputRows"]]


def trigger_ms(progress: Any) -> float:
    """How long a micro-batch took, from asking for offsets to its commit."""
    return float(progress["durationMs"]["triggerExecution"])
