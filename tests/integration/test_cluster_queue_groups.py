"""Streams of a queue group on three real brokers share the records, whichever brokers lead."""

import asyncio
import contextlib
import itertools
import time
from collections import deque

import nats
import pytest

import strandline
from strandline.errors import StrandlineError, StreamExistsError
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from tests.kit.nats_servers import routed_nats_servers

IDS = (1, 2, 3)
STREAMS = ("a", "b")
PATIENCE_S = 120
ANSWER_S = 10
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def make_brokers(directory, *, nats_urls):
    """Three brokers; each with its nats-server, or all at those of the user's."""
    ports = free_ports(6)
    peers = ",".join(f"{n}=127.0.0.1:{ports[n - 1]}" for n in IDS)
    meeting = ",".join(f"{n}=127.0.0.1:{ports[n + 2]}" for n in IDS)
    servers = {}
    for number in IDS:
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(ports[number - 1]))
        environment = {"STRANDLINE_NATS__SERVERS": ",".join(nats_urls)} if nats_urls else {}
        arguments += () if nats_urls else ("--nats-peers", meeting)
        servers[number] = ProcessServer(
            directory / f"broker-{number}", arguments=arguments, environment=environment
        )
    return servers


class Group:
    """Three brokers, two streams of a queue group, and the published records."""

    def __init__(self, servers, nats_urls):
        self.servers = servers
        self.nats_urls = nats_urls
        self.acked = {}
        """Value → where its ack said."""
        self.retried = set()
        self.failures = deque(maxlen=10)
        """Why publishes were not acknowledged, the latest last."""

    def running(self):
        return [server for server in self.servers.values() if server.is_running]

    async def ask(self, function):
        """Return a function's result for a client's broker, as soon as one answers."""

        def attempt():
            for server in self.running():
                with contextlib.suppress(StrandlineError), strandline.connect(server.flight) as c:
                    return [function(c)]
            return None

        return (await until(lambda: asyncio.to_thread(attempt), "no broker answers"))[0]

    async def create(self):
        for name in STREAMS:
            await self.ask(lambda client, n=name: make_stream(client, n))

    async def leaders(self):
        """Return the leader of each stream, once each has a live one."""
        numbers = {server.flight: number for number, server in self.servers.items()}

        def look(client):
            return {name: numbers.get(leader_of(client, name)) for name in STREAMS}

        async def settled():
            found = await self.ask(look)
            running = [n for n, server in self.servers.items() if server.is_running]
            return found if all(n in running for n in found.values()) else None

        return await until(settled, "there are no leaders")

    async def spread(self):
        """Return the leader of each stream, once they differ, which follows an election."""
        found = await self.leaders()
        return found if len(set(found.values())) == len(STREAMS) else None

    async def publish(self, *values):
        """Publish at one nats-server after the other, each value until it is acked."""
        turns = itertools.count()
        for value in values:
            deadline = time.monotonic() + PATIENCE_S
            while not await self._publish_once(next(turns), value):
                assert time.monotonic() < deadline, f"{value} is not taken: {self.failures}"
                self.retried.add(value)
                await asyncio.sleep(0.05)

    async def _publish_once(self, turn, value):
        urls = self.nats_urls or [s.nats_url for s in self.running()]
        try:
            # Stock nats-py may wait for ever for a server that is being stopped.
            async with asyncio.timeout(2 * ANSWER_S):
                ack = await self._publish_at(urls[turn % len(urls)], value.encode())
        except (nats.errors.Error, OSError, TimeoutError) as error:
            self.failures.append(repr(error))
            return False
        self.acked[value] = (ack.stream, ack.seq - 1)
        return True

    async def _publish_at(self, url, payload):
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=ANSWER_S)
        try:
            return await client.jetstream().publish("work", payload, timeout=ANSWER_S)
        finally:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await asyncio.wait_for(client.close(), ANSWER_S)

    async def judge(self):
        """Check that acked records are at their offsets, and that each is stored once."""
        logs = {}
        for name in STREAMS:
            column = await self.ask(lambda c, n=name: c.read(n).read_all()["value"].to_pylist())
            logs[name] = [value.decode() for value in column]
        for value, (stream, offset) in self.acked.items():
            assert logs[stream][offset] == value
        stored = [value for log in logs.values() for value in log]
        for value in self.acked.keys() - self.retried:
            assert stored.count(value) == 1, value
        return logs


def make_stream(client, name):
    """Create it, unless an attempt whose answer was lost has done so."""
    with contextlib.suppress(StreamExistsError):
        client.create_stream(name, subject="work", queue_group="g", replicas=3, min_isr=2)


def leader_of(client, name):
    """Where the leader of a stream is."""
    return client.stream_info(name).partitions[0].leader


async def until(attempt, what):
    """Something true that comes out at last."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await attempt()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)
    return found


@pytest.fixture(params=["their own nats-servers", "the user's nats-servers"])
async def group(request, tmp_path, kit):
    with contextlib.ExitStack() as stack:
        urls = []
        if request.param == "the user's nats-servers":
            routed = routed_nats_servers(tmp_path, 2, persist=kit.persist)
            urls = [server.url for server in stack.enter_context(routed)]
        servers = make_brokers(tmp_path, nats_urls=urls)
        try:
            await asyncio.gather(*(asyncio.to_thread(s.start) for s in servers.values()))
            group = Group(servers, urls)
            await group.create()
            yield group
        finally:
            for number, server in servers.items():
                server.kill()
                print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails


async def test_streams_on_several_brokers_share_their_subject(group):
    """Each record is stored once; a stop hands over, a kill loses nothing that was acked."""
    leaders = await until(group.spread, "leaders are not spread over the brokers")
    numbers = itertools.count()

    async def share():
        """Publish some; whether both streams have had any: a leader may not listen at once."""
        await group.publish(*(f"first-{n}" for n in itertools.islice(numbers, 24)))
        return {stream for stream, _ in group.acked.values()} == set(STREAMS)

    await until(share, "one stream gets nothing")
    await group.judge()

    stopped = leaders["a"]
    publishing = asyncio.create_task(group.publish(*(f"stop-{n}" for n in range(15))))
    await until(lambda: _is("stop-3" in group.acked), "nothing is taken")
    assert await asyncio.to_thread(group.servers[stopped].stop) == 0
    await publishing
    await group.judge()

    killed = (await group.leaders())["b"]
    await asyncio.to_thread(group.servers[stopped].start)
    await until(lambda: group.ask(has_copies), "the copies are not in sync again")
    group.servers[killed].kill()
    await group.publish(*(f"kill-{n}" for n in range(10)))
    await group.leaders()
    await group.judge()


async def _is(condition):
    return condition


def has_copies(client):
    """Whether all copies of both streams are in sync."""
    infos = [client.stream_info(name) for name in STREAMS]
    return all(len(part.in_sync) == len(IDS) for info in infos for part in info.partitions)
