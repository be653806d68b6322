"""Publishers through crashes: acked records are there once, in order, whatever was killed."""

import asyncio
import os
import random
import signal
import time
from functools import partial

import nats
import nats.errors
import pytest

import strandline
from strandline.testing.process import ProcessServer
from tests.kit.processes import child_of, is_running
from tests.kit.waiting import until_async

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "2"))
PUBLISHERS = 3


class Publisher:
    """Publishes numbered records one after the other, each until it is acked."""

    def __init__(self, url, name):
        self.url = url
        self.name = name
        self.acked = []
        self.stopping = False

    async def run(self):
        client = await nats.connect(
            self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=ignore
        )
        js = client.jetstream()
        number = 0
        while not self.stopping:
            headers = {"Nats-Msg-Id": f"{self.name}-{number}"}
            payload = f"{self.name} {number}".encode()
            try:
                await js.publish("crash.x", payload, timeout=0.5, headers=headers)
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.02)
                continue
            self.acked.append(number)
            number += 1
        await client.close()


async def ignore(_):
    """Lost connections are expected here."""


@pytest.mark.slow
@pytest.mark.timeout(300 + ROUNDS * 30)
@pytest.mark.parametrize("way", ["nats_url", "ingest_url"])
async def test_acked_records_survive_kills(way):
    """Broker, nats-server or both are killed under load; acked records are there once, in order."""
    choice = random.Random(2)
    with ProcessServer() as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("crash", subject="crash.*")
        publishers = [Publisher(getattr(server, way), f"p{n}") for n in range(PUBLISHERS)]
        tasks = [asyncio.create_task(each.run()) for each in publishers]
        for victim in (choice.choice(("broker", "nats", "both")) for _ in range(ROUNDS)):
            await asyncio.sleep(choice.uniform(0.2, 1.0))
            if victim in ("nats", "both"):
                await until(lambda: child_of(server.pid))
                os.kill(child_of(server.pid), signal.SIGKILL)
            if victim in ("broker", "both"):
                await asyncio.to_thread(server.restart)
        before = [len(each.acked) for each in publishers]
        await until(
            lambda: all(len(p.acked) > b + 5 for p, b in zip(publishers, before, strict=True))
        )
        for each in publishers:
            each.stopping = True
        await asyncio.gather(*tasks)
        with strandline.connect(server.flight) as admin:
            values = [
                value.decode().split()
                for batch in admin.read("crash", columns=["value"])
                for value in batch.column("value").to_pylist()
            ]
    for each in publishers:
        stored = [int(number) for name, number in values if name == each.name]
        assert stored == sorted(set(stored)), "each once, in order"
        assert stored[: len(each.acked)] == each.acked, "all that was acked"


until = partial(until_async, seconds=90)


def test_nats_server_never_outlives_the_broker():
    """After kill -9 of the broker its nats-server ends, and a restart has the same ports."""
    with ProcessServer() as server:
        child, ports = child_of(server.pid), (server.nats_url, server.ingest_url)
        assert is_running(child)
        server.kill()
        deadline = time.monotonic() + 60
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(child)
        server.restart()
        assert (server.nats_url, server.ingest_url) == ports


async def test_sigterm_answers_what_was_accepted(flushed):
    """A graceful stop loses no ack: everything the broker took is answered before it ends."""
    with ProcessServer() as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("s", subject="s")
        client = await nats.connect(server.ingest_url, allow_reconnect=False, error_cb=ignore)
        js = client.jetstream()
        assert (await js.publish("s", b"0")).seq == 1
        futures = [await js.publish_async("s", b"%d" % number) for number in range(1, 300)]
        await flushed(client)
        assert await asyncio.to_thread(server.stop) == 0
        acks = await asyncio.wait_for(asyncio.gather(*futures), 60)
        assert [ack.seq for ack in acks] == list(range(2, 301))
        await client.close()
        server.start()
        with strandline.connect(server.flight) as admin:
            found = admin.read("s", columns=["value"])
            assert sum(batch.num_rows for batch in found) == 300
