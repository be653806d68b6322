"""Many partitions on three brokers: what they cost while idle, and how soon all their leaders move.

Run it from the root of the repository: `python -m benchmarks.many`. One stream of 1,000 partitions,
a replica of each on every broker. First nothing happens, and the CPU of each broker is looked at.
Then a broker is killed, again and again, the controller every other time, while a client appends a
record to every partition. A kill is over when the last of them is acked: each partition then has a
leader that is alive and works. Every ack must have the offset that is due, and at the end every
replica must end there: what is lost, or stored twice, is an error and no result.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import strandline
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import cpu_seconds, fresh_dir
from benchmarks.rss import rss
from chaos.cluster import ChaosCluster
from strandline.client.producer.producer import Producer
from strandline.errors import StrandlineError
from strandline.testing.replica import ReplicaReader

OURS: Final = "strandline"
STREAM: Final = "many"
BROKERS: Final = 3
RECORD_BYTES: Final = 100
CPU_AIM: Final = 5.0
MOVED_AIM_S: Final = 10.0
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.1
SETTLE_S: Final = 15.0
"""Leaderships are shared evenly ten seconds after brokers have come or gone."""
INTRO: Final = (
    "{partitions:,} partitions with a replica on each of three brokers, `min_isr` 2. CPU: of one "
    "core, of the busiest broker with its nats-server, over {seconds:g} s without a client. "
    "Moved: from `kill -9` until a surviving broker names another leader for every partition; "
    "taken: until a record has been committed in every partition, by a client that knew the old "
    "leaders. {kills} kills, the controller's broker every other time."
)


class Kill(NamedTuple):
    """The cost of one kill."""

    led: int
    """Partitions that the broker led."""
    moved_s: float
    taken_s: float


@dataclass
class Found:
    """The measurements of a run."""

    created_s: float = 0.0
    idle: list[float] = field(default_factory=list)
    """Per cent of a core, of each broker, before the kills."""
    idle_after: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)


class Writer:
    """Appends to every partition, and knows where each record has to be.

    Args:
        producer: of the stream.
        partitions: how many there are.
    """

    def __init__(self, producer: Producer, partitions: int) -> None:
        self._producer = producer
        self._partitions = partitions
        self.count = 0
        """Records in each partition."""

    def append(self) -> float:
        """A record to every partition; when the last was acked. Blocks.

        Raises:
            SystemExit: a record is elsewhere than after the one before.
            StrandlineError: one was not acked in time.
        """
        value = b"x" * RECORD_BYTES
        futures = [
            self._producer.append(value, partition=number) for number in range(self._partitions)
        ]
        acks = [future.result(PATIENCE_S) for future in futures]
        acked_s = time.monotonic()
        astray = [ack for ack in acks if ack.offset != self.count]
        if astray:
            raise SystemExit(f"{len(astray)} acks are not at offset {self.count}: {astray[:5]}")
        self.count += 1
        return acked_s


def leaders(cluster: ChaosCluster, asked: int) -> Counter[int | None]:
    """Count the partitions each broker leads, as one of them knows it; None: no leader."""
    parts = cluster.status(asked).partitions
    return Counter(part.leader for part in parts if part.stream == STREAM)


async def cpu_of_each(cluster: ChaosCluster, seconds: float) -> list[float]:
    """Per cent of a core that each broker takes while nobody asks for anything."""
    await asyncio.sleep(SETTLE_S)
    servers = cluster.servers.values()
    before_s, started_s = [cpu_seconds(each.pid) for each in servers], time.monotonic()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - started_s
    after_s = [cpu_seconds(each.pid) for each in servers]
    return [100 * (b - a) / took_s for a, b in zip(before_s, after_s, strict=True)]


async def until_moved(cluster: ChaosCluster, dead: int, asked: int) -> float:
    """When a survivor names another leader for every partition."""

    def has_moved() -> bool:
        led = leaders(cluster, asked)
        return not led[dead] and not led[None]

    await cluster.until(has_moved, what=f"broker {dead} leads no more")
    return time.monotonic()


async def choose(cluster: ChaosCluster, turn: int) -> int:
    """Return the broker to kill: alternately the controller's and another one."""
    status = await asyncio.to_thread(cluster.status, cluster.ids[0])
    assert status.controller is not None, "all brokers are there"
    others = [number for number in cluster.ids if number != status.controller]
    return others[turn // 2 % len(others)] if turn % 2 else status.controller


async def kill(cluster: ChaosCluster, number: int, writer: Writer) -> Kill:
    """Kill a broker, see its partitions led by others, and start it again."""
    asked = next(other for other in cluster.ids if other != number)
    led = (await asyncio.to_thread(leaders, cluster, asked))[number]
    await asyncio.to_thread(cluster.servers[number].kill)
    killed_s = time.monotonic()
    moved_s, taken_s = await asyncio.gather(
        until_moved(cluster, number, asked), asyncio.to_thread(writer.append)
    )
    found = Kill(led, moved_s - killed_s, taken_s - killed_s)
    await asyncio.to_thread(cluster.servers[number].start)
    await until_shared(cluster)
    return found


async def until_shared(cluster: ChaosCluster) -> None:
    """Wait until every replica is in sync, and each broker leads about its share."""
    await cluster.in_sync(STREAM)

    def is_shared() -> bool:
        led = leaders(cluster, cluster.ids[0])
        return min(led[number] for number in cluster.ids) >= led.total() // (BROKERS + 1)

    await cluster.until(is_shared, what="leaders are shared")


async def check_ends(cluster: ChaosCluster, count: int) -> None:
    """Wait until every partition ends at one offset on every broker."""

    def all_there() -> bool:
        for server in cluster.servers.values():
            with ReplicaReader(server.flight, timeout_s=PATIENCE_S) as replica:
                ends = replica.ends(STREAM)
            if max(ends.values()) > count:
                raise SystemExit(f"{max(ends.values())} records where {count} were appended")
            if min(ends.values()) < count:
                return False
        return True

    await cluster.until(all_there, what=f"every replica ends at {count}")


async def measure(folder: Path, args: argparse.Namespace) -> Found:
    """All of it on one cluster."""
    found = Found()
    async with ChaosCluster(folder, BROKERS, is_direct=True) as cluster:
        started_s = time.monotonic()
        await cluster.create_stream(STREAM, partitions=args.partitions)
        await cluster.in_sync(STREAM)
        found.created_s = time.monotonic() - started_s
        found.idle = await cpu_of_each(cluster, args.seconds)
        found.memory_mib = [rss(each.pid).total for each in cluster.servers.values()]
        addresses = ",".join(each.flight for each in cluster.servers.values())
        with (
            strandline.connect(addresses, timeout_s=PATIENCE_S) as client,
            client.producer(STREAM, delivery_timeout_s=PATIENCE_S) as producer,
        ):
            writer = Writer(producer, args.partitions)
            await asyncio.to_thread(writer.append)
            await until_shared(cluster)
            for turn in range(args.kills):
                victim = await choose(cluster, turn)
                found.kills.append(await kill(cluster, victim, writer))
                print(f"  broker {victim}: {found.kills[-1]}", flush=True)
            await asyncio.to_thread(writer.append)
            await check_ends(cluster, writer.count)
        found.idle_after = await cpu_of_each(cluster, args.seconds)
    return found


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--partitions", type=int, default=1000, help="of the stream (1000)")
    add("--seconds", type=float, default=30.0, help="to look at the CPU (30)")
    add("--kills", type=int, default=6, help="how many (6)")
    runner.add_place_options(parser)
    return parser.parse_args()


def figures_of(found: Found) -> list[Figure]:
    """Return the measurements for the results page."""
    led = f"of {min(k.led for k in found.kills)} to {max(k.led for k in found.kills)} partitions"
    return [
        Figure("created, and every replica in sync", OURS, "s", [found.created_s]),
        Figure("idle CPU of a broker", OURS, "% of a core", found.idle, "values: the brokers"),
        Figure("idle CPU of a broker, after the kills", OURS, "% of a core", found.idle_after),
        Figure("memory of a broker", OURS, "MiB", found.memory_mib),
        Figure("leaders moved", OURS, "s", [each.moved_s for each in found.kills], led),
        Figure("a record taken by every partition", OURS, "s", [k.taken_s for k in found.kills]),
    ]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, RECORD_BYTES)
    with fresh_dir(args.data_root, "many") as folder:
        try:
            found = asyncio.run(measure(folder, args))
        except StrandlineError as error:
            raise SystemExit(f"the cluster did not get on: {error}") from error
    cpu, moved = "% of a core", "s"
    findings = Findings(
        name="many",
        title=f"{args.partitions:,} partitions on three brokers",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={"partitions": args.partitions, "replicas": BROKERS, "kills": args.kills},
        figures=figures_of(found),
        aims=[
            Aim("idle CPU, the busiest broker", CPU_AIM, max(found.idle), cpu, at_most=True),
            Aim("the same after the kills", CPU_AIM, max(found.idle_after), cpu, at_most=True),
            Aim(
                "all leaders moved, the slowest kill",
                MOVED_AIM_S,
                max(each.moved_s for each in found.kills),
                moved,
                at_most=True,
            ),
            Aim(
                "every partition took a record, the slowest kill",
                MOVED_AIM_S,
                max(each.taken_s for each in found.kills),
                moved,
                at_most=True,
            ),
        ],
        module="benchmarks.many",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
