"""The lone appender: what one append costs when nobody else is there to share its sync.

Run it from the root of the repository: `python -m benchmarks.lone`. The floor of a durable append
is one fdatasync of the same size on the same disk plus one round trip. Both are measured here,
between the runs: the fdatasync without any server, the round trip as PING and PONG on the same
listener, or, for what sits behind a nats-server, as request and reply through one.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks import machine, report, runner
from benchmarks.aims import Aim
from benchmarks.loadgen import Load
from benchmarks.peers import SYSTEMS
from benchmarks.peers.system import Ack, System
from benchmarks.runner import Bench, Point

DEFAULT_SYSTEMS = "strandline,strandline-nats,strandline-memory,jetstream,redis,kafka"
REFERENCES: Final = ("ceiling", "ceiling-nats")
PING_S = 1.0
INTRO = (
    "One appender of {size} bytes (random) on one connection, which waits for each ack. Median of "
    "{runs} runs of {seconds:g} s, the first 20 % of each not counted; systems take turns."
)
EPILOG = """\
example:
  python -m benchmarks.lone --systems jetstream,redis --runs 1 --seconds 2
"""


@dataclass
class Samples:
    """Everything the runs yield: timed points, round trips by system, and syncs (us)."""

    points: list[Point] = field(default_factory=list)
    round_trips_us: dict[str, list[float]] = field(default_factory=dict)
    syncs_us: list[float] = field(default_factory=list)

    def sync_us(self) -> float:
        """Median over the runs of the p50 of one write and fdatasync."""
        return statistics.median(self.syncs_us)

    def round_trip_us(self, system: str) -> float | None:
        """Median of the p50 of a round trip on this system's listener, if it could be had."""
        samples = self.round_trips_us.get(system)
        return statistics.median(samples) if samples else None


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lone",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runner.add_common_options(parser, DEFAULT_SYSTEMS)
    return parser.parse_args()


def one_run(
    bench: Bench, systems: Sequence[System], args: argparse.Namespace, run: int, samples: Samples
) -> None:
    """One turn of every system, with a measurement of the bare disk before each."""
    load = Load(connections=1, appenders=1, size_bytes=args.size, seconds=args.seconds)
    ping = replace(load, ping=True, seconds=PING_S)
    for system in systems:
        if system.name in bench.unavailable:
            continue
        samples.syncs_us.append(machine.measure_sync(args.data_root, args.size).overwrite_p50_us)
        if not system.name.startswith("ceiling"):
            with contextlib.suppress(*runner.FAILURES), bench.session(system, bench.place) as live:
                trip = live.run(ping).p50_us
                samples.round_trips_us.setdefault(system.name, []).append(trip)
        point = bench.run_point(system, load, 1, run, bench.place)
        print(runner.describe_point(point), flush=True)
        samples.points.append(point)
        if point.result is not None and system.name in REFERENCES:
            trips = samples.round_trips_us.setdefault(system.name, [])
            trips.append(point.result.p50_us)


def floor_us(system: System, samples: Samples) -> float | None:
    """Measure the least cost of an append: a sync, unless acks are in memory, and a round trip."""
    behind = system.name.startswith("strandline-nats")
    trip = samples.round_trip_us("ceiling-nats" if behind else system.name)
    if trip is None:
        return None
    return trip + (samples.sync_us() if system.ack is Ack.DISK else 0.0)


def aims(systems: Sequence[System], samples: Samples) -> list[Aim]:
    """p50 of Strandline with disk acks over its floor."""
    found = report.by_key(runner.summarize(samples.points))
    listed = []
    for system in systems:
        if system.name in ("strandline", "strandline-nats"):
            each, floor = found.get((system.name, 1)), floor_us(system, samples)
            ratio = each.p50_us / floor if each and floor else None
            name = f"{system.label}: p50 over one fdatasync and one round trip"
            listed.append(Aim(name, 1.5, ratio, "x", at_most=True))
    return listed


def floor_table(systems: Sequence[System], samples: Samples) -> str:
    """p50 of each system beside its floor. A memory ack has no sync in its floor."""
    found = report.by_key(runner.summarize(samples.points))
    rows = []
    for system in systems:
        each = found.get((system.name, 1))
        if each is None:
            continue
        sync = samples.sync_us() if system.ack is Ack.DISK else 0.0
        floor = floor_us(system, samples)
        cells = [system.label, system.ack.value[0], f"{each.p50_us:.0f}", f"{each.p99_us:.0f}"]
        parts = [floor - sync, floor, each.p50_us / floor] if floor else []
        cells += [f"{part:.4g}" for part in parts] or ["-"] * 3
        cells += [f"{each.p50_us / sync:.2f}" if sync else "-"]
        rows.append(cells)
    head = ["lone appender, us", "ack", "p50", "p99", "round trip", "floor", "p50 / floor"]
    return report.table([*head, "p50 / fdatasync"], rows)


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    chosen = runner.choose_systems(args.systems)
    systems = chosen + [SYSTEMS[name] for name in REFERENCES if SYSTEMS[name] not in chosen]
    host = machine.describe(args.data_root, args.size)
    samples = Samples()
    with Bench(runner.place_of(args)) as bench:
        bench.open_kept(systems)
        for run in range(args.runs):
            one_run(bench, runner.rotated(systems, run), args, run, samples)
    floor = (
        f"One write and fdatasync of {args.size} bytes over preallocated space: "
        f"{samples.sync_us():.0f} us (median of p50s, taken between the runs)."
    )
    result = report.Report(
        name="lone",
        title="The lone appender",
        x_name="N",
        intro=INTRO.format(**vars(args)),
        machine=host,
        systems=systems,
        points=samples.points,
        summaries=runner.summarize(samples.points),
        syncs={},
        versions=bench.versions,
        unavailable=bench.unavailable,
        module="benchmarks.lone",
        sections=["## Against the floor", floor, floor_table(systems, samples)],
    )
    result.aims.extend(aims(systems, samples))
    paths = report.write(result, args.results, args.label)
    print(report.markdown(result))
    print(f"written: {paths[0].name}, {paths[1].name} in {args.results}")


if __name__ == "__main__":
    main()
