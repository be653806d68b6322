"""Catching up: how fast a follower copies what it missed, and what that costs live appends.

Run it from the root of the repository: `python -m benchmarks.catch_up --gib 5`. Three brokers, one
partition with two replicas; the follower is killed, the leader takes `--gib` of records, and the
follower is started again under a live load. The bare disk stands beside it: how fast one file of
that size is written and synced. It needs room for twice `--gib` and 2 GiB more, and removes it all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.loadgen import Load, run_load
from benchmarks.peers.process import LOOPBACK, fresh_dir
from chaos.cluster import ChaosCluster
from chaos.run import STREAM
from strandline.testing.replica import ReplicaReader

OURS: Final = "strandline"
REPLICAS: Final = 2
RECORD_BYTES: Final = 64 << 10
LIVE_BYTES: Final = 2048
APPENDERS: Final = 32
FILL_S: Final = 2.0
LIVE_S: Final = 5.0
WAIT_S: Final = 5.0
PATIENCE_S: Final = 900.0
LIVE: Final = Load(4, APPENDERS, LIVE_BYTES, LIVE_S, subject=STREAM)
SHARE_AIM, LIVE_AIM = 0.5, 0.7
MIB: Final = 1 << 20
GIB: Final = 1 << 30
INTRO: Final = (
    "One of two replicas is {gib:g} GiB behind when it starts; caught up: until it has all there "
    "was when it was ready. Live appends: 32 appenders of 2 KiB over 4 connections at the leader, "
    "without the follower and while it catches up. Disk: one file as large, written in pieces of "
    "1 MiB, and synced. Three brokers share the machine. Ratios are medians of the runs' own."
)


@dataclass(frozen=True)
class CatchUp:
    """The measurements of one run."""

    disk_mib_s: float
    copy_mib_s: float
    alone_per_s: float
    meanwhile_per_s: float

    @property
    def share(self) -> float:
        """Of the bare disk's speed."""
        return self.copy_mib_s / self.disk_mib_s

    @property
    def kept(self) -> float:
        """Of the appends without the follower."""
        return self.meanwhile_per_s / self.alone_per_s


def disk_speed(folder: Path, size: int) -> float:
    """MiB/s of one large file, its sync included."""
    piece, path = os.urandom(MIB), folder / "plain"
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // MIB):
            file.write(piece)
        os.fdatasync(file.fileno())
    took = time.perf_counter() - started
    path.unlink()
    return size / MIB / took


def end_of(cluster: ChaosCluster, number: int) -> int:
    """Return the number of records that a broker serves."""
    with ReplicaReader(cluster.servers[number].flight) as replica:
        return replica.ends(STREAM)[0]


def serves(cluster: ChaosCluster, number: int, records: int) -> bool:
    """Whether a broker serves so many records; waits for them, which costs it next to nothing."""
    with ReplicaReader(cluster.servers[number].flight) as replica:
        ends = replica.wait_for(STREAM, {0: records - 1}, timeout_s=WAIT_S)
    return ends[0] >= records


def follower_of(cluster: ChaosCluster, leader: int) -> int:
    """Return the broker with the other replica."""
    [part] = [each for each in cluster.status(leader).partitions if each.stream == STREAM]
    return next(number for number in part.replicas if number != leader)


async def load(cluster: ChaosCluster, number: int, wanted: Load) -> float:
    """One load at a broker; appends/s."""
    port = cluster.servers[number].ready["ingest_port"]
    result = await asyncio.to_thread(run_load, wanted, LOOPBACK, port)
    return result.appends_per_s


async def loads(cluster: ChaosCluster, number: int, is_over: asyncio.Event) -> list[float]:
    """Live loads, one after the other; appends/s of those that were over in time."""
    rates: list[float] = []
    while not is_over.is_set():
        rates.append(await load(cluster, number, LIVE))
    return rates[:-1] or rates


async def fill(cluster: ChaosCluster, leader: int, records: int) -> None:
    """So many large records."""
    wanted = Load(4, APPENDERS, RECORD_BYTES, FILL_S, subject=STREAM)
    start = end_of(cluster, leader)
    while end_of(cluster, leader) - start < records:
        await load(cluster, leader, wanted)


async def measure(folder: Path, args: argparse.Namespace) -> CatchUp:
    """One follower, killed, left behind and started again."""
    size = int(args.gib * GIB)
    async with ChaosCluster(folder, 3, is_direct=True) as cluster:
        await cluster.create_stream(STREAM, partitions=1, replicas=REPLICAS)
        await cluster.in_sync(STREAM)
        leader = await cluster.leader(STREAM)
        assert leader is not None, "all replicas are in sync"
        behind = follower_of(cluster, leader)
        await asyncio.to_thread(cluster.servers[behind].kill)
        await fill(cluster, leader, size // RECORD_BYTES)
        alone_per_s = await load(cluster, leader, LIVE)
        disk_mib_s = await asyncio.to_thread(disk_speed, folder, size)
        missed = end_of(cluster, leader)
        await asyncio.to_thread(cluster.servers[behind].start)
        started = time.perf_counter()
        is_over = asyncio.Event()
        loading = asyncio.create_task(loads(cluster, leader, is_over))
        await cluster.until(
            lambda: serves(cluster, behind, missed),
            what="the follower has caught up",
            timeout_s=PATIENCE_S,
        )
        seconds = time.perf_counter() - started
        is_over.set()
        meanwhile_per_s = await loading
    copy_mib_s = size / MIB / seconds
    return CatchUp(disk_mib_s, copy_mib_s, alone_per_s, statistics.median(meanwhile_per_s))


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.catch_up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gib", type=float, default=5.0, help="how far behind (5)")
    parser.add_argument("--runs", type=int, default=3, help="medians are over so many (3)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, RECORD_BYTES)
    found: list[CatchUp] = []
    for number in range(args.runs):
        with fresh_dir(args.data_root, "catch-up") as folder:
            found.append(asyncio.run(measure(folder, args)))
        print(
            f"run {number + 1} of {args.runs}: "
            f"{found[-1].share:.2f} of the disk, {found[-1].kept:.2f} of live appends kept"
        )
    alone, meanwhile = "live appends without the follower", "live appends meanwhile"
    listed = [
        Figure("one file written and synced", "disk", "MiB/s", [f.disk_mib_s for f in found]),
        Figure("follower catching up", OURS, "MiB/s", [f.copy_mib_s for f in found]),
        Figure(alone, OURS, "appends/s", [f.alone_per_s for f in found]),
        Figure(meanwhile, OURS, "appends/s", [f.meanwhile_per_s for f in found]),
        Figure("catching up ÷ disk, of each run", OURS, "x", [f.share for f in found]),
        Figure("live appends meanwhile ÷ without, of each run", OURS, "x", [f.kept for f in found]),
    ]
    share = statistics.median(f.share for f in found)
    live = statistics.median(f.kept for f in found)
    findings = Findings(
        name="catch-up",
        title=f"A follower {args.gib:g} GiB behind",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={
            "GiB": args.gib,
            "replicas": REPLICAS,
            "record bytes": RECORD_BYTES,
            "live record bytes": LIVE_BYTES,
        },
        figures=listed,
        aims=[
            Aim("catching up ÷ disk", SHARE_AIM, share, "x"),
            Aim("live appends meanwhile ÷ without", LIVE_AIM, live, "x"),
        ],
        module="benchmarks.catch_up",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
