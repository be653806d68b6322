"""What a broker takes of a machine: memory, CPU by way in, and two brokers on two cores.

Run it from the root of the repository: `python -m benchmarks.size`. `docs/size-a-machine.md`
computes with the figures. CPU is that of the broker's processes, which says more than rates on a
machine that others use.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.fill import random_batch
from benchmarks.loadgen import Load, run_load
from benchmarks.peers.process import LOOPBACK, family, fresh_dir
from benchmarks.rss import children, rss

if TYPE_CHECKING:
    from strandline.client import Client
    from strandline.config import Acks

STREAM: Final = "bench"
OURS: Final = "strandline"
MICROSECONDS: Final = 1e6
KIB: Final = 1024
SETTLE_S: Final = 2.0
PARTITIONS: Final = 1_000
CONNECTIONS: Final = 1_000
SPARE_FILES: Final = 256
ROWS: Final = 500
INTRO: Final = (
    "Memory: resident, growth over the number. CPU: of the broker and of its nats-server, for each "
    "record of {size} bytes, all synced; 128 appenders over 16 connections, and for tables the "
    "Python producer, batches of {rows} records. Brokers: each pinned to a core together with its "
    "load generator; two are two brokers on two cores of this machine and one disk, each with a "
    "stream of its own."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size", description=__doc__)
    add = parser.add_argument
    add("--runs", type=int, default=3, help="runs of each load (3)")
    add("--seconds", type=float, default=3.0, help="length of one load (3)")
    add("--size", type=int, default=2048, help="payload bytes (2048)")
    runner.add_place_options(parser)
    return parser.parse_args()


# Memory


def memory(data_root: Path) -> list[Figure]:
    """What an idle broker has, and what partitions and connections add."""
    with brokers.fresh(data_root) as broker, broker.connect() as client:
        time.sleep(SETTLE_S)
        idle = rss(broker.pid)
        servers = sum(rss(each).total for each in children(broker.pid))
        client.create_stream(STREAM, partitions=PARTITIONS)
        time.sleep(SETTLE_S)
        created = rss(broker.pid).anon - idle.anon
        run_load(_load(PARTITIONS, records=20 * PARTITIONS), LOOPBACK, broker.ingest_port)
        time.sleep(SETTLE_S)
        written = rss(broker.pid).anon - idle.anon
        with _connections(broker.ingest_port):
            connected = rss(broker.pid).anon - idle.anon - written
    per = KIB / PARTITIONS
    return [
        Figure("idle broker", OURS, "MiB", [idle.total]),
        Figure("idle broker, memory of its own", OURS, "MiB", [idle.anon]),
        Figure("its nats-server", OURS, "MiB", [servers]),
        Figure("a partition", OURS, "KiB", [created * per]),
        Figure("a partition with 20 records of 2 KiB", OURS, "KiB", [written * per]),
        Figure("a connection to the ingest listener", OURS, "KiB", [connected * KIB / CONNECTIONS]),
    ]


def _load(partitions: int, *, records: int = 4_000_000, seconds: float = 30.0) -> Load:
    load = Load(16, 128, seconds=seconds, max_appends=records, subject=STREAM, bare_zero=True)
    return replace(load, subjects=partitions)


@contextlib.contextmanager
def _connections(port: int) -> Iterator[None]:
    """Open connections of clients that have said who they are."""
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            each = stack.enter_context(socket.create_connection((LOOPBACK, port)))
            each.sendall(b"CONNECT {}\r\nSUB _INBOX.x.* 1\r\nPING\r\n")
            while b"PONG" not in each.recv(4096):
                pass
        yield


# CPU


@dataclass(frozen=True)
class Used:
    """CPU seconds of a broker and of its child processes."""

    broker: float
    children: float


def used(pid: int) -> Used:
    """What they have used so far."""
    seconds = family(pid)
    own = seconds.pop(pid)
    return Used(own, sum(seconds.values()))


def cpu_by_way(args: argparse.Namespace) -> list[Figure]:
    """The CPU of a record by each way in."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.runs):
        for way in ("ingest listener", "nats-server", "tables by the Python producer"):
            for case, value in _one_way(way, args):
                found.setdefault((way, case), []).append(value)
    return [
        Figure(f"a record by {way}: {case}", OURS, "µs of CPU", values)
        for (way, case), values in found.items()
    ]


