"""One chaos run: a seed's story on a cluster, and what came of it.

Rules: after each fault everybody must get on, or the run fails: that a cluster is safe while it
does nothing is no news. At the end everything heals, every publisher hears of every record it sent,
and each replica must serve the same log, in which all is as the histories have it.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strandline.errors import StrandlineError
from strandline.testing.chaos.cluster import ChaosCluster
from strandline.testing.chaos.faults import FAULTS, Torment, small_disk
from strandline.testing.chaos.load import Publisher, Reader, read_log
from strandline.testing.history import History
from strandline.testing.sim.world import ViolationError

STREAM: Final = "chaos"
PARTITIONS: Final = 2
WINDOWS: Final = (1, 16)
PROGRESS_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05
BOTH_SHARE: Final = 0.3
"""Of faults that come two at a time."""


@dataclass(frozen=True)
class Plan:
    """What a run is.

    Attributes:
        brokers: how many.
        seconds: how long things break; getting on after each takes longer.
        seed: decides which faults there are, and when.
        faults: names of those that may happen.
    """

    brokers: int
    seconds: float
    seed: int
    faults: Sequence[str] = tuple(FAULTS)


@dataclass
class Outcome:
    """What came of a run in which no promise was broken."""

    plan: Plan
    faults: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    acked: int = 0
    duplicates: int = 0
    """Retries that were answered with where the record is already."""
    refused: int = 0
    unanswered: int = 0
    stored: int = 0
    read: int = 0
    silence_s_max: float = 0.0
    """The longest time in which one publisher heard no ack."""
    seconds: float = 0.0


async def torment_cluster(plan: Plan, folder: Path) -> Outcome:
    """Start a cluster, break it as the seed says, heal it, judge.

    Raises:
        ViolationError: a promise was broken.
        TimeoutError: the cluster did not get on.
        StrandlineError: a broker did not start.
    """
    outcome = Outcome(plan)
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        small = folder / f"broker-{plan.brokers}"
        if "fill-disk" in plan.faults and (why := stack.enter_context(small_disk(small))):
            outcome.skipped["fill-disk"] = why
        async with ChaosCluster(folder, plan.brokers) as cluster:
            await cluster.create_stream(STREAM, partitions=PARTITIONS)
            await cluster.in_sync(STREAM)
            torment = Torment(cluster, STREAM, random.Random(plan.seed), small)
            histories = [History(f"partition {number}") for number in range(PARTITIONS)]
            await _break_under_load(torment, histories, outcome)
            await cluster.in_sync(STREAM)
            for number, history in enumerate(histories):
                outcome.stored += await judge(cluster, number, history)
    outcome.seconds = time.monotonic() - started_s
    return outcome


async def _break_under_load(torment: Torment, histories: list[History], outcome: Outcome) -> None:
    """Let publishers and readers work while things break."""
    servers = list(torment.cluster.servers.values())
    publishers = [
        Publisher(
            servers[turn % len(servers) :] + servers[: turn % len(servers)],
            f"{STREAM}.{partition}" if partition else STREAM,
            history,
            name=f"p{partition}w{window}",
            window=window,
        )
        for partition, history in enumerate(histories)
        for turn, window in enumerate(WINDOWS, partition)
    ]
    readers = [Reader([s], STREAM, histories, name=f"reader {n}") for n, s in enumerate(servers, 1)]
    readers.append(Reader(servers, STREAM, histories, name="roaming reader"))
    async with working(publishers, readers) as workers:
        await progress(publishers, workers)
        ends_s = time.monotonic() + outcome.plan.seconds
        names = [name for name in outcome.plan.faults if name not in outcome.skipped]
        while time.monotonic() < ends_s:
            chosen = torment.rng.sample(names, 1 + (torment.rng.random() < BOTH_SHARE))
            await asyncio.gather(*(FAULTS[name](torment) for name in chosen))
            outcome.faults.update(chosen)
            await progress(publishers, workers)
            torment.cluster.check_ends()
        await torment.cluster.heal()
        await progress(publishers, workers)
        torment.cluster.check_ends()
    for each in publishers:
        outcome.acked += each.acked.count
        outcome.duplicates += each.duplicates
        outcome.refused += each.refusals.total()
        outcome.unanswered += each.unanswered
        outcome.silence_s_max = max(outcome.silence_s_max, each.acked.silence_s_max)
    outcome.read = sum(reader.records for reader in readers)


@contextlib.asynccontextmanager
async def working(
    publishers: Sequence[Publisher], readers: Sequence[Reader]
) -> AsyncIterator[list["asyncio.Future[None]"]]:
    """All of them at work; when it ends publishers have heard of all that they sent."""
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(max(1, len(readers)))  # the loop's own would be full of them
    workers: list[asyncio.Future[None]] = [loop.create_task(each.run()) for each in publishers]
    workers += [loop.run_in_executor(threads, each.run) for each in readers]
    try:
        yield workers
        for publisher in publishers:
            publisher.is_stopping = True
        await asyncio.wait_for(asyncio.gather(*workers[: len(publishers)]), STOP_TIMEOUT_S)
    finally:
        for publisher in publishers:
            publisher.is_stopping = True
        for reader in readers:
            reader.is_stopping = True
        for worker in workers[: len(publishers)]:
            worker.cancel()
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
        threads.shutdown()
    for found in outcomes:
        if isinstance(found, Exception):
            raise found


async def progress(publishers: Sequence[Publisher], workers: list["asyncio.Future[None]"]) -> None:
    """Wait until each publisher has had an ack for something new.

    Raises:
        TimeoutError: one has not.
    """
    before = [publisher.acked.count for publisher in publishers]
    deadline_s = time.monotonic() + PROGRESS_TIMEOUT_S
    while late := [p for p, b in zip(publishers, before, strict=True) if p.acked.count == b]:
        for worker in workers:
            if worker.done():
                worker.result()  # one that found a broken promise says so
        if time.monotonic() > deadline_s:
            said = {p.name: dict(p.refusals.most_common(3)) for p in late}
            raise TimeoutError(f"no ack in {PROGRESS_TIMEOUT_S:g} s: {said}")
        await asyncio.sleep(POLL_S)


async def judge(cluster: ChaosCluster, partition: int, history: History) -> int:
    """Compare what the replicas serve with each other and with what was heard; how much it is."""
    logs: dict[str, list[bytes]] = {}

    def all_read() -> bool:
        for number, server in cluster.servers.items():
            logs[f"broker {number}"] = read_log(server, STREAM, partition)
        longest = max(len(log) for log in logs.values())
        return all(longest == len(log) >= history.acked_end for log in logs.values())

    try:
        await cluster.until(all_read, what=f"all replicas serve all of partition {partition}")
    except (TimeoutError, StrandlineError) as error:
        ends = {name: len(log) for name, log in logs.items()}
        raise ViolationError(
            f"acked to {history.acked_end}, logs end at {ends}: {error}"
        ) from error
    for name, log in logs.items():
        history.settled(name, log)
    return len(logs["broker 1"])
