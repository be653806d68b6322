"""A rebalance: how long until everybody has its share when a member comes or goes, and who notices.

Run it from the root of the repository: `python -m benchmarks.rebalance`. Consumers of the Python
client, in a few processes, share the partitions of one stream on a real broker, while records are
written to every partition all the time. One more member joins, and leaves again, some times. A
rebalance is over when every member has begun with what it got; of partitions that do not move the
oldest record is noted that a member is handed.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from multiprocessing.context import SpawnContext
from typing import Any, Final, NamedTuple, Self

import strandline
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import cpu_seconds, fresh_dir
from strandline.client.consumer.consumer import Consumer
from strandline.testing import ProcessServer
from strandline.types import PartitionName

STREAM: Final = "work"
GROUP: Final = "workers"
AIM_S: Final = 2.0
POLL_S: Final = 0.2
WRITE_INTERVAL_S: Final = 2.0
OLD_MS: Final = 100
"""Records that are handed out sooner are not worth an event."""
PATIENCE_S: Final = 60.0
SETTLE_S: Final = 4.0
ORPHAN_S: Final = 1.0
"""How often a process of members looks whether it is still wanted."""
CONNECTIONS: Final = 8
SESSION_S: Final = 30.0
INTRO: Final = (
    "{members} members in {processes} processes share {partitions} partitions; one more joins and "
    "leaves, {rounds} times. Time: from its call to the moment at which the last member concerned "
    "has begun with its new share. A record is written to each partition every {interval:g} s."
)


class Event(NamedTuple):
    """Something that a member noticed."""

    at_s: float
    member: str
    kind: str
    partitions: tuple[int, ...]


class Watched:
    """A consumer, on a thread of its own, that tells what happens to it.

    Args:
        client: of the broker.
        name: for events.
        events: where they go.
    """

    def __init__(self, client: strandline.Client, name: str, events: Any) -> None:
        self._client = client
        self._name = name
        self._events = events
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _tell(self, kind: str, partitions: Iterable[PartitionName]) -> None:
        numbers = tuple(sorted(each.partition for each in partitions))
        self._events.put(Event(time.monotonic(), self._name, kind, numbers))

    def _run(self) -> None:
        with self._client.consumer(
            GROUP,
            [STREAM],
            session_timeout_s=SESSION_S,
            on_assigned=lambda _, partitions: self._tell("got", partitions),
            on_revoked=lambda _, partitions: self._tell("lost", partitions),
        ) as consumer:
            while not self.is_over.is_set():
                self._poll(consumer)
            had = consumer.assignment()
        self._tell("left", had)

    def _poll(self, consumer: Consumer) -> None:
        """Consume, and tell how old a record was when it came."""
        for batch in consumer.poll(POLL_S):
            stored_ns = batch.records.column("timestamp")[0].value
            age_ms = (time.time_ns() - stored_ns) // 1_000_000
            if age_ms > OLD_MS:
                event = Event(time.monotonic(), self._name, "age", (batch.partition, age_ms))
                self._events.put(event)

    def end(self) -> None:
        """Leave the group."""
        self.is_over.set()
        self._thread.join()


def work(address: str, number: int, members: int, events: Any, is_over: Any) -> None:
    """One process of members."""
    clients = [strandline.connect(address) for _ in range(min(CONNECTIONS, members))]
    watched = [
        Watched(clients[index % len(clients)], f"{number}/{index}", events)
        for index in range(members)
    ]
    parent = multiprocessing.parent_process()
    while not is_over.wait(ORPHAN_S) and parent is not None and parent.is_alive():
        continue
    for each in watched:
        each.is_over.set()
    for each in watched:
        each.end()
    for client in clients:
        client.close()


class Group:
    """The owners of partitions by the events, and the time of the last change."""

    def __init__(self, events: Any, partitions: int) -> None:
        self._events = events
        self._partitions = partitions
        self.has: dict[str, set[int]] = defaultdict(set)
        self.changed_s = 0.0
        self.ages: list[tuple[int, int]] = []

    def _take(self, event: Event) -> None:
        if event.kind == "age":
            self.ages.append((event.partitions[0], event.partitions[1]))
            return
        self.changed_s = max(self.changed_s, event.at_s)
        if event.kind == "got":
            self.has[event.member].update(event.partitions)
        elif event.kind == "lost":
            self.has[event.member].difference_update(event.partitions)
        else:
            self.has.pop(event.member, None)

    def _is_shared(self, members: int) -> bool:
        sizes = [len(numbers) for numbers in self.has.values()]
        return (
            len(sizes) == members
            and sum(sizes) == self._partitions
            and (max(sizes) - min(sizes) <= 1)
        )

    def until_shared(self, members: int) -> None:
        """Take events until so many members share everything evenly."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._is_shared(members):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{len(self.has)} of {members} members after {PATIENCE_S:g} s")
            try:
                self._take(self._events.get(timeout=POLL_S))
            except queue.Empty:
                continue

    def settle(self, seconds: float) -> None:
        """Take what comes for a while."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                self._take(self._events.get(timeout=left_s))
            except queue.Empty:
                return


class Writer:
    """Writes a record to every partition, again and again, while its context lasts."""

    def __init__(self, address: str, partitions: int) -> None:
        self._address = address
        self._partitions = partitions
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with (
            strandline.connect(self._address) as client,
            client.producer(STREAM) as producer,
        ):
            while not self._is_over.wait(WRITE_INTERVAL_S):
                for partition in range(self._partitions):
                    producer.append(b"x" * 100, partition=partition)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Measured(NamedTuple):
    """All rounds."""

    joins_s: list[float]
    leaves_s: list[float]
    age_ms: int
    steady_age_ms: int
    broker_cores: float


def measure(server: ProcessServer, args: argparse.Namespace, context: SpawnContext) -> Measured:
    """Members in processes, and one more that comes and goes."""
    address = server.flight
    events, is_over = context.Queue(), context.Event()
    with strandline.connect(address, timeout_s=PATIENCE_S) as client:
        client.create_stream(STREAM, partitions=args.partitions)
    shares = [args.members // args.processes] * args.processes
    shares[0] += args.members - sum(shares)
    processes = [
        context.Process(target=work, args=(address, number, share, events, is_over))
        for number, share in enumerate(shares)
    ]
    for process in processes:
        process.start()
    try:
        group = Group(events, args.partitions)
        group.until_shared(args.members)
        with Writer(address, args.partitions):
            return _rounds(server, group, events, args=args)
    finally:
        is_over.set()
        _drain(events, processes)


def _rounds(
    server: ProcessServer, group: Group, events: Any, *, args: argparse.Namespace
) -> Measured:
    group.settle(2 * SETTLE_S)  # until every partition has a position
    group.ages.clear()
    group.settle(2 * SETTLE_S)
    steady_ms = max((age for _, age in group.ages), default=OLD_MS)
    group.ages.clear()
    joins_s, leaves_s = [], []
    moved: set[int] = set()
    cpu_s, started_s = cpu_seconds(server.pid), time.monotonic()
    with strandline.connect(server.flight) as client:
        for number in range(args.rounds):
            name = f"more/{number}"
            begun_s = time.monotonic()
            more = Watched(client, name, events)
            group.until_shared(args.members + 1)
            joins_s.append(group.changed_s - begun_s)
            moved |= group.has[name]
            group.settle(SETTLE_S)
            begun_s = time.monotonic()
            more.end()
            group.until_shared(args.members)
            leaves_s.append(group.changed_s - begun_s)
            print(f"  joined in {joins_s[-1]:.2f} s, left in {leaves_s[-1]:.2f} s", flush=True)
            group.settle(SETTLE_S)
    cores = (cpu_seconds(server.pid) - cpu_s) / (time.monotonic() - started_s)
    age_ms = max((age for at, age in group.ages if at not in moved), default=OLD_MS)
    return Measured(joins_s, leaves_s, age_ms, steady_ms, cores)


def _drain(events: Any, processes: list[Any]) -> None:
    """Let the processes end; one that still has events to give could not."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(process.is_alive() for process in processes):
        with contextlib.suppress(queue.Empty):
            events.get(timeout=POLL_S)
        if time.monotonic() > deadline_s:
            for process in processes:
                process.kill()
    for process in processes:
        process.join()


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rebalance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--members", type=int, default=100, help="of the group (100)")
    add("--partitions", type=int, default=1000, help="that they share (1000)")
    add("--processes", type=int, default=2, help="of members (2)")
    add("--rounds", type=int, default=5, help="how often one more comes and goes (5)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, 2048)
    context = multiprocessing.get_context("spawn")
    with fresh_dir(args.data_root, "rebalance") as folder:
        server = ProcessServer(folder, arguments=("--log-level", "warning"))
        with server:
            found = measure(server, args, context)
    listed = [
        Figure("a member joins", "strandline", "s", found.joins_s),
        Figure("a member leaves", "strandline", "s", found.leaves_s),
        Figure(
            "oldest record when handed out, of partitions that stay",
            "strandline",
            "ms",
            [found.age_ms],
            f"{found.steady_age_ms} ms before any rebalance",
        ),
        Figure("the broker's CPU", "strandline", "cores", [found.broker_cores]),
    ]
    findings = Findings(
        name="rebalance",
        title=f"A rebalance of {args.members} members over {args.partitions} partitions",
        intro=INTRO.format(**vars(args), interval=WRITE_INTERVAL_S),
        machine=host,
        settings={"members": args.members, "partitions": args.partitions, "rounds": args.rounds},
        figures=listed,
        aims=[
            Aim("a member joins, slowest", AIM_S, max(found.joins_s), "s", at_most=True),
            Aim("a member leaves, slowest", AIM_S, max(found.leaves_s), "s", at_most=True),
        ],
        module="benchmarks.rebalance",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