def _one_way(way: str, args: argparse.Namespace) -> list[tuple[str, float]]:
    with brokers.fresh(args.data_root) as broker, broker.connect() as client:
        client.create_stream(STREAM)
        load = replace(_load(1, seconds=args.seconds), size_bytes=args.size)
        before = used(broker.pid)
        if way == "ingest listener":
            records = run_load(load, LOOPBACK, broker.ingest_port).replies_total
        elif way == "nats-server":
            records = run_load(load, LOOPBACK, int(broker.ready["nats_port"])).replies_total
        else:
            records = _append_tables(client, args)
        after = used(broker.pid)
    cases = [("broker", (after.broker - before.broker) / records * MICROSECONDS)]
    others = (after.children - before.children) / records * MICROSECONDS
    return [*cases, ("nats-server and syncs", others)]


def _append_tables(client: Client, args: argparse.Namespace) -> int:
    batch, records = random_batch(args.size, ROWS), 0
    deadline = time.monotonic() + args.seconds
    with client.producer(STREAM) as producer:
        while time.monotonic() < deadline:
            producer.append_batch(batch)
            records += ROWS
    return records


# Brokers on cores


def scaling(args: argparse.Namespace) -> list[Figure]:
    """One broker on one core, and two on two."""
    found: dict[tuple[Acks, int], list[tuple[float, float]]] = {
        (acks, count): [] for acks in ("disk", "memory") for count in (1, 2)
    }
    for _ in range(args.runs):
        for (acks, count), runs in found.items():
            runs.append(_pinned(count, acks, args))
    listed = []
    for (acks, count), runs in found.items():
        name = f"{count} broker{'s' * (count > 1)}, each on a core with its load, acks {acks}"
        listed.append(Figure(name, OURS, "appends/s", [rate for rate, _ in runs]))
        listed.append(Figure(name, OURS, "µs of CPU a record", [cpu for _, cpu in runs]))
    return listed


def _pinned(count: int, acks: Acks, args: argparse.Namespace) -> tuple[float, float]:
    """Run so many brokers at once; the sum of their rates, and the brokers' CPU of a record."""
    load = replace(_load(1, seconds=args.seconds), size_bytes=args.size)
    with contextlib.ExitStack() as stack:
        running = []
        for core in sorted(os.sched_getaffinity(0))[:count]:
            pin = ("taskset", "-c", str(core))
            folder = stack.enter_context(fresh_dir(args.data_root, OURS))
            broker = stack.enter_context(brokers.running(folder, prefix=pin))
            with broker.connect() as client:
                client.create_stream(STREAM, acks=acks)
            running.append((broker, pin))
        before = [sum(family(broker.pid).values()) for broker, _ in running]
        with ThreadPoolExecutor(count) as threads:
            loads = [
                threads.submit(run_load, load, LOOPBACK, broker.ingest_port, pin)
                for broker, pin in running
            ]
            results = [each.result() for each in loads]
        after = [sum(family(broker.pid).values()) for broker, _ in running]
    records = sum(result.replies_total for result in results)
    cpu = (sum(after) - sum(before)) / records * MICROSECONDS
    return sum(result.appends_per_s for result in results), cpu


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host = machine.describe(args.data_root, args.size)
    found = [*memory(args.data_root), *cpu_by_way(args), *scaling(args)]
    rates = [statistics.median(each.values) for each in found if each.unit == "appends/s"]
    findings = Findings(
        name="size",
        title="What a broker takes of a machine",
        intro=INTRO.format(size=args.size, rows=ROWS),
        machine=host,
        settings={"partitions": PARTITIONS, "connections": CONNECTIONS, "runs": args.runs},
        figures=found,
        aims=[
            Aim(
                "two brokers on two cores, to one on one, acks disk", 1.7, rates[1] / rates[0], "x"
            ),
            Aim("the same, acks memory", 1.7, rates[3] / rates[2], "x"),
        ],
        module="benchmarks.size",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
