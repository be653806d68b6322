"""Faults of a real cluster: each breaks something, waits, and repairs it.

Rules: everything random comes from one seeded generator, so a seed gives the same sequence of
faults, but not the same history, since real processes have their own timing. A fault takes brokers
that no other fault has, and releases them; only a full disk may hit a broker that is taken.
``FAULTS`` has them all. They come in random order, each once before any comes again.
"""

import asyncio
import contextlib
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.cluster import ChaosCluster
from strandline.errors import StrandlineError
from strandline.testing.history import ViolationError
from strandline.testing.proxy import TcpProxy

SMALL_DISK_BYTES: Final = 512 << 20
CLOCK_MS_MAX: Final = 30_000
"""Less than half the deduplication window: after more, a retry is rightly a new record."""
MOUNT_TIMEOUT_S: Final = 10.0
RESTART_PAUSE_S: Final = 0.5
NO_MAJORITY_KILLS: Final = 0.5
"""Share of the ``no-majority`` faults that kill; the others pause."""
BOTH_SHARE: Final = 0.3
"""Share of rounds with two faults at a time."""


@dataclass
class Nemesis:
    """Causes faults in one cluster, as a random generator decides.

    Attributes:
        cluster: the cluster.
        stream: the stream whose leaders are preferred victims.
        rng: decides everything random.
        small_disk: the directory of the broker whose disk can be filled, if there is one.
        full_until_s: when that disk had space again, by the monotonic clock.
    """

    cluster: ChaosCluster
    stream: str
    rng: random.Random
    small_disk: Path | None = None
    full_until_s: float = 0.0
    _taken: set[int] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def victim(self, wanted: int | None = None) -> AsyncIterator[int]:
        """Take a broker that no other fault has: ``wanted`` if it is free, else any."""
        async with self.victims(1, wanted) as [number]:
            yield number

    @contextlib.asynccontextmanager
    async def victims(self, count: int, wanted: int | None = None) -> AsyncIterator[list[int]]:
        """Take ``count`` brokers at once, so that two faults never wait for each other."""
        while len(free := [n for n in self.cluster.ids if n not in self._taken]) < count:  # noqa: ASYNC110  rare
            await asyncio.sleep(0.05)
        numbers = [wanted] if wanted in free else []
        others = [number for number in free if number not in numbers]
        numbers += self.rng.sample(others, count - len(numbers))
        self._taken.update(numbers)
        try:
            yield numbers
        finally:
            self._taken.difference_update(numbers)

    async def start(self, number: int) -> None:
        """Start a broker, again and again while its disk is full, as a supervisor would.

        Raises:
            StrandlineError: the broker does not start although there is space.
        """
        server = self.cluster.servers[number]
        while True:
            began_s = time.monotonic()
            try:
                await asyncio.to_thread(server.start)
            except StrandlineError:
                if server.data_dir != self.small_disk or began_s > self.full_until_s:
                    raise
                await asyncio.sleep(RESTART_PAUSE_S)
            else:
                return

    async def hold(self, *seconds: float) -> None:
        """Keep up a fault for one of these times."""
        await asyncio.sleep(self.rng.choice(seconds))


async def kill(nemesis: Nemesis) -> None:
    """Kill any broker with ``kill -9``, then start it."""
    async with nemesis.victim() as number:
        await _restart(nemesis, number)


async def kill_leader(nemesis: Nemesis) -> None:
    """Kill the leader of a partition with ``kill -9``, then start it."""
    leader = await nemesis.cluster.leader(nemesis.stream)
    async with nemesis.victim(leader) as number:
        await _restart(nemesis, number)


async def _restart(nemesis: Nemesis, number: int) -> None:
    await asyncio.to_thread(nemesis.cluster.servers[number].kill)
    await nemesis.hold(0.0, 0.5, 3.0)
    await nemesis.start(number)


async def kill_all(nemesis: Nemesis) -> None:
    """Kill every broker at once with ``kill -9``, then start them."""
    async with nemesis.victims(len(nemesis.cluster.ids)) as numbers:
        await _kill_and_start(nemesis, numbers, after_s=0.0)


