"""Creating streams one after the other: what one more costs, by how many there are.

Run it from the root of the repository: `python -m benchmarks.creation`. One client creates streams
of one partition, with a replica on each broker, on a broker alone and on three. The wall time and
the CPU of all brokers with their nats-servers are taken over the last 100 creations before each
mark. At each mark the brokers are left alone for a while, and what they take then is not counted
as that of creations; the streams are listed, too, and the cluster's status is asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import strandline
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import cpu_seconds, fresh_dir
from chaos.cluster import ChaosCluster
from strandline.client import Client
from strandline.errors import StrandlineError
from strandline.testing import ProcessServer

OURS: Final = "strandline"
WINDOW: Final = 100
MARKS: Final = (100, 300, 1000, 1500, 3000, 5000, 10_000)
WALL_AIM_MS: Final = 10.0
GROWTH_AIM: Final = 1.5
IDLE_S: Final = 6.0
"""A round of what brokers do every five seconds is in it."""
TIMEOUT_S: Final = 60.0
INTRO: Final = (
    "Streams of one partition with a replica on each broker, created one after the other by one "
    "client. Each figure is the mean of the last {window} creations before the mark: wall time as "
    "the client sees it, and CPU of all brokers and their nats-servers together, "
    "without what they take while nobody asks for anything."
)


@dataclass
class Mark:
    """What a creation, a list and a status cost with so many streams."""

    streams: int
    wall_ms: float
    cpu_ms: float
    idle_percent: float
    """Of a core, all brokers."""
    list_s: float
    status_s: float | None


@dataclass
class Run:
    """The marks of one cluster."""

    brokers: int
    marks: list[Mark] = field(default_factory=list)
    creating_s: float = 0.0


def seconds(action: Callable[[], object]) -> float:
    """How long an action takes."""
    started_s = time.monotonic()
    action()
    return time.monotonic() - started_s


def idle_share(cpu_s: Callable[[], float]) -> float:
    """The share of a core that all brokers take while nobody asks for anything."""
    began_s, before_s = time.monotonic(), cpu_s()
    time.sleep(IDLE_S)
    return (cpu_s() - before_s) / (time.monotonic() - began_s)


def create(
    client: Client,
    run: Run,
    marks: Sequence[int],
    *,
    cpu_s: Callable[[], float],
    status: Callable[[], object] | None,
) -> None:
    """Create streams up to the last mark; blocks."""
    began_s, began_cpu_s = run.creating_s, cpu_s()
    copies = {"replicas": run.brokers, "min_isr": run.brokers // 2 + 1}
    for number in range(1, marks[-1] + 1):
        started_s = time.monotonic()
        client.create_stream(f"stream-{number}", subject=f"subject.{number}", **copies)
        run.creating_s += time.monotonic() - started_s
        if number + WINDOW in marks:
            began_s, began_cpu_s = run.creating_s, cpu_s()
        if number in marks:
            wall_s, used_s = run.creating_s - began_s, cpu_s() - began_cpu_s
            idle = idle_share(cpu_s)
            mark = Mark(
                number,
                1e3 * wall_s / WINDOW,
                1e3 * (used_s - idle * wall_s) / WINDOW,
                100 * idle,
                seconds(client.list_streams),
                seconds(status) if status is not None else None,
            )
            print(f"  {run.brokers}: {mark}", flush=True)
            run.marks.append(mark)


def alone(folder: Path, marks: Sequence[int]) -> Run:
    """All of it on a broker alone."""
    run = Run(1)
    with (
        ProcessServer(folder, arguments=("--log-level", "warning")) as server,
        strandline.connect(server.flight, timeout_s=TIMEOUT_S) as client,
    ):
        create(client, run, marks, cpu_s=lambda: cpu_seconds(server.pid), status=None)
    return run


async def of_three(folder: Path, marks: Sequence[int]) -> Run:
    """All of it on a cluster of three."""
    run = Run(3)
    async with ChaosCluster(folder, 3, is_direct=True) as cluster:
        servers = list(cluster.servers.values())
        await asyncio.to_thread(_until_joined, cluster)

        def cpu_s() -> float:
            return sum(cpu_seconds(server.pid) for server in servers)

        def creating() -> None:
            with strandline.connect(servers[0].flight, timeout_s=TIMEOUT_S) as client:
                create(client, run, marks, cpu_s=cpu_s, status=lambda: cluster.status(1))

        await asyncio.to_thread(creating)
    return run


def _until_joined(cluster: ChaosCluster) -> None:
    while sum(each.state == "live" for each in cluster.status(1).brokers) < 3:
        time.sleep(0.1)


def figures_of(run: Run) -> list[Figure]:
    """Return the measurements of a cluster for the results page."""
    where = "a broker alone" if run.brokers == 1 else f"{run.brokers} brokers"
    listed = []
    for mark in run.marks:
        at = f"{where}, {mark.streams:,} streams"
        listed.append(Figure(f"creation, {at}", OURS, "ms", [mark.wall_ms]))
        listed.append(Figure(f"CPU of a creation, {at}", OURS, "ms", [mark.cpu_ms]))
        listed.append(Figure(f"idle, {at}", OURS, "% of a core", [mark.idle_percent]))
        listed.append(Figure(f"list of streams, {at}", OURS, "s", [mark.list_s]))
        if mark.status_s is not None:
            listed.append(Figure(f"status of the cluster, {at}", OURS, "s", [mark.status_s]))
    return listed


def aims_of(run: Run) -> list[Aim]:
    """Return the aims of a cluster."""
    where = "a broker alone" if run.brokers == 1 else f"{run.brokers} brokers"
    first, last = run.marks[0], run.marks[-1]
    mean_ms = 1e3 * run.creating_s / last.streams
    growth = last.cpu_ms / first.cpu_ms
    return [
        Aim(f"each of {last.streams:,}, {where}", WALL_AIM_MS, mean_ms, "ms", at_most=True),
        Aim(f"the last ones, {where}", WALL_AIM_MS, last.wall_ms, "ms", at_most=True),
        Aim(f"CPU of the last ÷ the first ones, {where}", GROWTH_AIM, growth, "", at_most=True),
    ]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.creation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--streams", type=int, default=3000, help="how many, at least 100 (3000)")
    add("--brokers", type=int, choices=(1, 3), help="only a broker alone, or only three")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    marks = sorted({*(mark for mark in MARKS if mark <= args.streams), args.streams})
    host = machine.describe(args.data_root, 100)
    runs = []
    for brokers in (1, 3):
        if args.brokers not in (None, brokers):
            continue
        with fresh_dir(args.data_root, "creation") as folder:
            try:
                three = brokers == 3
                found = asyncio.run(of_three(folder, marks)) if three else alone(folder, marks)
                runs.append(found)
            except StrandlineError as error:
                raise SystemExit(f"the brokers did not get on: {error}") from error
    findings = Findings(
        name="creation",
        title=f"Creating {args.streams:,} streams",
        intro=INTRO.format(window=WINDOW),
        machine=host,
        settings={"streams": args.streams, "partitions of each": 1},
        figures=[figure for run in runs for figure in figures_of(run)],
        aims=[aim for run in runs for aim in aims_of(run)],
        module="benchmarks.creation",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
