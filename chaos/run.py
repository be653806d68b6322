"""One chaos run: a seed's faults on a cluster, and the result.

Rules: liveness is judged as strictly as safety. While the faults of a round leave a majority, no
publisher waits longer than ``ChaosPlan.progress_s`` for an ack. Within the same time after each
round every client makes progress. A run ends when its time is over and each of its faults has
happened. Then all faults end, and every publisher learns the outcome of every record. All replicas
must serve the same log, which agrees with the histories, and every reader and the group must reach
its end.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.clients import GroupClient, OwnProducer, positions
from chaos.cluster import SETTLE_TIMEOUT_S, ChaosCluster
from chaos.faults import FAULTS, OF_CLUSTERS, Nemesis, deal, leaves_majority, small_disk
from chaos.load import ChaosPublisher, ChaosReader, expected, read_log
from chaos.transactions import STREAM as TRANSACTIONS
from chaos.transactions import TransactionLoad
from strandline.errors import InvalidRequestError, StrandlineError
from strandline.testing.history import GroupHistory, PartitionHistory, ViolationError

STREAM: Final = "chaos"
PARTITIONS: Final = 2
WINDOWS: Final = (1, 16)
MEMBERS: Final = {"ann": 5.0, "bob": 8.0}
"""The members of the group, and for how many seconds at a time they stay in it."""
PROGRESS_S: Final = 10.0
"""How long a client may make no progress, as promised in docs/guarantees.md."""
STOP_TIMEOUT_S: Final = 60.0
ARRIVE_TIMEOUT_S: Final = 60.0
"""How long readers and the group may take to reach the end after the last publish."""
POLL_S: Final = 0.05
Workers = list["asyncio.Future[None]"]
Client = ChaosPublisher | OwnProducer | ChaosReader | GroupClient | TransactionLoad


@dataclass(frozen=True)
class ChaosPlan:
    """The parameters of a run.

    Attributes:
        brokers: the number of brokers. seconds: how long there are faults, at least; each fault
        happens once, however long it takes. seed: determines which faults happen, and when. faults:
        names of the faults that may happen. progress_s: how long a client may make no progress, in
        seconds.
    """

    brokers: int
    seconds: float
    seed: int
    faults: Sequence[str] = tuple(FAULTS)
    progress_s: float = PROGRESS_S


@dataclass
class ChaosOutcome:
    """The result of a run in which no promise was broken."""

    plan: ChaosPlan
    faults: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    acked: int = 0
    duplicates: int = 0
    """Retries that were answered with the offset at which the record is stored already."""
    rejected: int = 0
    unanswered: int = 0
    own: int = 0
    """How many of the acked records the idempotent producer sent."""
    stored: int = 0
    read: int = 0
    read_errors: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    """The number of rounds of one or two faults."""
    processed: int = 0
    """Records processed by the members of the group; repeats count again."""
    stays: int = 0
    """How often a member joined the group."""
    group_errors: Counter[str] = field(default_factory=Counter)
    committed: int = 0
    """The number of committed transactions."""
    transaction_errors: Counter[str] = field(default_factory=Counter)
    silence_s_max: float = 0.0
    """The longest time in which one publisher received no ack while there was a majority."""
    recovery_s_max: float = 0.0
    """The longest time after a round until every client had made progress."""
    seconds: float = 0.0


class LoadOptions:
    """The clients that work during the faults, and their histories.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: ChaosCluster) -> None:
        servers = list(cluster.servers.values())
        self.histories = [PartitionHistory(f"partition {number}") for number in range(PARTITIONS)]
        self.group = [GroupHistory(history) for history in self.histories]
        self.publishers: list[ChaosPublisher | OwnProducer] = [
            ChaosPublisher(
                servers[turn % len(servers) :] + servers[: turn % len(servers)],
                f"{STREAM}.{partition}" if partition else STREAM,
                history,
                name=f"p{partition}w{window}",
                window=window,
            )
            for partition, history in enumerate(self.histories)
            for turn, window in enumerate(WINDOWS, partition)
        ]
        self.own = OwnProducer(servers, STREAM, self.histories, name="own")
        self.publishers.append(self.own)
        self.readers = [
            ChaosReader([server], STREAM, self.histories, name=f"reader {number}")
            for number, server in cluster.servers.items()
        ]
        self.readers.append(ChaosReader(servers, STREAM, self.histories, name="roaming reader"))
        self.members = [
            GroupClient(servers, STREAM, self.group, name=name, stay_s=stay_s)
            for name, stay_s in MEMBERS.items()
        ]
        self.transactions = TransactionLoad(servers, PARTITIONS)
        self.followers: list[ChaosReader | GroupClient | TransactionLoad] = [
            *self.readers,
            *self.members,
            self.transactions,
        ]

    @property
    def clients(self) -> "list[Client]":
        """Return all clients."""
        return [*self.publishers, *self.followers]

    def tell(self, outcome: ChaosOutcome) -> None:
        """Add the run's counters to an outcome."""
        for each in self.publishers:
            outcome.acked += each.acked.count
            outcome.duplicates += each.duplicates
            outcome.rejected += each.rejections.total()
            outcome.unanswered += each.unanswered
        outcome.own = self.own.acked.count
        outcome.read = sum(reader.records for reader in self.readers)
        outcome.processed = sum(member.records for member in self.members)
        outcome.stays = sum(member.stays for member in self.members)
        for reader in self.readers:
            outcome.read_errors += reader.errors
        for member in self.members:
            outcome.group_errors += member.errors
        outcome.committed = self.transactions.steps
        outcome.transaction_errors = self.transactions.errors


