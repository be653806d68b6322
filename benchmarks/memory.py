"""Memory: does a broker's stay flat while millions of records are appended and read back?

An idle broker's, and the time of a start, are measured first, over several starts.

Run it from the root of the repository: `python -m benchmarks.memory`. Slice by slice, records are
appended and then read back while the broker's resident memory is sampled. They come through the
broker, though the reader is on its machine. What counts is the memory of its own; page cache that
it has mapped is shown beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.fill import Shape, append_loaded, append_many, end_offset
from benchmarks.peers.process import cpu_seconds
from benchmarks.report import table
from benchmarks.rss import Rss, Samples, children, rss, sampling

if TYPE_CHECKING:
    from strandline.client import Client

STREAM: Final = "bench"
SLICES: Final = 10
WARM_SLICES: Final = 2
IDLE_S: Final = 2.0
DEVIATION_PERCENT_MAX: Final = 10.0
IDLE_MIB_MAX: Final = 90.0
START_S_MAX: Final = 0.5
STARTS: Final = 5
"""Of brokers whose start and idle memory are measured, after one that is not counted."""
THROUGH_BROKER: Final = ("env", "STRANDLINE_LOCAL_READS=false")
"""Else the reader would take the records from the broker's files."""
OURS: Final = "broker"
INTRO = (
    "{records:,} records of {size} bytes, appended by {via} and read back by one Flight consumer "
    "through the broker, "
    "in {slices} slices; the broker's resident memory is sampled every 50 ms. The first "
    "{warm_slices} slices are warm-up. 'Own' is anonymous memory (heaps and stacks); 'total' "
    "includes page cache that the broker has mapped to send it, which the kernel takes back freely."
)
EPILOG = """\
examples:
  python -m benchmarks.memory --records 1000000
  python -m benchmarks.memory --via ingest      # one by one, over 16 NATS connections: minutes
"""


@dataclass(frozen=True)
class Slice:
    """The duration and memory of one slice."""

    append_s: float
    read_s: float
    appending: Samples
    reading: Samples

    @property
    def anon_median(self) -> float:
        """Median of the broker's own memory over the whole slice, MiB."""
        return Samples([*self.appending.seen, *self.reading.seen]).anon_median


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--records", type=int, default=10_000_000, help="records in all (10000000)")
    add("--size", type=int, default=100, help="bytes of each value (100)")
    add(
        "--via",
        choices=("flight", "ingest"),
        default="flight",
        help="batches of the Python client, or single NATS messages (flight)",
    )
    runner.add_place_options(parser)
    return parser.parse_args()


def read_range(client: Client, start: int, stop: int) -> None:
    """Reads records, and fails if one is missing."""
    records = 0
    with client.read(STREAM, start=start, stop=stop) as reader:
        for batch in reader:
            records += batch.num_rows
    if records != stop - start:
        raise RuntimeError(f"read {records} records of {stop - start}")


def one_slice(broker: brokers.Broker, client: Client, shape: Shape, via: str) -> Slice:
    """Appends and reads back one slice."""
    first = end_offset(client, STREAM)
    started = time.perf_counter()
    with sampling(broker.pid) as appending:
        if via == "flight":
            append_many(client, STREAM, shape)
        else:
            append_loaded(broker, STREAM, shape)
    append_s = time.perf_counter() - started
    started = time.perf_counter()
    with sampling(broker.pid) as reading:
        read_range(client, first, end_offset(client, STREAM))
    return Slice(append_s, time.perf_counter() - started, appending, reading)


def deviation_percent(slices: Sequence[Slice]) -> float:
    """Return the largest deviation of a slice's median after the warm-up, in percent."""
    medians = [each.anon_median for each in slices[WARM_SLICES:]]
    middle = statistics.median(medians)
    return max(abs(each / middle - 1) * 100 for each in medians)


