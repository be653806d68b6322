"""Failover: how long publishers wait for the next ack when the leader is killed, again and again.

Run it from the root of the repository: `python -m benchmarks.failover --kills 50`. Three brokers,
one partition, three publishers with one record under way each, which retry every record with the
same `Nats-Msg-Id` until it is acked. Each round kills the leader with `kill -9`, notes the longest
silence until every publisher gets on, starts the broker again and waits until every replica is in
sync. At the end every replica is read: nothing acked may be lost, altered or stored twice, as
`strandline.testing.history` judges; if it is, there is no result.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import fresh_dir
from chaos.cluster import ChaosCluster
from chaos.load import AckTimes, ChaosPublisher
from chaos.run import STREAM, judge, progress, working
from strandline.testing.history import PartitionHistory

OURS: Final = "strandline"
TOGETHER: Final = "silence over a kill"
ALONE: Final = "silence over a kill, the publisher that waited longest"
ANSWER_TIMEOUT_S: Final = 0.1
"""Publishers retry so often: a silence is measured no finer."""
RECORD_BYTES: Final = 200
AIM_S: Final = 3.0
INTRO: Final = (
    "{kills} times `kill -9` of the leader, of {brokers} brokers on one machine. Silence: the "
    "longest time without an ack for any of three publishers, each with one record under way, "
    f"retried every {ANSWER_TIMEOUT_S * 1e3:.0f} ms at another broker's nats-server if need be; "
    "and that of the publisher that waited longest."
)
EPILOG: Final = """\
examples:
  python -m benchmarks.failover --kills 50      # for the record; about ten minutes
  python -m benchmarks.failover --kills 5 --label brief
"""


@dataclass
class Silences:
    """The duration of each failover in seconds, and the records at the end."""

    together: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    stored: int = 0
    acked: int = 0
    duplicates: int = 0


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]


async def kill_leader(
    cluster: ChaosCluster, publishers: list[ChaosPublisher], together: AckTimes
) -> tuple[float, float]:
    """One round; the silence of all together, and the longest of one alone."""
    leader = await cluster.leader(STREAM)
    assert leader is not None, "all replicas were in sync"
    times = [each.acked for each in publishers]
    for each in (together, *times):
        each.forget()
    server = cluster.servers[leader]
    await asyncio.to_thread(server.kill)
    await progress(publishers, [])
    await progress(publishers, [])  # the first ack may have been under way when it was killed
    silences = together.silence_s_max, max(each.silence_s_max for each in times)
    await asyncio.to_thread(server.start)
    await cluster.in_sync(STREAM)
    await progress(publishers, [])
    return silences


async def measure(folder: Path, args: argparse.Namespace) -> Silences:
    """All kills on one cluster."""
    found, history, together = Silences(), PartitionHistory("partition 0"), AckTimes()
    async with ChaosCluster(folder, args.brokers, is_direct=True) as cluster:
        await cluster.create_stream(STREAM, partitions=1)
        await cluster.in_sync(STREAM)
        servers = list(cluster.servers.values())
        publishers = [
            ChaosPublisher(
                servers[first:] + servers[:first],
                STREAM,
                history,
                name=f"p{first}",
                padding=RECORD_BYTES,
                answer_timeout_s=ANSWER_TIMEOUT_S,
                together=together,
            )
            for first in range(3)
        ]
        async with working(publishers):
            await progress(publishers, [])
            for number in range(args.kills):
                silence_s, longest_s = await kill_leader(cluster, publishers, together)
                found.together.append(silence_s)
                found.alone.append(longest_s)
                print(f"  kill {number + 1:>3}: {silence_s:.2f} s, {longest_s:.2f} s", flush=True)
        await cluster.in_sync(STREAM)
        found.stored = await judge(cluster, 0, history)
    found.acked = sum(each.acked.count for each in publishers)
    found.duplicates = sum(each.duplicates for each in publishers)
    return found


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=50, help="how many (50)")
    parser.add_argument("--brokers", type=int, default=3, help="how many (3)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, RECORD_BYTES)
    with fresh_dir(args.data_root, "failover") as folder:
        found = asyncio.run(measure(folder, args))
    listed, aims = [], []
    for case, values in ((TOGETHER, found.together), (ALONE, found.alone)):
        note = f"p99 {percentile(values, 0.99):.2f} s, max {max(values):.2f} s"
        listed.append(Figure(case, OURS, "s", values, note))
        p99_s = percentile(values, 0.99)
        aims.append(Aim(f"{case}, p99", AIM_S, p99_s, "s", at_most=True))
    counted = (
        f"{found.acked:,} records were acked, {found.duplicates:,} of them on a retry of what was "
        f"stored already; {found.stored:,} are on each replica, the same on all, none twice."
    )
    findings = Findings(
        name="failover",
        title="Failover",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={"kills": args.kills, "brokers": args.brokers, "min_isr": args.brokers // 2 + 1},
        figures=listed,
        aims=aims,
        module="benchmarks.failover",
        sections=["## What was there", counted],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
