"""Beam's curve: 128 appenders of 2 KiB over 1..128 connections, Strandline beside its peers.

Run it from the root of the repository: `python -m benchmarks.curve`. All systems take turns within
one invocation, in another order for each run, so that noise of the machine hits all alike. It
writes a dated JSON and Markdown file and draws `docs/img/beam-curve.png`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, plot, report, runner
from benchmarks.aims import Aim
from benchmarks.loadgen import Load
from benchmarks.peers.system import System
from benchmarks.runner import Bench, Point
from benchmarks.syncs import SyncCount

DEFAULT_SYSTEMS = (
    "strandline,strandline-nats,strandline-memory,strandline-nats-memory,jetstream,redis,kafka"
)
DEFAULT_CONNECTIONS = "1,2,4,8,16,32,64,128"
SYNCS_AT = 16
FEW, MANY = 16, 128
INTRO = (
    "{appenders} appenders of {size} bytes (random) over N connections to one partition; each "
    "appender waits for its own ack. Median of {runs} runs of {seconds:g} s (min-max), the first "
    "20 % of each not counted; systems take turns. {pin} Ack classes: a = server memory, b = page "
    "cache, c = synced to one disk. Generator: native, `benchmarks/loadgen` (Kafka: its own Java "
    "client, warm)."
)
EPILOG = """\
examples:
  python -m benchmarks.curve --systems jetstream,redis --connections 1,16,128 --runs 1 --seconds 2
  python -m benchmarks.curve --systems strandline,strandline-memory,ceiling --no-syncs

A full run (7 systems, 8 points, 5 runs, 5 s) takes about 45 minutes. Systems that are not on this
machine are skipped with a message that says how to get them.
"""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curve",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runner.add_common_options(parser, DEFAULT_SYSTEMS)
    add = parser.add_argument
    add("--connections", type=runner.parse_numbers, default=DEFAULT_CONNECTIONS, help="N, listed")
    add("--appenders", type=int, default=128, help="appenders over the connections (128)")
    add("--plot", type=Path, default=plot.PICTURE, help="the PNG (docs/img/beam-curve.png)")
    add("--no-plot", action="store_true", help="draw nothing")
    return parser.parse_args()


def timed_runs(bench: Bench, systems: list[System], args: argparse.Namespace) -> list[Point]:
    """All timed points, systems interleaved."""
    points = []
    for run in range(args.runs):
        for connections in args.connections:
            load = Load(connections, max(args.appenders, connections), args.size, args.seconds)
            for system in runner.rotated(systems, run + connections.bit_length()):
                if system.name in bench.unavailable:
                    continue
                point = bench.run_point(system, load, connections, run, bench.place)
                print(runner.describe_point(point), flush=True)
                points.append(point)
    return points


def traced_runs(
    bench: Bench, systems: list[System], args: argparse.Namespace
) -> dict[str, SyncCount]:
    """Syncs per append of each system, outside the timed runs."""
    counts = {}
    load = Load(SYNCS_AT, args.appenders, args.size, runner.SYNC_LOAD_S)
    for system in systems:
        if system.name not in bench.unavailable:
            counts[system.name] = bench.run_syncs(system, load, bench.place)
            print(f"  syncs per append, {system.label}: {counts[system.name].describe()}")
    return counts


def _worst(
    result: report.Report, over: str, under: str, connections: Sequence[int]
) -> float | None:
    """The smallest ratio of two systems' medians over these connections; None if not measured."""
    found = report.by_key(result.summaries)
    ratios = []
    for x in connections:
        top, bottom = found.get((over, x)), found.get((under, x))
        if top is None or bottom is None or not bottom.median_per_s:
            continue
        ratios.append(top.median_per_s / bottom.median_per_s)
    return min(ratios, default=None)


def aims(result: report.Report) -> list[Aim]:
    """The aims of the curve, each at its worst point."""
    xs = report.xs_of(result.summaries)
    few, many = [x for x in xs if x <= FEW], [x for x in xs if x >= MANY]
    worst = functools.partial(_worst, result)
    listed = []
    for name, label in (("strandline", "ingest port"), ("strandline-nats", "by nats-server")):
        for peer in ("jetstream", "kafka"):
            ratio = worst(name, peer, few)
            listed.append(Aim(f"{label} ÷ {peer}, up to {FEW} connections", 10, ratio, "x"))
            ratio = worst(name, peer, many)
            listed.append(Aim(f"{label} ÷ {peer}, {MANY} connections", 5, ratio, "x"))
        ratio = worst(name, "redis", few)
        listed.append(Aim(f"{label} ÷ redis, up to {FEW} connections", 1, ratio, "x"))
        ratio = worst(name, f"{name}-memory", xs)
        listed.append(Aim(f"{label}: disk acks ÷ memory acks, worst point", 0.85, ratio, "x"))
    return listed


def sections(systems: list[System], result: report.Report) -> list[str]:
    """The ratios: against peers of the same ack class, and disk against memory acks."""
    names = [system.name for system in systems]
    cost = [(name, f"{name}-memory") for name in names if f"{name}-memory" in names]
    parts = []
    if pairs := report.peer_pairs(systems):
        parts += ["## Against the peers (same ack class)", report.ratio_table(result, pairs)]
    if cost:
        parts += ["## What the sync costs", report.ratio_table(result, cost)]
    return parts


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    systems = runner.choose_systems(args.systems)
    host = machine.describe(args.data_root, args.size, args.appenders)
    with Bench(runner.place_of(args)) as bench:
        bench.open_kept(systems)
        points = timed_runs(bench, systems, args)
        syncs = {} if args.no_syncs else traced_runs(bench, systems, args)
    pin = "Server on core 0, generator on core 1." if args.pin else "Nothing is pinned to a core."
    values = {**vars(args), "pin": pin}
    result = report.Report(
        name="curve",
        title="Beam's curve",
        x_name="N",
        intro=INTRO.format(**values),
        machine=host,
        systems=systems,
        points=points,
        summaries=runner.summarize(points),
        syncs=syncs,
        versions=bench.versions,
        unavailable=bench.unavailable,
        module="benchmarks.curve",
    )
    result.sections.extend(sections(systems, result))
    result.aims.extend(aims(result))
    paths = report.write(result, args.results, args.label)
    print(report.markdown(result))
    print(f"written: {paths[0].name}, {paths[1].name} in {args.results}")
    limit = plot.disk_limit(host)
    if not args.no_plot and not plot.draw_curve(systems, result.summaries, args.plot, limit):
        print("no plot: matplotlib is not installed (`pip install matplotlib`)")


if __name__ == "__main__":
    main()
