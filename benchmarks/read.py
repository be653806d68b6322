"""Reading back: one Python consumer over Arrow Flight, cached, cold, small records, single ones.

Run it from the root of the repository: `python -m benchmarks.read`. Beside it, in the same run: the
ceiling (a bare Flight server with the same batches in memory), a JetStream pull consumer, a Kafka
consumer, and `cat` of the same segment files for the cold read. Values are random bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Final

from benchmarks import broker as brokers
from benchmarks import cache, figures, machine, runner
from benchmarks.aims import Aim, number
from benchmarks.figures import Figure, Findings, find
from benchmarks.fill import Shape
from benchmarks.peers.process import UnavailableError, fresh_dir
from benchmarks.peers.system import Place
from benchmarks.report import table
from benchmarks.sources import (
    LABEL,
    Pass,
    Source,
    open_bare_flight,
    open_jetstream_source,
    open_kafka_source,
    open_strandline_source,
)
from benchmarks.sources.source import GIB, MIB
from benchmarks.sources.strandline import fill, read_stream
from benchmarks.warmup import touch_memory

WIDE_BYTES: Final = 2048
SMALL_BYTES: Final = 100
WIDE, COLD, SMALL, ONES = (
    "2 KiB records, cached",
    "2 KiB records, cold",
    "100 B records",
    "100 B records, one per batch",
)
CASES: Final = {"wide": WIDE, "cold": COLD, "small": SMALL, "ones": ONES}
CAT: Final = "cat SEGMENTS > /dev/null"
VALUE_ONLY: Final = "Strandline, columns=['value']"
PEERS: Final = {"jetstream": open_jetstream_source, "kafka": open_kafka_source}
OURS_S_MAX: Final = 60.0
INTRO = (
    "One Python consumer reads one partition from the beginning, once per run; median of {runs} "
    "runs after one that is not counted. Systems take turns; peers are cut after {peer_seconds:g} "
    "s. GiB/s count bytes of values; cold, bytes of segment files. All columns are read unless a "
    "row says otherwise. Cold: the broker is restarted, its segments are dropped from the page "
    "cache (checked with mincore), then read once; `cat` of the same files likewise. How safe an "
    "ack was does not matter to a read, so peers were filled without syncs."
)
EPILOG = """\
examples:
  python -m benchmarks.read --mib 256 --small 2000000 --ones 20000 --runs 3 --peer-seconds 3
  python -m benchmarks.read --cases cold --peers ''
