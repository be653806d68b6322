"""Real brokers on this machine, optionally with a proxy on each link between two of them.

Rules: a link carries frames one way, from the broker that opened it, so blocking one proxy is a
one-way partition. Clients reach brokers directly, and so do nats-servers each other: publishers
still reach a broker that is cut off from its peers, which is the harder case. Every process is
started here and ended by its process id.
"""

import asyncio
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

import strandline
from chaos.broker import Knobs
from strandline.api.cluster import CLUSTER_STATUS, REASSIGN, ClusterStatus, Reassign
from strandline.api.command import AdminCommand
from strandline.client.connection import BrokerConnection
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.testing.history import ViolationError
from strandline.testing.process import ProcessServer
from strandline.testing.proxy import TcpProxy

COMMAND: Final = (sys.executable, "-m", "chaos.broker")
STATUS_TIMEOUT_S: Final = 2.0
SETTLE_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.1
HOST: Final = "127.0.0.1"
Q = TypeVar("Q")
A = TypeVar("A")


class ChaosCluster:
    """Brokers 1 to N with a directory each in ``folder``; an asynchronous context.

    Args:
        folder: contains their data directories.
        count: the number of brokers.
        is_direct: without proxies: links cannot be blocked, and the proxies do not slow them.
    """

    def __init__(self, folder: Path, count: int, *, is_direct: bool = False) -> None:
        self.folder = folder
        self.ids = list(range(1, count + 1))
        self._is_direct = is_direct
        self.servers: dict[int, ProcessServer] = {}
        self.knobs: dict[int, Knobs] = {}
        self.proxies: dict[tuple[int, int], TcpProxy] = {}
        """(from, to) → the proxy of the link."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _start(self) -> None:
        ports = iter(free_ports(2 * len(self.ids)))
        peer_ports = {number: next(ports) for number in self.ids}
        meeting = ",".join(f"{number}={HOST}:{next(ports)}" for number in self.ids)
        for a, b in () if self._is_direct else itertools.permutations(self.ids, 2):
            self.proxies[a, b] = await TcpProxy(HOST, peer_ports[b]).start()
        for number in self.ids:
            data_dir = self.folder / f"broker-{number}"
            data_dir.mkdir(parents=True, exist_ok=True)
            knobs_file = self.folder / f"knobs-{number}"
            self.knobs[number] = Knobs(knobs_file)
            reached = dict(peer_ports)
            reached |= {b: proxy.port for (a, b), proxy in self.proxies.items() if a == number}
            peers = ",".join(f"{other}={HOST}:{reached[other]}" for other in self.ids)
            words: tuple[str, ...] = (
                "--broker-id",
                str(number),
                "--peer-port",
                str(peer_ports[number]),
            )
            words += ("--peers", peers, "--nats-peers", meeting, "--knobs", str(knobs_file))
            self.servers[number] = ProcessServer(data_dir, arguments=words, command=COMMAND)
        await asyncio.gather(*(asyncio.to_thread(s.start) for s in self.servers.values()))

    async def _end(self) -> None:
        for server in self.servers.values():
            if server.is_running:
                await asyncio.to_thread(server.kill)
        for proxy in self.proxies.values():
            await proxy.stop()

    # What clients see

    def status(self, number: int) -> ClusterStatus:
        """Return the cluster's status at a broker; blocks.

        Raises:
            StrandlineError: the broker does not answer.
        """
        return self._ask(number, CLUSTER_STATUS, None)

    def _ask(self, number: int, command: AdminCommand[Q, A], request: Q) -> A:
        connection = BrokerConnection(self.servers[number].flight, timeout_s=STATUS_TIMEOUT_S)
        try:
            [found] = connection.action(command, request)
        finally:
            connection.close()
        return found

    async def leader(self, stream: str, partition: int = 0) -> int | None:
        """Return the leader of the newest epoch that any broker knows; None if there is none."""
        found: tuple[int, int | None] = (-1, None)
        for number, server in self.servers.items():
            if not server.is_running:
                continue
            with contextlib.suppress(StrandlineError):
                status = await asyncio.to_thread(self.status, number)
                for part in status.partitions:
                    if (part.stream, part.partition) == (stream, partition):
                        found = max(found, (part.leader_epoch, part.leader), key=lambda f: f[0])
        return found[1]

    async def create_stream(self, name: str, *, partitions: int, replicas: int = 0) -> None:
        """Create a stream with a majority as ``min_isr``; 0: a replica on each broker."""
        copies = replicas or len(self.ids)

        def create() -> bool:
            with strandline.connect(self.servers[1].flight) as client:
                if name not in [each.config.name for each in client.list_streams()]:
                    client.create_stream(
                        name,
                        subject=name,
                        partitions=partitions,
                        replicas=copies,
                        min_isr=copies // 2 + 1 if copies > 2 else 1,
                        acks="replicated",
                    )
            return True

        await self.until(create, what=f"stream {name} is created")

    async def reassign(self, stream: str, partition: int, to: Sequence[int]) -> None:
        """Move a partition to these brokers, preferred leader first, and wait until it is done.

        Raises:
            TimeoutError: the move is not finished in time.
        """
        order = Reassign(stream=stream, partition=partition, to=tuple(to))
        asked = itertools.cycle(self.ids)

        def is_done() -> bool:
            number = next(asked)
            parts = self.status(number).partitions
            wanted = [p for p in parts if (p.stream, p.partition) == (stream, partition)]
            if not wanted:
                return False  # the broker has just started and has no metadata yet
            [found] = wanted
            if not found.is_moving and set(found.replicas) != set(to):
                self._ask(number, REASSIGN, order)
                return False
            return not found.is_moving

        await self.until(is_done, what=f"partition {partition} of {stream} is kept by {to}")

    async def in_sync(self, stream: str) -> None:
        """Wait until each replica of a stream is in sync, and each partition has a leader."""

        def is_in_sync() -> bool:
            for number in self.ids:
                parts = [p for p in self.status(number).partitions if p.stream == stream]
                if not parts:
                    return False
                if any(p.leader is None or len(p.isr) < len(p.replicas) for p in parts):
                    return False
            return True

        await self.until(is_in_sync, what=f"every replica of {stream} is in sync")

    async def until(
        self,
        condition: Callable[[], bool],
        *,
        what: str,
        timeout_s: float = SETTLE_TIMEOUT_S,
    ) -> None:
        """Wait for a condition that is read from brokers, some of which may be down.

        Raises:
            TimeoutError: the condition is not met in time.
        """
        deadline_s = time.monotonic() + timeout_s
        said = ""
        while time.monotonic() < deadline_s:
            try:
                if await asyncio.to_thread(condition):
                    return
            except StrandlineError as error:
                said = f": {error}"
            await asyncio.sleep(POLL_S)
        words = "\n".join(
            f"broker {number} said: {line.rstrip()}"
            for number, server in self.servers.items()
            for line in list(server.errors)[-15:]
        )
        raise TimeoutError(f"after {timeout_s:g} s still not: {what}{said}\n{words}")

    def check_ends(self) -> None:
        """Check that every broker that is down was killed or stopped by the run; does not block.

        Raises:
            ViolationError: a broker ended by itself, which other brokers may have hidden.
        """
        for number, server in self.servers.items():
            if server.exit_code not in (None, 0, -signal.SIGKILL):
                words = "".join(list(server.errors)[-15:])
                raise ViolationError(f"broker {number} ended with {server.exit_code}: {words}")

    # Links

    def links(self, number: int) -> tuple[list[TcpProxy], list[TcpProxy]]:
        """Return the links from a broker, and those to it."""
        out = [proxy for (a, _), proxy in self.proxies.items() if a == number]
        into = [proxy for (_, b), proxy in self.proxies.items() if b == number]
        return out, into

    async def heal(self) -> None:
        """Unblock every link, correct clocks, undo delays of disks, and start stopped brokers."""
        for proxy in self.proxies.values():
            proxy.resume()
            proxy.delay(0.0)
        for knobs in self.knobs.values():
            knobs.turn(clock_ms=0, sync_ms=0)
        for server in self.servers.values():
            if not server.is_running:
                await asyncio.to_thread(server.start)
