"""The CPU of a record in the broker's process: many partitions beside one.

Run it from the root of the repository: `python -m benchmarks.group_commit`. A broker runs in this
process. Its connections get the bytes of a read and keep the bytes of the acks, without sockets;
each group commit has one record for each appender. The disk is real, except that syncs are left
out, for their time is not CPU. Partitions take turns, and a group commit's CPU is what the whole
process used, with its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import fresh_dir
from strandline.broker.broker import Broker
from strandline.config import BrokerConfig, StreamConfig
from strandline.process.run import relax_garbage_collector
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.connection import PublisherConnection, PublisherState
from strandline.servers.nats.ingest import MessageIngest
from strandline.speedups import IS_COMPILED
from strandline.storage.disk import Disk

OURS: Final = "strandline"
AIM: Final = 2.0
INTRO: Final = (
    "CPU of a record from the bytes of a read to those of the acks, in one process without sockets "
    "and syncs: group commits of {appenders} records of {size} bytes over {connections} "
    "connections, each record to the next of P partitions. {runs} runs of {commits} group commits "
    "each, in which the cases take turns. Compiled functions: {compiled}."
)


class UnsyncedDisk(Disk):
    """The file system, where syncs do nothing."""

    syncs_plainly = False

    def fdatasync(self, fd: int) -> None:
        """Do nothing: a sync's time is the disk's."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing: see above."""


class Wire(asyncio.Transport):
    """A connection's other end.

    Args:
        count: is told how many acks have come.
    """

    def __init__(self, count: Callable[[int], None]) -> None:
        super().__init__()
        self._count = count

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Count."""
        self._count(bytes(data).count(b'"seq"'))

    def pause_reading(self) -> None:
        """Do nothing: what comes is kept."""

    def resume_reading(self) -> None:
        """Do nothing: see above."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: everything is taken at once."""

    def is_closing(self) -> bool:
        """Never."""
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:  # noqa: ARG002
        """None is known."""
        return default


class Publishers:
    """Connections whose appenders publish one record each, again and again.

    Args:
        shared: the listener's state.
        args: how many connections and appenders, and the size of a record.
        subjects: of the records, in turns.
    """

    def __init__(
        self, shared: PublisherState, args: argparse.Namespace, subjects: list[bytes]
    ) -> None:
        self.appenders = args.appenders
        self._missing = 0
        self._acked = asyncio.Event()
        self.connections = [PublisherConnection(shared) for _ in range(args.connections)]
        for number, connection in enumerate(self.connections):
            connection.connection_made(Wire(self._count))
            connection.data_received(b"CONNECT {}\r\nSUB _INBOX.%d.* 1\r\n" % number)
        self._reads = self._all_reads(args, subjects)

    @staticmethod
    def _all_reads(args: argparse.Namespace, subjects: list[bytes]) -> Iterator[list[bytes]]:
        """Yield what the connections send, group commit by group commit."""
        payload, turns, numbers = (
            os.urandom(args.size),
            itertools.cycle(subjects),
            itertools.count(),
        )
        while True:
            reads = [b""] * args.connections
            for appender in range(args.appenders):
                connection = appender % args.connections
                inbox = b"_INBOX.%d.%d" % (connection, next(numbers))
                line = b"PUB %b %b %d\r\n" % (next(turns), inbox, args.size)
                reads[connection] += line + payload + b"\r\n"
            yield reads

    async def commits(self, count: int) -> float:
        """Make group commits; the CPU that they took, µs."""
        reads = [next(self._reads) for _ in range(count)]
        before_ns = time.process_time_ns()
        for each in reads:
            await self.commit(each)
        return (time.process_time_ns() - before_ns) / 1e3

    async def commit(self, reads: list[bytes]) -> None:
        """Let the connections receive, and wait for the acks."""
        self._missing = self.appenders
        self._acked.clear()
        for connection, data in zip(self.connections, reads, strict=True):
            connection.data_received(data)
        await self._acked.wait()

    def _count(self, acks: int) -> None:
        self._missing -= acks
        if not self._missing:
            self._acked.set()


async def measure(folder: Path, args: argparse.Namespace) -> dict[int, list[float]]:
    """CPU of a record, µs, by the number of partitions."""
    config = BrokerConfig(data_dir=str(folder))
    broker = Broker(config, disk=UnsyncedDisk())
    await broker.start()
    backpressure = Backpressure(config.limits.pending_bytes)
    ingest = MessageIngest(broker.clock, broker.routes, broker.admission, backpressure=backpressure)
    broker.on_answered(ingest.send_answers)
    shared = PublisherState(broker, config, routes=broker.routes, ingest=ingest)
    cases: dict[int, Publishers] = {}
    for partitions in args.partitions:
        name = f"p{partitions}"
        await broker.create_stream(StreamConfig(name=name, subject=name, partitions=partitions))
        subjects = [f"{name}.{n}".encode() if n else name.encode() for n in range(partitions)]
        cases[partitions] = Publishers(shared, args, subjects)
    relax_garbage_collector()
    found: dict[int, list[float]] = {partitions: [] for partitions in cases}
    try:
        for run in range(-args.warm, args.runs):
            for partitions, publishers in cases.items():
                took_us = await publishers.commits(args.commits) / (args.commits * args.appenders)
                if run >= 0:
                    found[partitions].append(took_us)
    finally:
        await broker.stop()
    return found


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.group_commit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--partitions", type=runner.parse_numbers, default=[1, 1000], help="P, listed (1,1000)")
    add("--connections", type=int, default=16, help="connections (16)")
    add("--appenders", type=int, default=128, help="records of a group commit (128)")
    add("--size", type=int, default=2048, help="bytes of a record (2048)")
    add("--commits", type=int, default=128, help="group commits of a run (128)")
    add("--runs", type=int, default=40, help="of each case (40)")
    add("--warm", type=int, default=4, help="more of them before, not counted (4)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, args.size)
    with fresh_dir(args.data_root, "group-commit") as folder:
        found = asyncio.run(measure(folder, args))
    few, many = min(found), max(found)
    ratios = [
        (min(found[many]) / min(found[few]), "of the least"),
        (statistics.median(found[many]) / statistics.median(found[few]), "of the medians"),
    ]
    compiled = "yes" if IS_COMPILED else "no"
    findings = Findings(
        name="group-commit",
        title="CPU of a group commit over many partitions",
        intro=INTRO.format(**vars(args), compiled=compiled),
        machine=host,
        settings={"appenders": args.appenders, "connections": args.connections, "size": args.size},
        figures=[
            Figure(f"P={partitions}", OURS, "µs of CPU a record", values)
            for partitions, values in found.items()
        ],
        aims=[
            Aim(f"P={many} over P={few}, {which}", AIM, ratio, "x", at_most=True)
            for ratio, which in ratios
        ],
        module="benchmarks.group_commit",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
