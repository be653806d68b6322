"""Beam's Append beside the NATS paths: durable appends a second, on one broker, in one run.

Run it from the root of the repository: `python -m benchmarks.beam`. 128 appenders share 1, 16 and
128 connections; each sends one record, waits for its ack, and sends the next. All paths write the
same stream, take turns, and have the same native generator: `logspec.Log/Append`, a call for each
appender with one proposal a request, and NATS publishes with PubAcks, through nats-server as users
publish and at the ingest port, which saves that hop.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, replace
from typing import Final

from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings, find
from benchmarks.loadgen import Load, LoadResult, run_load
from benchmarks.peers.process import LOOPBACK, cpu_seconds, fresh_dir
from strandline.testing import ProcessServer

BEAM: Final = "Append"
NATS: Final = {"NATS, nats-server": "nats_port", "NATS, ingest port": "ingest_port"}
"""Path → the port of the broker's ready line."""
PORTS: Final = {BEAM: "beam_port", **NATS}
STREAM: Final = "beam"
APPENDERS: Final = 128
RATIO_AIM: Final = 0.8
MICROSECONDS: Final = 1e6
INTRO: Final = (
    "Closed loop, {appenders} appenders of {size} bytes over N connections to one stream of one "
    "broker, acks from disk. The paths take turns in each run. CPU: of the broker (without its "
    "nats-server), for each append. The first 20 % of each load is not counted."
)


@dataclass(frozen=True)
class Turn:
    """One load."""

    path: str
    connections: int
    result: LoadResult
    cpu_us: float


def run_turn(server: ProcessServer, path: str, load: Load) -> Turn:
    """One load on one path.

    Raises:
        LoadError: it could not be run.
    """
    port = server.ready[PORTS[path]]
    before = cpu_seconds(server.pid)
    result = run_load(replace(load, beam=path == BEAM), LOOPBACK, port)
    cpu_us = (cpu_seconds(server.pid) - before) / max(1, result.replies_total) * MICROSECONDS
    print(
        f"  {load.connections:>4} connections  {path:<17} {result.appends_per_s:>8,.0f}/s"
        f"  p50 {result.p50_us:>6,.0f} us  broker {cpu_us:.1f} us an append",
        flush=True,
    )
    if result.errors or result.unanswered:
        raise SystemExit(f"{result.errors} errors, {result.unanswered} unanswered on {path}")
    return Turn(path, load.connections, result, cpu_us)


def measure(args: argparse.Namespace) -> list[Turn]:
    """All runs, on one broker."""
    preparation = runner.preparation_of(args)
    turns = []
    with (
        fresh_dir(args.data_root, "beam") as folder,
        ProcessServer(folder, arguments=("--beam-port", "0", "--log-level", "warning")) as server,
    ):
        for run in range(args.runs):
            paths = list(PORTS) if run % 2 else list(reversed(PORTS))
            for connections in args.connections:
                load = Load(connections, args.appenders, args.size, args.seconds, subject=STREAM)
                for path in paths:
                    preparation.run()
                    turns.append(run_turn(server, path, load))
    return turns


def listed(turns: list[Turn]) -> list[Figure]:
    """Rates of both paths at each number of connections."""
    found = []
    for connections, path in dict.fromkeys((turn.connections, turn.path) for turn in turns):
        same = [turn for turn in turns if (turn.connections, turn.path) == (connections, path)]
        p50 = statistics.median(turn.result.p50_us for turn in same)
        cpu = statistics.median(turn.cpu_us for turn in same)
        note = f"p50 {p50:,.0f} µs, {cpu:.1f} µs of CPU"
        rates = [turn.result.appends_per_s for turn in same]
        found.append(Figure(f"{connections} connections", path, "appends/s", rates, note))
    return found


def aims(rates: list[Figure], connections: list[int]) -> list[Aim]:
    """Return Append's rate relative to each NATS path."""
    found = []
    for count in connections:
        case = f"{count} connections"
        over = find(rates, case, BEAM)
        assert over is not None, "it was measured"
        for path in NATS:
            under = find(rates, case, path)
            assert under is not None, "it was measured"
            ratio = over.median / under.median
            found.append(Aim(f"{BEAM} ÷ {path}, {case}", RATIO_AIM, ratio, "x"))
    return found


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beam",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--connections", type=runner.parse_numbers, default=[1, 16, 128], help="1,16,128")
    add("--appenders", type=int, default=APPENDERS, help=f"of each load ({APPENDERS})")
    add("--size", type=int, default=2048, help="bytes of a record (2048)")
    add("--runs", type=int, default=5, help="of each point; medians are reported (5)")
    add("--seconds", type=float, default=4.0, help="of one load (4)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, args.size)
    turns = measure(args)
    rates = listed(turns)
    findings = Findings(
        name="beam",
        title="Beam's Append beside the NATS paths",
        intro=INTRO.format(appenders=args.appenders, size=args.size),
        machine=host,
        settings={"appenders": args.appenders, "bytes": args.size, "seconds": args.seconds},
        figures=rates,
        aims=aims(rates, args.connections),
        module="benchmarks.beam",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