"""


@dataclass
class Samples:
    """Values by case, system and unit, in the order of first appearance."""

    values: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def add(self, case: str, system: str, unit: str, value: float) -> None:
        """One run."""
        self.values.setdefault((case, system, unit), []).append(value)

    def figures(self) -> list[Figure]:
        """What the runs yield."""
        return [
            Figure(case, system, unit, values, self.notes.get((case, system), ""))
            for (case, system, unit), values in self.values.items()
        ]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.read",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cases", default=",".join(CASES), help=f"comma-separated, of: {', '.join(CASES)}")
    add("--peers", default=",".join(PEERS), help="comma-separated; '' for none")
    add("--runs", type=int, default=5, help="runs of each case; medians are reported (5)")
    add("--mib", type=int, default=1024, help="MiB of 2 KiB records (1024)")
    add("--small", type=int, default=10_000_000, help="records of 100 B (10000000)")
    add("--ones", type=int, default=100_000, help="records stored one per batch (100000)")
    add("--peer-seconds", type=float, default=5.0, help="a peer's pass is cut after this (5)")
    add("--peer-records", type=int, default=200_000, help="records a peer is filled with (200000)")
    runner.add_place_options(parser)
    args = parser.parse_args()
    unknown = [name for name in split(args.cases) if name not in CASES]
    unknown += [name for name in split(args.peers) if name not in PEERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    return args


def split(names: str) -> list[str]:
    """The words of a comma-separated list."""
    return [name.strip() for name in names.split(",") if name.strip()]


def timed(case: str, label: str, one_pass: Callable[[], Pass], *, warm_mib: int) -> Pass:
    """One counted pass, announced."""
    gc.collect()
    touch_memory(warm_mib)
    done = one_pass()
    rates = f"{done.gib_per_s:6.2f} GiB/s {done.records_per_s:14,.0f} records/s"
    print(f"  {case:<30} {label:<40} {rates}", flush=True)
    return done


def open_source(
    stack: ExitStack, samples: Samples, opened: AbstractContextManager[Source], name: str
) -> list[Source]:
    """The source, filled, after one pass that is not counted; none if it cannot be had here."""
    print(f"  starting and filling {name}", flush=True)
    try:
        source = stack.enter_context(opened)
        source.read(OURS_S_MAX / 10)
    except UnavailableError as error:
        samples.unavailable[name] = str(error)
        return []
    except (*runner.FAILURES, subprocess.SubprocessError) as error:
        samples.unavailable[name] = f"{type(error).__name__}: {error}"
        return []
    samples.versions[source.label] = source.version
    return [source]


def measure(case: str, shape: Shape, args: argparse.Namespace, samples: Samples) -> None:
    """All runs of one case that reads what is cached."""
    place = Place(args.data_root)
    with ExitStack() as stack:
        print(f"{case}: filling Strandline with {shape.records:,} records", flush=True)
        opened = open_strandline_source(place, shape, one_by_one=case == ONES)
        ours = stack.enter_context(opened)
        samples.versions[ours.label] = ours.version
        sources: list[Source] = [ours]
        ours.read(OURS_S_MAX)
        if case != ONES:
            sources += open_source(stack, samples, open_bare_flight(place, ours), "bare Flight")
            few = Shape(min(shape.records, args.peer_records), shape.value_bytes)
            for name in split(args.peers):
                sources += open_source(stack, samples, PEERS[name](place, few), name)
        for run in range(args.runs):
            shift = run % len(sources)
            for source in sources[shift:] + sources[:shift]:
                seconds_max = OURS_S_MAX if source is ours else args.peer_seconds
                one_pass = timed(
                    case,
                    source.label,
                    lambda read=source.read, cut=seconds_max: read(cut),
                    warm_mib=args.warm_mib,
                )
                check_complete(source, ours, one_pass)
                record(samples, case, source.label, one_pass)
            value_only = timed(
                case, VALUE_ONLY, lambda: ours.read(OURS_S_MAX, ["value"]), warm_mib=args.warm_mib
            )
            record(samples, case, VALUE_ONLY, value_only)


def check_complete(source: Source, ours: Source, done: Pass) -> None:
    """Strandline delivers everything, or the benchmark is broken."""
    if source is ours and done.records != getattr(ours, "records", None):
        raise RuntimeError(f"read {done.records} records of {getattr(ours, 'records', None)}")


def record(samples: Samples, case: str, label: str, done: Pass) -> None:
    """Keeps what a pass measured, in the units of the case."""
    if case == WIDE:
        samples.add(case, label, "GiB/s", done.gib_per_s)
    else:
        samples.add(case, label, "records/s", done.records_per_s)


def measure_cold(shape: Shape, args: argparse.Namespace, samples: Samples) -> None:
    """Reads after a restart with nothing cached, beside `cat` of the same files."""
    with fresh_dir(args.data_root, "strandline") as folder:
        print(f"{COLD}: filling Strandline with {shape.records:,} records", flush=True)
        with brokers.running(folder) as broker, broker.connect() as client:
            total = fill(broker, client, shape, one_by_one=False)
        for run in range(args.runs):
            with brokers.running(folder) as broker, broker.connect() as client:
                segments = broker.log_segments()
                size = cache.size_bytes(segments)

                def read_cold() -> float:
                    cache.evict(segments)
                    done = timed(
                        COLD,
                        LABEL,
                        lambda: read_stream(client, seconds_max=OURS_S_MAX),
                        warm_mib=args.warm_mib,
                    )
                    if done.records != total:
                        raise RuntimeError(f"read {done.records} records of {total}")
                    return done.seconds

                def cat_cold() -> float:
                    cache.evict(segments)
                    touch_memory(args.warm_mib)
                    return cache.cat_seconds(segments)

                # The broker maps what it has read, so only its first read can be a cold one.
                first, second = (cat_cold, read_cold) if run % 2 else (read_cold, cat_cold)
                del first, second
    del size