async def run_chaos(plan: ChaosPlan, folder: Path) -> ChaosOutcome:
    """Start a cluster, break it as the seed decides, heal it, and check the results.

    Raises:
        ViolationError: a promise was broken.
        TimeoutError: a client made no progress for longer than promised.
        StrandlineError: a broker did not start.
    """
    outcome = ChaosOutcome(plan)
    started_s = time.monotonic()
    if plan.brokers == 1:
        outcome.skipped = {n: "needs several brokers" for n in OF_CLUSTERS if n in plan.faults}
    with contextlib.ExitStack() as stack:
        small = folder / f"broker-{plan.brokers}"
        if "fill-disk" in plan.faults and (why := stack.enter_context(small_disk(small))):
            outcome.skipped["fill-disk"] = why
        async with ChaosCluster(folder, plan.brokers) as cluster:
            for stream in (STREAM, TRANSACTIONS):
                await cluster.create_stream(stream, partitions=PARTITIONS)
                await cluster.in_sync(stream)
            nemesis = Nemesis(cluster, STREAM, random.Random(plan.seed), small)
            load = LoadOptions(cluster)
            async with following(load.followers) as followers:
                await _break_under_load(nemesis, load, outcome, followers=followers)
                await _settle(cluster, load, outcome, followers=followers)
            await asyncio.to_thread(load.transactions.judge)
            load.tell(outcome)
    outcome.seconds = time.monotonic() - started_s
    return outcome


async def _break_under_load(
    nemesis: Nemesis, load: LoadOptions, outcome: ChaosOutcome, *, followers: Workers
) -> None:
    """Break the cluster under load; return when publishers have all their answers."""
    plan, missing = outcome.plan, set(outcome.plan.faults) - outcome.skipped.keys()
    if not missing:
        raise InvalidRequestError(f"none of these faults can happen here: {outcome.skipped}")
    # A generator of its own, so that numbers that faults draw do not change the next faults.
    hands = deal(sorted(missing), random.Random(f"faults of {plan.seed}"))
    async with working(load.publishers) as publishing:
        workers = [*publishing, *followers]
        await progress(load.clients, workers)
        ends_s = time.monotonic() + plan.seconds
        while missing or time.monotonic() < ends_s:
            chosen = next(hands)
            for publisher in load.publishers:
                publisher.acked.forget()
            await asyncio.gather(*(FAULTS[name](nemesis) for name in chosen))
            await _judge_liveness(plan, load, outcome, chosen=chosen, workers=workers)
            outcome.faults.update(chosen)
            outcome.rounds += 1
            missing.difference_update(chosen)
            nemesis.cluster.check_ends()
        await nemesis.cluster.heal()
        await progress(load.clients, workers)
        nemesis.cluster.check_ends()


async def _judge_liveness(
    plan: ChaosPlan,
    load: LoadOptions,
    outcome: ChaosOutcome,
    *,
    chosen: Sequence[str],
    workers: Workers,
) -> None:
    """Wait until every client has made progress after a round, and judge its silences.

    Raises:
        TimeoutError: a client made no progress for longer than promised.
    """
    healed_s = time.monotonic()
    try:
        await progress(load.clients, workers, timeout_s=plan.progress_s)
    except TimeoutError as error:
        raise TimeoutError(f"after {' and '.join(chosen)}: {error}") from error
    outcome.recovery_s_max = max(outcome.recovery_s_max, time.monotonic() - healed_s)
    if not leaves_majority(chosen, plan.brokers):
        return
    for publisher in load.publishers:
        silence_s = publisher.acked.silence_s_max
        outcome.silence_s_max = max(outcome.silence_s_max, silence_s)
        if silence_s > plan.progress_s:
            raise TimeoutError(
                f"during {' and '.join(chosen)}, which left a majority, {publisher.name} received "
                f"no ack for {silence_s:.1f} s"
            )


