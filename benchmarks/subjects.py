"""The subject index: its size, what it costs ingest, and how fast one record is found.

Run it from the root of the repository: `python -m benchmarks.subjects`. The same records, of which
each has a subject of its own, go to a broker that indexes sealed segments meanwhile and to one that
does not, in turns. Then a needle is read by its subject, with all files out of the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from benchmarks import broker as brokers
from benchmarks import cache, figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.fill import random_batch
from benchmarks.peers.process import fresh_dir

if TYPE_CHECKING:
    from strandline.client import Client

STREAM: Final = "bench"
NEEDLE: Final = "bench.needle"
OURS: Final = "strandline"
ROWS: Final = 10_000
SEGMENT_BYTES: Final = 64 << 20
INDEX_S_MAX: Final = 120.0
VARIABLE: Final = "STRANDLINE_CLEANER_INTERVAL_MS"
INDEXED, PLAIN = ("env", f"{VARIABLE}=500"), ("env", f"{VARIABLE}=1000000000")
INTRO = (
    "{records:,} records of {size} random bytes, each with a subject of its own (19 characters), "
    "by the Python client's append_batch. 'Found cold': a read by the subject of one record in the "
    "middle, in a broker that was just started, with all files out of the page cache."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.subjects", description=__doc__)
    add = parser.add_argument
    add("--records", type=int, default=3_000_000, help="records with distinct subjects (3000000)")
    add("--size", type=int, default=100, help="bytes of each value (100)")
    add("--runs", type=int, default=3, help="runs of each kind of ingest (3)")
    runner.add_place_options(parser)
    return parser.parse_args()


def fill(client: Client, records: int, size: int) -> float:
    """Append the records, one of them the needle; return seconds until all are acknowledged."""
    values = random_batch(size, ROWS).column(0)
    started = time.perf_counter()
    with client.producer(STREAM) as producer:
        for first in range(0, records, ROWS):
            names = [f"bench.key.{number:09d}" for number in range(first, first + ROWS)]
            if first <= records // 2 < first + ROWS:
                names[records // 2 - first] = NEEDLE
            subjects = pa.array(names).dictionary_encode()
            batch = pa.RecordBatch.from_arrays([values, subjects], names=["value", "subject"])
            producer.append_batch(batch)
    return time.perf_counter() - started


def index_files(folder: Path) -> list[Path]:
    """The subject indexes of a broker."""
    return sorted(folder.glob("data/logs/*/*.subjects"))


def wait_for_indexes(folder: Path) -> None:
    """Wait until every segment has its index: the stream is quiet."""
    deadline = time.monotonic() + INDEX_S_MAX
    while len(index_files(folder)) < len(brokers.segments_of(folder)):
        if time.monotonic() > deadline:
            raise RuntimeError("the segments have no subject index")
        time.sleep(0.2)


def found_seconds(folder: Path) -> float:
    """Read the needle once, cold."""
    files = [path for path in folder.glob("data/logs/*/*") if path.stat().st_size]
    with brokers.running(folder, prefix=PLAIN) as broker, broker.connect() as client:
        client.stream_info(STREAM)  # the connection is not what is measured
        cache.evict(files)
        started = time.perf_counter()
        found = client.read(STREAM, start="earliest", subject=NEEDLE, columns=["offset"]).read_all()
        seconds = time.perf_counter() - started
        if found.num_rows != 1:
            raise RuntimeError(f"{found.num_rows} needles")
        return seconds


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, args.size)
    rates: dict[tuple[str, ...], list[float]] = {INDEXED: [], PLAIN: []}
    cold: list[float] = []
    per_subject = 0.0
    for run in range(args.runs):
        for prefix in (INDEXED, PLAIN):
            with fresh_dir(args.data_root, "strandline") as folder:
                with brokers.running(folder, prefix=prefix) as broker, broker.connect() as client:
                    client.create_stream(STREAM, subject="bench.>", segment_bytes=SEGMENT_BYTES)
                    seconds = fill(client, args.records, args.size)
                    rates[prefix].append(args.records / seconds)
                    print(f"  run {run + 1}: {args.records / seconds:,.0f} records/s", flush=True)
                    if prefix == INDEXED:
                        wait_for_indexes(folder)
                if prefix == INDEXED:
                    per_subject = cache.size_bytes(index_files(folder)) / args.records
                    cold.append(found_seconds(folder) * 1000)
    indexed, plain = (statistics.median(rates[each]) for each in (INDEXED, PLAIN))
    findings = Findings(
        name="subjects",
        title="Subject index",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={"segment bytes": SEGMENT_BYTES, "runs": args.runs},
        figures=[
            Figure("ingest, indexed meanwhile", OURS, "records/s", rates[INDEXED]),
            Figure("ingest, no index", OURS, "records/s", rates[PLAIN]),
            Figure("one record found cold", OURS, "ms", cold, f"among {args.records:,}"),
            Figure("index", OURS, "B/subject", [per_subject]),
        ],
        aims=[
            Aim("ingest with the index, to without", 0.9, indexed / plain, ""),
            Aim("one record found cold", 100, statistics.median(cold), "ms", at_most=True),
            Aim("bytes per subject and segment", 40, per_subject, "B", at_most=True),
        ],
        module="benchmarks.subjects",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
