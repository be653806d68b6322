"""Recovery: how long after `kill -9` under load until a broker with a large log is ready again?

Run it from the root of the repository: `python -m benchmarks.recovery`. A broker is filled, then,
run after run, loaded by 128 appenders, killed in the middle and started again on the same data.
Time counts from the start of the process to its JSON ready line, interpreter and imports included.
At the end every record is read back and counted.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import broker as brokers
from benchmarks import cache, figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.fill import Shape, append_many, end_offset
from benchmarks.loadgen import Load, LoadResult, run_load
from benchmarks.peers.process import LOOPBACK, fresh_dir
from benchmarks.report import table
from benchmarks.sources.source import GIB

STREAM: Final = "bench"
OURS: Final = "Strandline"
VALUE_BYTES: Final = 2048
APPENDERS: Final = 128
EMPTY, CLEAN, KILLED, COLD = (
    "start on an empty directory",
    "start after a clean stop",
    "start after kill -9 under load",
    "the same, with every file dropped from the page cache",
)
AIM_S: Final = 2.0
INTRO = (
    "A log of {gib:g} GiB in records of 2 KiB. Each run: 128 appenders over 16 connections for "
    "{load_seconds:g} s, `kill -9` of the broker in the middle, start on the same data. Time is "
    "from the start of the process to its ready line. Every record that was acked must be there."
)
EPILOG = """\
example:
  python -m benchmarks.recovery --gib 0.5 --runs 1
"""


@dataclass
class Run:
    """The log's properties and the durations of starts, in seconds."""

    acked: int = 0
    starts: dict[str, list[float]] = field(default_factory=dict)
    stops: list[float] = field(default_factory=list)
    unacked: int = 0
    """Records found that were stored but not yet acked when the broker was killed."""
    said: list[list[str]] = field(default_factory=list)
    """What each start said about its recovery."""

    def started(self, case: str, broker: brokers.Broker) -> None:
        """One start."""
        self.starts.setdefault(case, []).append(broker.ready_s)
        self.said.append([case, f"{broker.ready_s:.2f}", broker.said("recovered")])
        print(f"  {case:<55} {broker.ready_s:6.3f} s  {broker.said('recovered')}", flush=True)

    def check_end(self, end: int) -> None:
        """Fails if an acked record is missing; what was in flight may be there or not."""
        if not self.acked <= end <= self.acked + APPENDERS:
            raise RuntimeError(f"{self.acked} records were acked, the log ends at {end}")
        self.unacked += end - self.acked
        self.acked = end


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gib", type=float, default=5.0, help="size of the log (5)")
    add("--runs", type=int, default=5, help="kills, and as many with cold files (5)")
    add("--load-seconds", type=float, default=3.0, help="load before each kill (3)")
    runner.add_place_options(parser)
    return parser.parse_args()


def kill_under_load(broker: brokers.Broker, seconds: float) -> int:
    """Loads the broker and kills it in the middle; how many appends were acked."""
    load = Load(
        connections=16,
        appenders=APPENDERS,
        size_bytes=VALUE_BYTES,
        seconds=2 * seconds,
        warmup=0,
        subject=STREAM,
    )
    results: list[LoadResult] = []
    loader = threading.Thread(
        target=lambda: results.append(run_load(load, LOOPBACK, broker.ingest_port))
    )
    loader.start()
    time.sleep(seconds)
    broker.kill()
    loader.join()
    if not results:
        raise RuntimeError("the load generator failed before the broker was killed")
    return results[0].acks


def count_records(broker: brokers.Broker) -> int:
    """Reads the whole log back; fails if offsets are not dense from 0."""
    expected = 0
    with broker.connect() as client, client.read(STREAM, columns=["offset", "value"]) as reader:
        for batch in reader:
            offsets = batch.column("offset")
            first, last = offsets[0].as_py(), offsets[-1].as_py()
            if first != expected or last - first != batch.num_rows - 1:
                raise RuntimeError(f"offsets {first} to {last} follow {expected - 1}")
            expected = last + 1
    return expected


def warm_up(data_root: Path) -> None:
    """One start that is not counted: bytecode is written, libraries are cached."""
    with brokers.fresh(data_root):
        pass


def fill(folder: Path, args: argparse.Namespace, run: Run) -> None:
    """A broker filled and stopped cleanly."""
    shape = Shape(int(args.gib * GIB) // VALUE_BYTES, VALUE_BYTES)
    with brokers.running(folder) as broker, broker.connect() as client:
        run.started(EMPTY, broker)
        client.create_stream(STREAM, subject=STREAM)
        seconds = append_many(client, STREAM, shape)
        print(f"  filled with {shape.records:,} records in {seconds:.1f} s", flush=True)
        run.acked = end_offset(client, STREAM)
        run.stops.append(broker.stop())


def every_file(folder: Path) -> list[Path]:
    """Everything the broker stores."""
    return [path for path in (folder / "data").rglob("*") if path.is_file()]


def measure(folder: Path, args: argparse.Namespace, run: Run) -> None:
    """All kills and starts on one log."""
    preparation = runner.preparation_of(args)
    fill(folder, args, run)
    for _ in range(args.runs):
        preparation.run()
        with brokers.running(folder) as broker:
            run.started(CLEAN, broker)
            run.acked += kill_under_load(broker, args.load_seconds)
        preparation.run()
        with brokers.running(folder) as broker:
            run.started(KILLED, broker)
            with broker.connect() as client:
                run.check_end(end_offset(client, STREAM))
            run.acked += kill_under_load(broker, args.load_seconds)
        preparation.run()
        cache.evict(every_file(folder))
        with brokers.running(folder) as broker:
            run.started(COLD, broker)
            with broker.connect() as client:
                run.check_end(end_offset(client, STREAM))
            run.stops.append(broker.stop())
    with brokers.running(folder) as broker:
        found = count_records(broker)
    if found != run.acked:
        raise RuntimeError(f"read {found} records of {run.acked}")


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, VALUE_BYTES)
    run = Run()
    warm_up(args.data_root)
    with fresh_dir(args.data_root, "strandline") as folder:
        measure(folder, args, run)
    found = [Figure(case, OURS, "s", values) for case, values in run.starts.items()]
    found.append(Figure("clean stop (SIGTERM)", OURS, "s", run.stops))
    counted = (
        f"{run.acked:,} records read back at the end, offsets dense from 0; every acked record was "
        f"there after each kill ({run.unacked} more were stored, but their acks not yet sent)."
    )
    said = table(["start", "ready after s", "log"], run.said)
    ready_s = next(figure.median for figure in found if figure.case == KILLED)
    aims = [Aim(f"{KILLED}, {args.gib:g} GiB", AIM_S, ready_s, "s", at_most=True)]
    findings = Findings(
        name="recovery",
        title=f"Recovery of a {args.gib:g} GiB log",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={"GiB": args.gib, "value bytes": VALUE_BYTES, "kills": 2 * args.runs},
        figures=found,
        aims=aims,
        module="benchmarks.recovery",
        sections=["## What was there", counted, "## What each start said", said],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