async def _settle(
    cluster: ChaosCluster, load: LoadOptions, outcome: ChaosOutcome, *, followers: Workers
) -> None:
    """Check replicas, readers and the group, after all faults and publishes have ended."""
    await cluster.in_sync(STREAM)
    ends = [await judge(cluster, number, each) for number, each in enumerate(load.histories)]
    outcome.stored = sum(ends)
    await _judge_readers(load.readers, load.histories, ends, followers=followers)
    await _judge_group(cluster, load.group, ends, followers=followers)


async def _judge_readers(
    readers: list[ChaosReader],
    histories: list[PartitionHistory],
    ends: list[int],
    *,
    followers: Workers,
) -> None:
    """Check that every reader has reached the end, which every replica has reported."""
    await _arrive(lambda: all(reader.is_at(ends) for reader in readers), followers)
    for reader in readers:
        for history, end in zip(histories, ends, strict=True):
            history.arrived(reader.name, end)


async def _judge_group(
    cluster: ChaosCluster, group: list[GroupHistory], ends: list[int], *, followers: Workers
) -> None:
    """Check that the group has processed everything, and that its offsets are at the end."""
    found: list[int | None] = []

    def is_there() -> bool:
        try:
            found[:] = positions(list(cluster.servers.values()), STREAM, len(ends))
        except StrandlineError as error:
            expected(error)
        return found == ends

    await _arrive(is_there, followers)
    for history, end, position in zip(group, ends, found, strict=True):
        history.settled(end, position)


async def _arrive(are_there: Callable[[], bool], followers: Workers) -> None:
    """Wait until all have reached the end, or for a limited time."""
    deadline_s = time.monotonic() + ARRIVE_TIMEOUT_S
    while not await asyncio.to_thread(are_there) and time.monotonic() < deadline_s:
        _raise_what_ended(followers)
        await asyncio.sleep(POLL_S)
    _raise_what_ended(followers)


def _raise_what_ended(workers: Workers) -> None:
    """Raise the error of a client that ended early, such as a broken promise."""
    for worker in workers:
        if worker.done():
            worker.result()


@contextlib.asynccontextmanager
async def following(
    readers: Sequence[ChaosReader | GroupClient | TransactionLoad],
) -> AsyncIterator[Workers]:
    """Run clients that block, each in a thread.

    Raises:
        TimeoutError: a client does not stop.
    """
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(len(readers))  # they would fill the loop's own pool
    workers = [loop.run_in_executor(threads, each.run) for each in readers]
    try:
        yield workers
    finally:
        for reader in readers:
            reader.is_stopping = True
        _, late = await asyncio.wait(workers, timeout=STOP_TIMEOUT_S)
        threads.shutdown(wait=False)
    if late:
        raise TimeoutError(f"{len(late)} readers did not stop in {STOP_TIMEOUT_S:g} s")
    _raise_what_ended(workers)


@contextlib.asynccontextmanager
async def working(publishers: Sequence[ChaosPublisher | OwnProducer]) -> AsyncIterator[Workers]:
    """Run publishers; at the end wait until they have all their answers."""
    workers: Workers = [asyncio.create_task(each.run()) for each in publishers]
    try:
        yield workers
        for publisher in publishers:
            publisher.is_stopping = True
        await asyncio.wait_for(asyncio.gather(*workers), STOP_TIMEOUT_S)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def progress(
    clients: Sequence[Client], workers: Workers, *, timeout_s: float = SETTLE_TIMEOUT_S
) -> None:
    """Wait until each client has done something new: an ack, a record, a transaction.

    Raises:
        TimeoutError: a client has not.
    """
    before = [client.steps for client in clients]
    deadline_s = time.monotonic() + timeout_s
    while late := [c.name for c, b in zip(clients, before, strict=True) if c.steps == b]:
        _raise_what_ended(workers)
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no progress of {', '.join(late)} in {timeout_s:g} s")
        await asyncio.sleep(POLL_S)


async def judge(cluster: ChaosCluster, partition: int, history: PartitionHistory) -> int:
    """Compare the replicas with each other and with the histories; return how much was compared."""
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
