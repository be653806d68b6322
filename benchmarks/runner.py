"""Runs points: one system, one load, one run. Shared by the benchmarks of this folder.

Rules: a point starts its system on fresh data and ends it afterwards (except JVMs, which stay
warm); a system that is not on this machine is skipped with a clear message and stays out of the
tables; a point that fails is recorded with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.loadgen import Load, LoadError, LoadResult
from benchmarks.loadgen.build import BUILD_DIR
from benchmarks.peers import SYSTEMS
from benchmarks.peers.natswire import NatsError
from benchmarks.peers.process import StartError, UnavailableError, cpu_seconds
from benchmarks.peers.system import Place, Session, System
from benchmarks.syncs import SyncCount, count_syncs
from benchmarks.warmup import Preparation

FAILURES: Final = (
    LoadError,
    StartError,
    NatsError,
    UnavailableError,
    OSError,
    subprocess.SubprocessError,
    ValueError,
)
RESULTS_DIR: Final = Path(__file__).parent / "results"
SYNC_LOAD_S: Final = 3.0
WARM_MIB: Final = 1024
SETTLE_S: Final = 3.0


@dataclass(frozen=True)
class Point:
    """One timed run. `x` is what the benchmark varies (connections, partitions)."""

    system: str
    x: int
    run: int
    result: LoadResult | None
    server_cpu_us_per_append: float
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary, for a results file."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """All runs of one system at one x: medians, and the span of the rates."""

    system: str
    x: int
    runs: int
    median_per_s: float
    min_per_s: float
    max_per_s: float
    p50_us: float
    p99_us: float
    server_cpu_us: float
    errors: int


class Bench:
    """Opens systems for points and keeps the long-lived ones open until it is closed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.unavailable: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._kept: dict[str, Session] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def session(self, system: System, place: Place) -> Iterator[Session]:
        """The system, running: freshly started, or the kept one."""
        if not system.keep_running:
            with system.open(place) as session:
                yield session
            os.sync()  # what this system left in the page cache must not burden the next one
            return
        if system.name not in self._kept:
            print(f"  starting and warming up {system.label}", flush=True)
            self._kept[system.name] = self._stack.enter_context(system.open(place))
        yield self._kept[system.name]

    def open_kept(self, systems: Iterable[System]) -> None:
        """Starts the long-lived systems now, so that their start disturbs no point."""
        for system in systems:
            if system.keep_running:
                with contextlib.suppress(*FAILURES), self.session(system, self.place):
                    pass

    def run_point(self, system: System, load: Load, x: int, run: int, place: Place) -> Point:
        """One timed run; never raises for what a system does wrong."""
        try:
            place.preparation.run()
            with self.session(system, place) as session:
                self.versions[system.name] = session.version
                before = cpu_seconds(session.pid)
                result = session.run(load)
                used = cpu_seconds(session.pid) - before
        except UnavailableError as error:
            self.unavailable[system.name] = str(error)
            return Point(system.name, x, run, None, 0.0, str(error))
        except FAILURES as error:
            return Point(system.name, x, run, None, 0.0, f"{type(error).__name__}: {error}")
        cpu_us = used / max(1, result.replies_total) * 1e6
        return Point(system.name, x, run, result, cpu_us, result.first_error)

    def run_syncs(self, system: System, load: Load, place: Place) -> SyncCount:
        """A separate traced run."""
        try:
            with self.session(system, place) as session:
                return count_syncs(session, load)
        except FAILURES as error:
            return SyncCount(0, note=f"{type(error).__name__}: {str(error)[:80]}")


def describe_point(point: Point) -> str:
    """One progress line."""
    head = f"  run {point.run + 1}  {point.x:>5}  {point.system:<24}"
    if point.result is None:
        return f"{head} FAILED: {point.error.splitlines()[0] if point.error else '?'}"
    r = point.result
    text = f"{head} {r.appends_per_s:>10,.0f}/s  p50 {r.p50_us:>9,.0f} us  p99 {r.p99_us:>9,.0f} us"
    if r.errors or r.unanswered:
        text += f"  ERRORS {r.errors} UNANSWERED {r.unanswered}: {r.first_error[:80]}"
    return text


def summarize(points: Iterable[Point]) -> list[Summary]:
    """Medians over the runs of each system and x, in the order of first appearance."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.system, point.x), []).append(point)
    summaries = []
    for (system, x), group in groups.items():
        results = [point.result for point in group if point.result is not None]
        if not results:
            continue
        rates = [result.appends_per_s for result in results]
        summaries.append(
            Summary(
                system=system,
                x=x,
                runs=len(results),
                median_per_s=statistics.median(rates),
                min_per_s=min(rates),
                max_per_s=max(rates),
                p50_us=statistics.median(result.p50_us for result in results),
                p99_us=statistics.median(result.p99_us for result in results),
                server_cpu_us=statistics.median(p.server_cpu_us_per_append for p in group),
                errors=sum(result.errors + result.unanswered for result in results),
            )
        )
    return summaries


def rotated(systems: list[System], by: int) -> list[System]:
    """The systems in another order for each run, so that no one always follows the same."""
    shift = by % len(systems)
    return systems[shift:] + systems[:shift]


def choose_systems(names: str) -> list[System]:
    """The systems of a comma-separated list; ends the program if a name is unknown."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in SYSTEMS]
    if unknown or not wanted:
        sys.exit(f"unknown system {', '.join(unknown)}; there are: {', '.join(SYSTEMS)}")
    return [SYSTEMS[name] for name in wanted]


def parse_numbers(text: str) -> list[int]:
    """A comma-separated list of positive integers."""
    numbers = [int(word) for word in text.split(",")]
    if any(number < 1 for number in numbers):
        raise argparse.ArgumentTypeError("numbers must be 1 or more")
    return numbers


def add_common_options(parser: argparse.ArgumentParser, systems: str) -> None:
    """The options that every benchmark here has."""
    add = parser.add_argument
    add("--systems", default=systems, help=f"comma-separated, of: {', '.join(SYSTEMS)}")
    add("--runs", type=int, default=5, help="runs of each point; medians are reported (5)")
    add("--seconds", type=float, default=5.0, help="length of one load; 20 %% is warm-up (5)")
    add("--size", type=int, default=2048, help="payload bytes (2048)")
    add_place_options(parser)
    add(
        "--pin",
        action="store_true",
        help="server on core 0, generator on core 1 (taskset); default: the kernel decides",
    )
    add("--no-syncs", action="store_true", help="skip the separate runs under strace")


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every benchmark: folders, and how memory is prepared."""
    add = parser.add_argument
    add("--data-root", type=Path, default=BUILD_DIR / "data", help="where servers keep their data")
    add("--results", type=Path, default=RESULTS_DIR, help="where the dated results go")
    add("--label", default="", help="added to the names of the results, for example 'brief'")
    add(
        "--warm-mib",
        type=int,
        default=WARM_MIB,
        help=f"free memory touched before each measurement ({WARM_MIB}; see warmup.py)",
    )
    add(
        "--settle-s",
        type=float,
        default=SETTLE_S,
        help=f"longest wait for an idle machine before each measurement ({SETTLE_S:g})",
    )


def preparation_of(args: argparse.Namespace) -> Preparation:
    """Return the preparation before each measurement that the command line asks for."""
    return Preparation(args.warm_mib, args.settle_s)


def place_of(args: argparse.Namespace) -> Place:
    """The place that the command line asks for."""
    place = Place(args.data_root, preparation=preparation_of(args))
    if not args.pin:
        return place
    return replace(
        place, server_prefix=("taskset", "-c", "0"), client_prefix=("taskset", "-c", "1")
    )
