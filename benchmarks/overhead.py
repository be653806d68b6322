"""Storage overhead: bytes on disk per record beyond the bytes of its value.

Run it from the root of the repository: `python -m benchmarks.overhead`. Each case fills a broker of
its own and stops it cleanly; then the files are added up. The journal has a fixed, preallocated and
recycled size whatever is stored, so it is shown apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.cache import size_bytes
from benchmarks.figures import Figure, Findings
from benchmarks.fill import Shape, append_loaded, append_many, end_offset
from benchmarks.peers.process import fresh_dir
from benchmarks.report import table

STREAM: Final = "bench"
SUBJECT: Final = "bench.trickle.eu.created"
assert len(SUBJECT) == 24, "the aim is stated for subjects of up to 24 characters"
OURS: Final = "segments and indexes"
ONES: Final = "one-record batches, subject of 24 characters"
FULL: Final = "full batches, no keys"
SHARED: Final = "batches as 128 NATS publishers make them"
INTRO = (
    "Values of {size} random bytes. 'One-record batches': one NATS publisher who waits for each "
    "ack. 'Full batches': the Python client's append_batch. Sizes are lengths of files after a "
    "clean stop; overhead is what is left when the values are taken off, per record."
)
EPILOG = """\
example:
  python -m benchmarks.overhead --ones 5000 --full 200000
"""


@dataclass(frozen=True)
class Usage:
    """Return the bytes that a filled and stopped broker left on disk."""

    records: int
    batches: int
    value_bytes: int
    segments: int
    indexes: int
    journal: int
    rest: int

    @property
    def overhead(self) -> float:
        """Bytes per record of segments and indexes beyond the values."""
        return (self.segments + self.indexes - self.value_bytes) / self.records


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--size", type=int, default=100, help="bytes of each value (100)")
    add("--ones", type=int, default=20_000, help="records stored one per batch (20000)")
    add("--full", type=int, default=2_000_000, help="records stored in full batches (2000000)")
    runner.add_place_options(parser)
    return parser.parse_args()


def count_batches(segments: list[Path]) -> int:
    """Count the batches in segment files."""
    from strandline.record.batch import iter_headers

    return sum(1 for path in segments for _ in iter_headers(path.read_bytes()))


def usage(folder: Path, records: int, value_bytes: int) -> Usage:
    """Adds up what a stopped broker left."""
    files = {path for path in (folder / "data").rglob("*") if path.is_file()}
    segments = brokers.segments_of(folder)
    indexes = {path for path in files if path.suffix in (".index", ".timeindex")}
    journal = {path for path in files if path.suffix == ".journal"}
    return Usage(
        records=records,
        batches=count_batches(segments),
        value_bytes=value_bytes * records,
        segments=size_bytes(segments),
        indexes=size_bytes(indexes),
        journal=size_bytes(journal),
        rest=size_bytes(files - indexes - journal - set(segments)),
    )


Fill = Callable[[brokers.Broker, Shape], None]


def fill_ones(broker: brokers.Broker, shape: Shape) -> None:
    """One publisher who waits for each ack."""
    append_loaded(broker, SUBJECT, shape, connections=1, appenders=1)


def fill_full(broker: brokers.Broker, shape: Shape) -> None:
    """Batches of the Python client."""
    with broker.connect() as client:
        append_many(client, STREAM, shape)


def fill_shared(broker: brokers.Broker, shape: Shape) -> None:
    """128 publishers over 16 connections."""
    append_loaded(broker, SUBJECT, shape)


def measure(data_root: Path, shape: Shape, fill: Fill) -> Usage:
    """One case, on a broker of its own."""
    with fresh_dir(data_root, "strandline") as folder:
        with brokers.running(folder) as broker:
            with broker.connect() as client:
                client.create_stream(STREAM, subject=SUBJECT)
                fill(broker, shape)
                records = end_offset(client, STREAM)
            broker.stop()
        return usage(folder, records, shape.value_bytes)


def usage_table(found: dict[str, Usage]) -> str:
    """Every part, bytes."""
    head = ["case", "records", "batches", "values", "segments", "indexes", "journal (fixed)"]
    rows = []
    for case, each in found.items():
        parts = [each.value_bytes, each.segments, each.indexes, each.journal, each.rest]
        cells = [each.records, each.batches, *parts]
        rows.append([case, *(f"{cell:,}" for cell in cells)])
    return table([*head, "everything else"], rows)


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, args.size)
    cases = {
        ONES: (Shape(args.ones, args.size), fill_ones),
        FULL: (Shape(args.full, args.size), fill_full),
        SHARED: (Shape(args.full // 10, args.size), fill_shared),
    }
    found: dict[str, Usage] = {}
    for case, (shape, fill) in cases.items():
        print(f"  {case}: {shape.records:,} records", flush=True)
        found[case] = measure(args.data_root, shape, fill)
    if found[ONES].batches != found[ONES].records:
        raise RuntimeError(f"{found[ONES].records} records became {found[ONES].batches} batches")
    findings = Findings(
        name="overhead",
        title="Storage overhead per record",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={"value bytes": args.size, "compression": "none", "keys": "none"},
        figures=[
            Figure(case, OURS, "B/record", [each.overhead], f"{each.records:,} records")
            for case, each in found.items()
        ],
        aims=[
            Aim(f"overhead, {ONES}", 120, found[ONES].overhead, "B/record", at_most=True),
            Aim(f"overhead, {FULL}", 16, found[FULL].overhead, "B/record", at_most=True),
        ],
        module="benchmarks.overhead",
        sections=["## Where the bytes are", usage_table(found)],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
