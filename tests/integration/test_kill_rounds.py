"""Kill -9 of the broker, its children or several, at random moments under load, many times.

``KILLS`` sets how often (4 by default, each victim once; `make kills` does more), ``KILL_SEED`` at
which moments and in which order.
"""

import asyncio
import os
import random
import signal

import pytest

import strandline
from strandline.testing import ProcessServer

ROUNDS = int(os.environ.get("KILLS", "4"))
SEED = int(os.environ.get("KILL_SEED", "1"))
VICTIMS = ("broker", "nats", "both", "sync")


def victims(choice):
    """Yield the brokers to kill: each once in every round, in random order."""
    while True:
        yield from choice.sample(VICTIMS, len(VICTIMS))


async def kill(server, victim, kit):
    """Kill the process, and start it if it does not restart itself."""
    if victim in ("nats", "both"):
        await kill_child(server, "nats-server", kit)
    if victim == "sync":
        await kill_child(server, "sync_program", kit)
    if victim in ("broker", "both"):
        await asyncio.to_thread(server.restart)


async def kill_child(server, program, kit):
    """Kill a child of the broker, which may be coming back just then."""
    await kit.until(lambda: kit.child_of(server.pid, program))
    os.kill(kit.child_of(server.pid, program), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(300 + ROUNDS * 20)
@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_acked_records_survive_every_kill(kit):
    """Each acked record is there once, where its ack said, in order; readers saw nothing else."""
    choice = random.Random(SEED)
    with ProcessServer() as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("disk", subject="disk.*", partitions=3)
            admin.create_stream("memory", subject="memory.*", acks="memory")
        publishers = [
            kit.Publisher(server.nats_url, "one-by-nats", "disk.a"),
            kit.Publisher(server.nats_url, "many-by-nats", "disk.b", window=32),
            kit.Publisher(server.ingest_url, "one-by-ingest", "disk.c"),
            kit.Publisher(server.ingest_url, "many-by-ingest", "disk.d", window=32),
            kit.Publisher(server.ingest_url, "unsynced", "memory.a", window=8),
        ]
        readers = [kit.Reader(server.flight, name) for name in ("disk", "memory")]
        async with kit.running(*publishers, *readers):
            for number, victim in zip(range(ROUNDS), victims(choice), strict=False):
                if number % 3:  # one in three kills comes before anybody is back
                    await kit.progress(publishers)
                await asyncio.sleep(choice.uniform(0.0, 0.1))
                await kill(server, victim, kit)
            await kit.progress(publishers)
        for reader, group in zip(readers, (publishers[:4], publishers[4:]), strict=True):
            log = await asyncio.to_thread(kit.read_log, server.flight, reader.stream)
            kit.judge(log, group)
            reader.judge(log)
            assert reader.seen
