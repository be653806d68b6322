"""Three brokers against JetStream R3: durable appends to all replicas, over 1, 16, 128 connections.

Run it from the root of the repository: `python -m benchmarks.cluster`. As `benchmarks.curve`, but
every record goes to three disks: three brokers with three replicas against three nats-servers with
an R3 stream and `sync_interval: always`, all on this machine, taking turns. `--appenders 1
--connections 1` is a lone publisher. It writes a dated JSON and Markdown file.
"""

from __future__ import annotations

import argparse

from benchmarks import machine, report, runner
from benchmarks.aims import Aim
from benchmarks.curve import timed_runs, traced_runs
from benchmarks.peers.cluster import JETSTREAM_R3, STRANDLINE_R3
from benchmarks.runner import Bench

DEFAULT_SYSTEMS = "strandline-r3,strandline-r3-nats,jetstream-r3"
DEFAULT_CONNECTIONS = "1,16,128"
MANY = 128
FEW_AIM, MANY_AIM = 1.5, 2.0
INTRO = (
    "{appenders} appenders of {size} bytes (random) over N connections to one partition on three "
    "servers; each appender waits for its own ack. Median of {runs} runs of {seconds:g} s "
    "(min-max), the first 20 % of each not counted; systems take turns. {pin} An ack of Strandline "
    "says that every in-sync replica has synced (three of three), one of JetStream that two of "
    "three have. CPU and syncs are those of all three servers, and of Strandline's nats-servers. "
    "Generator: native, `benchmarks/loadgen`."
)
EPILOG = """\
examples:
  python -m benchmarks.cluster                                   # about 15 minutes
  python -m benchmarks.cluster --connections 1 --appenders 1 --label lone
  python -m benchmarks.cluster --runs 1 --seconds 2 --no-syncs --label brief
"""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runner.add_common_options(parser, DEFAULT_SYSTEMS)
    add = parser.add_argument
    add("--connections", type=runner.parse_numbers, default=DEFAULT_CONNECTIONS, help="N, listed")
    add("--appenders", type=int, default=128, help="appenders over the connections (128)")
    return parser.parse_args()


def aims(result: report.Report) -> list[Aim]:
    """Ours over JetStream, at each number of connections."""
    found = report.by_key(result.summaries)
    listed = []
    for x in report.xs_of(result.summaries):
        ours, theirs = found.get((STRANDLINE_R3.name, x)), found.get((JETSTREAM_R3.name, x))
        ratio = ours.median_per_s / theirs.median_per_s if ours and theirs else None
        wanted = MANY_AIM if x >= MANY else FEW_AIM
        listed.append(Aim(f"Strandline ÷ JetStream R3, {x} connections", wanted, ratio, "x"))
    return listed


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    systems = runner.choose_systems(args.systems)
    host = machine.describe(args.data_root, args.size)
    with Bench(runner.place_of(args)) as bench:
        points = timed_runs(bench, systems, args)
        syncs = {} if args.no_syncs else traced_runs(bench, systems, args)
    pin = "Servers on core 0, generator on core 1." if args.pin else "Nothing is pinned to a core."
    result = report.Report(
        name="cluster",
        title="Durable appends on three brokers",
        x_name="N",
        intro=INTRO.format(**{**vars(args), "pin": pin}),
        machine=host,
        systems=systems,
        points=points,
        summaries=runner.summarize(points),
        syncs=syncs,
        versions=bench.versions,
        unavailable=bench.unavailable,
        module="benchmarks.cluster",
    )
    ratios = report.ratio_table(result, report.peer_pairs(systems))
    result.sections.extend(["## Against JetStream R3", ratios])
    result.aims.extend(aims(result))
    paths = report.write(result, args.results, args.label)
    print(report.markdown(result))
    print(f"written: {paths[0].name}, {paths[1].name} in {args.results}")


if __name__ == "__main__":
    main()
