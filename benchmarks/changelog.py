"""Reading a changelog of many keys into a table: `compacted_view`.

Run it from the root of the repository: `python -m benchmarks.changelog`. The stream has `--keys`
keys in no order, and `--more` times as many records again that supersede some of them: a changelog
before compaction, which is left off so that every run reads the same records. What counts is
records per second of CPU of the process that reads (its threads together); the broker's CPU and the
clock are figures beside it. Each run is a process of its own, so its memory is measured too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.fill import random_batch
from benchmarks.peers.process import cpu_seconds

if TYPE_CHECKING:
    from strandline.client import Client

STREAM: Final = "changelog"
SIZE_BYTES: Final = 2048
STRIDE: Final = 6_700_417
"""A prime: with it keys come in no order, and each once in a round."""
ROWS: Final = 16_384
AIM: Final = 1_000_000.0
PER_CPU, PER_S = "records per s of the reader's CPU", "records/s"
BROKER, READER = "µs of the broker's CPU per record", "µs of the reader's CPU per record"
MEMORY: Final = "MiB of the reader's memory at most"
SYSTEM: Final = "latest_by_key"
INTRO: Final = (
    "One Python process reads a stream of {records:,} records and {keys:,} keys, "
    "{partitions} partition(s), values of {value} B, into an Arrow table of the newest record of "
    "each key; median of {runs} runs, a process each. The broker runs on the same cores."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.changelog",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--runs", type=int, default=5, help="runs; medians are reported (5)")
    add("--keys", type=int, default=10_000_000, help="distinct keys (10000000)")
    add("--more", type=float, default=0.2, help="records besides the first of each key (0.2)")
    add("--value", type=int, default=32, help="bytes of a value (32)")
    add("--partitions", type=int, default=1, help="partitions of the stream (1)")
    add("--read", default="", help=argparse.SUPPRESS)  # what a run's own process does
    runner.add_place_options(parser)
    return parser.parse_args()


def keys_of(first: int, count: int, keys: int) -> pa.Array:
    """The keys of so many records from a number on."""
    numbers = pa.array(range(first, first + count), pa.int64())
    spread = pc.multiply(numbers, STRIDE)
    rest = pc.subtract(spread, pc.multiply(pc.divide(spread, keys), keys))
    return pc.binary_join_element_wise("key-", rest.cast(pa.string()), "").cast(pa.binary())


def batches(args: argparse.Namespace) -> Iterator[pa.RecordBatch]:
    """Every record of the changelog."""
    values = random_batch(args.value, ROWS).column("value")
    total = records_of(args)
    for first in range(0, total, ROWS):
        count = min(ROWS, total - first)
        keys = keys_of(first, count, args.keys)
        yield pa.RecordBatch.from_arrays([keys, values.slice(0, count)], names=["key", "value"])


def records_of(args: argparse.Namespace) -> int:
    """Return the number of records in the stream."""
    return args.keys + int(args.keys * args.more)


def fill(client: Client, args: argparse.Namespace) -> None:
    """Make the changelog."""
    client.create_stream(STREAM, partitions=args.partitions)
    with client.producer(STREAM) as producer:
        for batch in batches(args):
            producer.append_batch(batch)


def read(address: str) -> None:
    """One run in this process; prints what it found and took."""
    import strandline
    from strandline.client.reader.compacted_view import compacted_view

    with strandline.connect(address) as client:
        client.stream_info(STREAM)
        before, started = time.process_time(), time.perf_counter()
        found = compacted_view(client, STREAM)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - before
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = {"rows": found.num_rows, "seconds": seconds, "cpu_s": cpu_s, "mib": peak_kib / 1024}
    print(json.dumps(said))


def run_once(broker: brokers.Broker, args: argparse.Namespace) -> dict[str, float]:
    """One run in a process of its own; its figures by unit."""
    runner.preparation_of(args).run()
    before = cpu_seconds(broker.pid)
    words = [sys.executable, "-m", "benchmarks.changelog", "--read", broker.address]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the reader failed: {done.stderr[-800:]}")
    said: dict[str, Any] = json.loads(done.stdout)
    if said["rows"] != args.keys:
        raise RuntimeError(f"the table has {said['rows']} rows for {args.keys} keys")
    records, broker_s = records_of(args), cpu_seconds(broker.pid) - before
    print(f"  {records / said['cpu_s']:12,.0f} records per s of CPU, {said['seconds']:.1f} s")
    return {
        PER_CPU: records / said["cpu_s"],
        PER_S: records / said["seconds"],
        READER: said["cpu_s"] * 1e6 / records,
        BROKER: broker_s * 1e6 / records,
        MEMORY: said["mib"],
    }


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    if args.read:
        read(args.read)
        return
    host = machine.describe(args.data_root, SIZE_BYTES)
    with brokers.fresh(args.data_root) as broker, broker.connect() as client:
        print(f"filling {records_of(args):,} records", flush=True)
        fill(client, args)
        found = [run_once(broker, args) for _ in range(args.runs)]
    case = f"{args.keys:,} keys"
    units = [Figure(case, SYSTEM, unit, [run[unit] for run in found]) for unit in found[0]]
    findings = Findings(
        name="changelog",
        title="A changelog read into a table",
        intro=INTRO.format(records=records_of(args), **vars(args)),
        machine=host,
        settings={"records": records_of(args), "keys": args.keys, "value": f"{args.value} B"},
        figures=units,
        aims=[Aim(f"{case}: {PER_CPU}", AIM, units[0].median, "/s")],
        module="benchmarks.changelog",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    sys.exit(main())