def slices_table(slices: Sequence[Slice]) -> str:
    """Memory slice by slice, MiB."""
    head = ["slice", "append s", "read s", "own, appending", "peak", "own, reading", "peak"]
    rows = [
        [
            f"{number}{' (warm-up)' if number <= WARM_SLICES else ''}",
            f"{each.append_s:.2f}",
            f"{each.read_s:.2f}",
            f"{each.appending.anon_median:.1f}",
            f"{each.appending.anon_peak:.1f}",
            f"{each.reading.anon_median:.1f}",
            f"{each.reading.anon_peak:.1f}",
            f"{each.reading.total_peak:.0f}",
        ]
        for number, each in enumerate(slices, 1)
    ]
    return table([*head, "total, peak"], rows)


@dataclass(frozen=True)
class Idle:
    """A broker that has started and was left alone."""

    ready_s: float
    cpu_s: float
    """Of the broker and its children, until it was ready."""
    memory: Rss
    child: float
    """Memory of its child processes, MiB."""


def one_start(data_root: Path) -> Idle:
    """Starts a broker with the default listeners, and leaves it alone."""
    with brokers.fresh(data_root) as broker:
        cpu_s = cpu_seconds(broker.pid)
        time.sleep(IDLE_S)
        child = sum(rss(pid).total for pid in children(broker.pid))
        return Idle(broker.ready_s, cpu_s, rss(broker.pid), child)


def idle_figures(data_root: Path) -> list[Figure]:
    """Starts, and memory after them."""
    seen = [one_start(data_root) for _ in range(STARTS + 1)][1:]
    case = "idle, after start"
    return [
        Figure("start", OURS, "s", [each.ready_s for each in seen], "until its ready line"),
        Figure("start", OURS, "s of CPU", [each.cpu_s for each in seen], "with its children"),
        Figure(case, OURS, "MiB", [each.memory.anon for each in seen], "own memory"),
        Figure(case, OURS, "MiB", [each.memory.total for each in seen], "total, with libraries"),
        Figure(case, "its child processes", "MiB", [each.child for each in seen], "total"),
    ]


def measure(args: argparse.Namespace) -> tuple[list[Figure], list[Slice]]:
    """Starts and idle memory, then all slices."""
    shape = Shape(args.records // SLICES, args.size)
    slices: list[Slice] = []
    found = idle_figures(args.data_root)
    with brokers.fresh(args.data_root, prefix=THROUGH_BROKER) as broker:
        with broker.connect() as client:
            client.create_stream(STREAM, subject=STREAM)
            for number in range(SLICES):
                done = one_slice(broker, client, shape, args.via)
                slices.append(done)
                own = f"own memory {done.anon_median:7.1f} MiB"
                print(f"  slice {number + 1:2}  {own}", flush=True)
        time.sleep(IDLE_S)
        after = rss(broker.pid)
    found += [
        Figure("idle, afterwards", OURS, "MiB", [after.anon], "own memory"),
        Figure("idle, afterwards", OURS, "MiB", [after.total], "total"),
    ]
    return found, slices


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, args.size)
    found, slices = measure(args)
    deviation = deviation_percent(slices)
    medians = [each.anon_median for each in slices[WARM_SLICES:]]
    found.append(Figure("appending and reading", OURS, "MiB", medians, "own memory, by slice"))
    start, _, _, idle, _ = found[:5]
    words = {**vars(args), "slices": SLICES, "warm_slices": WARM_SLICES}
    findings = Findings(
        name="memory" if args.via == "flight" else f"memory-{args.via}",
        title=f"Memory over {args.records:,} records",
        intro=INTRO.format(**words),
        machine=host,
        settings={"records": args.records, "value bytes": args.size, "via": args.via},
        figures=found,
        aims=[
            Aim(
                f"own memory over {args.records:,} records by {args.via}: largest deviation",
                DEVIATION_PERCENT_MAX,
                deviation,
                "%",
                at_most=True,
            ),
            Aim("memory of an idle broker, total", IDLE_MIB_MAX, idle.median, "MiB", at_most=True),
            Aim("start of a broker", START_S_MAX, start.median, "s", at_most=True),
        ],
        module="benchmarks.memory",
        sections=["## Slice by slice, MiB", slices_table(slices)],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