async def no_majority(nemesis: Nemesis) -> None:
    """Kill or pause a majority at once; clients stay connected to the other brokers."""
    async with nemesis.victims(len(nemesis.cluster.ids) // 2 + 1) as numbers:
        hold_s = nemesis.rng.choice((2.0, 6.0))
        if nemesis.rng.random() < NO_MAJORITY_KILLS:
            await _kill_and_start(nemesis, numbers, after_s=hold_s)
            return
        servers = [nemesis.cluster.servers[number] for number in numbers]
        for server in servers:
            server.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(hold_s)
        finally:
            for server in servers:
                server.signal(signal.SIGCONT)


async def _kill_and_start(nemesis: Nemesis, numbers: list[int], *, after_s: float) -> None:
    servers = [nemesis.cluster.servers[number] for number in numbers]
    await asyncio.gather(*(asyncio.to_thread(server.kill) for server in servers))
    await asyncio.sleep(after_s)
    await asyncio.gather(*map(nemesis.start, numbers))


async def stop(nemesis: Nemesis) -> None:
    """Send SIGTERM: the broker must hand over and end with code 0."""
    async with nemesis.victim() as number:
        server = nemesis.cluster.servers[number]
        if code := await asyncio.to_thread(server.stop):
            raise ViolationError(f"broker {number} ended with {code} after SIGTERM")
        await nemesis.hold(0.0, 1.0)
        await nemesis.start(number)


async def pause(nemesis: Nemesis) -> None:
    """Send SIGSTOP, for less or more than the session timeout, then SIGCONT."""
    leader = await nemesis.cluster.leader(nemesis.stream)
    async with nemesis.victim(nemesis.rng.choice((leader, None))) as number:
        server = nemesis.cluster.servers[number]
        server.signal(signal.SIGSTOP)
        try:
            await nemesis.hold(0.2, 1.0, 4.0)
        finally:
            server.signal(signal.SIGCONT)


async def isolate(nemesis: Nemesis) -> None:
    """Block all links between a broker and its peers; clients still reach it."""
    async with nemesis.victim() as number:
        out, into = nemesis.cluster.links(number)
        await _cut(nemesis, [*out, *into], seconds=(0.5, 2.0, 6.0, 15.0))


async def move(nemesis: Nemesis) -> None:
    """Reassign a partition off its leader, and back, while clients append and read."""
    cluster = nemesis.cluster
    leader = await cluster.leader(nemesis.stream)
    async with nemesis.victim(leader) as number:
        others = [other for other in cluster.ids if other != number]
        await cluster.reassign(nemesis.stream, 0, others)
        await nemesis.hold(0.5, 3.0)
        await cluster.reassign(nemesis.stream, 0, [number, *others])


async def mute(nemesis: Nemesis) -> None:
    """Block what a broker sends to its peers, but not what it receives."""
    async with nemesis.victim(await nemesis.cluster.leader(nemesis.stream)) as number:
        await _cut(nemesis, nemesis.cluster.links(number)[0])


async def deafen(nemesis: Nemesis) -> None:
    """Block what a broker receives from its peers, but not what it sends."""
    async with nemesis.victim(await nemesis.cluster.leader(nemesis.stream)) as number:
        await _cut(nemesis, nemesis.cluster.links(number)[1])


async def cut_one(nemesis: Nemesis) -> None:
    """Block one link in one direction; a third broker still reaches both."""
    proxies = nemesis.cluster.proxies
    await _cut(nemesis, [proxies[nemesis.rng.choice(sorted(proxies))]])


async def _cut(
    nemesis: Nemesis, links: list[TcpProxy], *, seconds: Sequence[float] = (0.5, 2.0, 6.0)
) -> None:
    for proxy in links:
        proxy.cut()
    try:
        await nemesis.hold(*seconds)
    finally:
        for proxy in links:
            proxy.resume()


async def flap(nemesis: Nemesis) -> None:
    """Reset the connections of some links a few times."""
    proxies = nemesis.cluster.proxies
    for _ in range(nemesis.rng.randint(1, 5)):
        for link in nemesis.rng.sample(sorted(proxies), 2):
            proxies[link].break_connections()
        await nemesis.hold(0.05, 0.5)


async def slow_links(nemesis: Nemesis) -> None:
    """Delay everything that a broker sends to its peers."""
    async with nemesis.victim() as number:
        out, _ = nemesis.cluster.links(number)
        for proxy in out:
            proxy.delay(nemesis.rng.uniform(0.01, 0.2))
        try:
            await nemesis.hold(1.0, 4.0)
        finally:
            for proxy in out:
                proxy.delay(0.0)


async def slow_disk(nemesis: Nemesis) -> None:
    """Delay each sync of a broker."""
    async with nemesis.victim() as number:
        knobs = nemesis.cluster.knobs[number]
        knobs.turn(sync_ms=nemesis.rng.choice((5, 50, 500)))
        try:
            await nemesis.hold(1.0, 4.0)
        finally:
            knobs.turn(sync_ms=0)


async def jump_clock(nemesis: Nemesis) -> None:
    """Set a broker's clock wrong, and right again."""
    async with nemesis.victim() as number:
        knobs = nemesis.cluster.knobs[number]
        knobs.turn(clock_ms=nemesis.rng.randint(-CLOCK_MS_MAX, CLOCK_MS_MAX))
        try:
            await nemesis.hold(0.5, 2.0)
        finally:
            knobs.turn(clock_ms=0)


async def fill_disk(nemesis: Nemesis) -> None:
    """Fill the disk of a broker and free it again; the broker may be killed meanwhile."""
    assert nemesis.small_disk is not None, "chosen only where there is one"
    filler = nemesis.small_disk / "filler"
    nemesis.full_until_s = math.inf
    await asyncio.to_thread(_fill, filler)
    try:
        await nemesis.hold(1.0, 4.0)
    finally:
        filler.unlink()
        nemesis.full_until_s = time.monotonic()


def _fill(path: Path) -> None:
    """Use up all free space."""
    piece = bytes(1 << 20)
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(piece)


Fault = Callable[[Nemesis], Awaitable[None]]
FAULTS: Final[dict[str, Fault]] = {
    "kill": kill,
    "kill-leader": kill_leader,
    "kill-all": kill_all,
    "no-majority": no_majority,
    "move": move,
    "stop": stop,
    "pause": pause,
    "isolate": isolate,
    "mute": mute,
    "deafen": deafen,
    "cut-one": cut_one,
    "flap": flap,
    "slow-links": slow_links,
    "slow-disk": slow_disk,
    "jump-clock": jump_clock,
    "fill-disk": fill_disk,
}


OF_LINKS: Final = ("isolate", "mute", "deafen", "cut-one", "flap", "slow-links")
OF_CLUSTERS: Final = (*OF_LINKS, "no-majority", "move")
"""Faults that need several brokers."""


def leaves_majority(names: Sequence[str], brokers: int) -> bool:
    """Return whether a majority of undisturbed brokers remains while these faults last."""
    if {"kill-all", "no-majority"} & set(names):
        return False
    return brokers - len(names) > brokers // 2  # each of the others disturbs one broker


def deal(names: Sequence[str], rng: random.Random) -> Iterator[list[str]]:
    """Yield the next one or two faults, without end, in random order."""
    while True:
        deck = rng.sample(names, len(names))
        while deck:
            count = 1 + (rng.random() < BOTH_SHARE)
            yield deck[:count]
            del deck[:count]


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[str]:
    """Mount a small file system in memory on a directory; yield why that failed, or ""."""
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        yield "mounting a small disk needs root"
        return
    size = f"size={SMALL_DISK_BYTES}"
    words = ["mount", "-t", "tmpfs", "-o", size, "strandline-chaos", str(path)]
    done = subprocess.run(words, capture_output=True, check=False, timeout=MOUNT_TIMEOUT_S)
    if done.returncode:
        yield f"no small disk: {done.stderr.decode().strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "-l", path], check=True, timeout=MOUNT_TIMEOUT_S)
