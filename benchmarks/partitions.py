"""The same work over 1..1000 partitions: does the rate stay flat?

Run it from the root of the repository: `python -m benchmarks.partitions`. Each append goes to the
next partition in turn. A partition is a partition of one stream for Strandline and Kafka, a stream
of its own for JetStream, a key for Redis.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks import machine, report, runner
from benchmarks.aims import Aim
from benchmarks.loadgen import Load
from benchmarks.peers.system import System
from benchmarks.runner import Bench, Point, Summary
from benchmarks.syncs import SyncCount

DEFAULT_SYSTEMS = "strandline,jetstream,redis,kafka"
INTRO = (
    "{appenders} appenders of {size} bytes (random) over {connections} connections to P "
    "partitions, message by message in turn; each appender waits for its own ack. Median of {runs} "
    "runs of {seconds:g} s (min-max), the first 20 % of each not counted; systems take turns."
)
EPILOG = """\
example:
  python -m benchmarks.partitions --systems jetstream,redis --partitions 1,100 --runs 1 --seconds 2
"""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partitions",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runner.add_common_options(parser, DEFAULT_SYSTEMS)
    add = parser.add_argument
    add("--partitions", type=runner.parse_numbers, default="1,10,100,1000", help="P, listed")
    add("--connections", type=int, default=16, help="connections (16)")
    add("--appenders", type=int, default=128, help="appenders over the connections (128)")
    return parser.parse_args()


def load_of(args: argparse.Namespace, partitions: int, seconds: float) -> Load:
    """The load over this many partitions."""
    load = Load(args.connections, args.appenders, args.size, seconds)
    return replace(load, subjects=partitions)


def timed_runs(bench: Bench, systems: list[System], args: argparse.Namespace) -> list[Point]:
    """All timed points, systems interleaved."""
    points = []
    for run in range(args.runs):
        for partitions in args.partitions:
            place = replace(bench.place, partitions=partitions)
            load = load_of(args, partitions, args.seconds)
            for system in runner.rotated(systems, run + partitions.bit_length()):
                if system.name in bench.unavailable:
                    continue
                point = bench.run_point(system, load, partitions, run, place)
                print(runner.describe_point(point), flush=True)
                points.append(point)
    return points


def traced_runs(
    bench: Bench, systems: list[System], args: argparse.Namespace
) -> dict[str, SyncCount]:
    """Syncs per append with the largest number of partitions, outside the timed runs."""
    most = max(args.partitions)
    place = replace(bench.place, partitions=most)
    load = load_of(args, most, runner.SYNC_LOAD_S)
    wanted = [system for system in systems if system.name not in bench.unavailable]
    return {system.name: bench.run_syncs(system, load, place) for system in wanted}


def flatness(systems: list[System], summaries: list[Summary]) -> str:
    """The rate with the most partitions over the rate with the fewest, for each system."""
    found, xs = report.by_key(summaries), report.xs_of(summaries)
    rows = []
    for system in systems:
        few, most = found.get((system.name, xs[0])), found.get((system.name, xs[-1]))
        if few and most and few.median_per_s > 0:
            rows.append([system.label, f"{most.median_per_s / few.median_per_s:.2f}"])
    return report.table(["flatness", f"P={xs[-1]} ÷ P={xs[0]}"], rows)


def aims(summaries: list[Summary]) -> list[Aim]:
    """The rate of `strandline` with the most partitions over that with the fewest."""
    found, xs = report.by_key(summaries), report.xs_of(summaries)
    few, most = (found.get(("strandline", x)) for x in (xs[0], xs[-1]))
    ratio = most.median_per_s / few.median_per_s if few and most and few.median_per_s else None
    return [Aim(f"{xs[-1]} partitions ÷ {xs[0]}", 0.7, ratio, "x")]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    systems = runner.choose_systems(args.systems)
    host = machine.describe(args.data_root, args.size)
    with Bench(runner.place_of(args)) as bench:
        bench.open_kept(systems)
        points = timed_runs(bench, systems, args)
        syncs = {} if args.no_syncs else traced_runs(bench, systems, args)
    result = report.Report(
        name="partitions",
        title="The same work over many partitions",
        x_name="P",
        intro=INTRO.format(**vars(args)),
        machine=host,
        systems=systems,
        points=points,
        summaries=runner.summarize(points),
        syncs=syncs,
        versions=bench.versions,
        unavailable=bench.unavailable,
        module="benchmarks.partitions",
    )
    if result.summaries:
        result.sections.extend(["## Flatness", flatness(systems, result.summaries)])
        result.aims.extend(aims(result.summaries))
    if pairs := report.peer_pairs(systems):
        ratios = report.ratio_table(result, pairs)
        result.sections.extend(["## Against the peers (same ack class)", ratios])
    paths = report.write(result, args.results, args.label)
    print(report.markdown(result))
    print(f"written: {paths[0].name}, {paths[1].name} in {args.results}")


if __name__ == "__main__":
    main()
