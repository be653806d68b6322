"""The Python producer: pipelined, one table at a time, and beside a bare put of Arrow Flight.

Run it from the root of the repository: `python -m benchmarks.producer`. The same tables go to one
partition of one broker in each way, in turns. On a machine that others use, CPU says more than
rates.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.fill import random_batch
from benchmarks.peers.process import family
from strandline.api.put import BatchTag, PutAck, PutRequest
from strandline.api.wire import decode, encode
from strandline.client.connection import BrokerConnection

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.client.producer.producer import Producer

STREAM: Final = "bench"
WINDOW: Final = 16
"""Unacknowledged batches: as many of a megabyte as a producer has at most."""
SEGMENT_BYTES: Final = 64 << 20
TIMEOUT_S: Final = 30.0
OURS: Final = "strandline"
PIPELINED, ONE = "pipelined", "one at a time"
BARE, BARE_ONE = "bare put, pipelined", "bare put, one at a time"
CLIENT, SERVER = "s/GB of the client's CPU", "s/GB of the broker's CPU"
INTRO: Final = (
    "{tables} tables of {rows:,} records of {size} random bytes, {runs} times each way. Pipelined: "
    "all are handed over, then all acks awaited; the bare put has {window} batches under way. CPU: "
    "seconds for a GB of values, of the client's process and of the broker's."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.producer", description=__doc__)
    add = parser.add_argument
    add("--tables", type=int, default=60, help="tables of a run (60)")
    add("--rows", type=int, default=1_000, help="records of a table (1000)")
    add("--size", type=int, default=1_000, help="bytes of each value (1000)")
    add("--runs", type=int, default=7, help="runs of each way (7)")
    runner.add_place_options(parser)
    return parser.parse_args()


def append(producer: Producer, window: int, batch: pa.RecordBatch, tables: int) -> None:
    """Append the table so many times, with so many under way, and wait for all acks."""
    waiting = deque(producer.append_batch(batch) for _ in range(window))
    for _ in range(tables - window):
        waiting.popleft().result()
        waiting.append(producer.append_batch(batch))
    for each in waiting:
        each.result()


def put(connection: BrokerConnection, window: int, batch: pa.RecordBatch, tables: int) -> None:
    """Do the same by a put, without anything of the producer."""
    writer, reader = connection.put(PutRequest(stream=STREAM), batch.schema)
    for number in range(tables + window):
        if number < tables:
            writer.write_with_metadata(batch, encode(BatchTag(sequence=number, partition=0)))
        if number >= window:
            decode(reader.read().to_pybytes(), PutAck, what="ack")
    writer.done_writing()
    writer.close()


def measure(args: argparse.Namespace) -> list[Figure]:
    """Run each way in turn."""
    batch, tables = random_batch(args.size, args.rows), args.tables
    size_gb = tables * args.rows * args.size / 1e9
    found: dict[tuple[str, str], list[float]] = {}
    with (
        brokers.fresh(args.data_root) as broker,
        broker.connect() as client,
        contextlib.closing(BrokerConnection(broker.address, timeout_s=TIMEOUT_S)) as connection,
    ):
        client.create_stream(STREAM, segment_bytes=SEGMENT_BYTES, retention_bytes=SEGMENT_BYTES)
        with client.producer(STREAM) as producer:
            ways: dict[str, Callable[[], None]] = {
                PIPELINED: lambda: append(producer, tables, batch, tables),
                ONE: lambda: append(producer, 1, batch, tables),
                BARE: lambda: put(connection, WINDOW, batch, tables),
                BARE_ONE: lambda: put(connection, 1, batch, tables),
            }
            producer.append_batch(batch).result()
            for way, run in [*ways.items()] * args.runs:
                for unit, value in costs_of(run, broker.pid, size_gb=size_gb).items():
                    found.setdefault((way, unit), []).append(value)
    return [Figure(way, OURS, unit, values) for (way, unit), values in found.items()]


def costs_of(run: Callable[[], None], pid: int, *, size_gb: float) -> dict[str, float]:
    """Run a way once; return its rate and the CPU of both sides, by unit."""
    server_s, client_s = sum(family(pid).values()), time.process_time()
    started = time.perf_counter()
    run()
    took_s = time.perf_counter() - started
    client_s = time.process_time() - client_s
    server_s = sum(family(pid).values()) - server_s
    return {
        "GB/s": size_gb / took_s,
        CLIENT: client_s / size_gb,
        SERVER: server_s / size_gb,
    }


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, args.size)
    measured = measure(args)
    median = {(each.case, each.unit): each.median for each in measured}
    rate, bare = median[PIPELINED, "GB/s"], median[BARE, "GB/s"]
    findings = Findings(
        name="producer",
        title="The Python producer",
        intro=INTRO.format(**vars(args), window=WINDOW),
        machine=host,
        settings={"runs": args.runs, "segment bytes": SEGMENT_BYTES},
        figures=measured,
        aims=[
            Aim("pipelined ÷ one at a time", 1, rate / median[ONE, "GB/s"], "x"),
            Aim("pipelined ÷ bare put, pipelined", 1, rate / bare, "x"),
            Aim("client, pipelined", 0.8, median[PIPELINED, CLIENT], CLIENT, at_most=True),
        ],
        module="benchmarks.producer",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
