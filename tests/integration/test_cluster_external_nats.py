"""Three brokers at a NATS cluster of the user's: one of its servers is lost under load."""

import asyncio
import contextlib

import nats
import nats.errors
import nats.js.errors
import pytest

import strandline
from tests.kit.clusters import IDS, leader_of, read_at, status
from tests.kit.nats_servers import routed_nats_servers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def nats_servers(tmp_path, kit):
    with routed_nats_servers(tmp_path, len(IDS), persist=kit.persist) as servers:
        yield servers


@pytest.fixture
def environment_of(nats_servers):
    """Return a broker's settings: all nats-servers, starting with another one."""
    urls = [server.url for server in nats_servers]

    def environment_of(number):
        first = number - 1
        return {"STRANDLINE_NATS__SERVERS": ",".join([*urls[first:], *urls[:first]])}

    return environment_of


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_publishers_outlive_a_nats_server(cluster, nats_servers, kit):
    """The leader's is killed and returns: acked records are stored once, at every broker."""

    def create():
        with strandline.connect(cluster[2].flight) as client:
            client.create_stream("orders", subject="orders.*", replicas=3, min_isr=2)

    def leader():
        found = status(cluster[3])
        assert len(found.isr) == len(IDS)
        return found.leader

    await asyncio.to_thread(kit.persist, create)
    victim = nats_servers[await asyncio.to_thread(kit.persist, leader) - 1]
    publishers = [
        kit.Publisher(server.url, f"by-{number}", f"orders.{number}", window=window)
        for number, (server, window) in enumerate(zip(nats_servers, (1, 8, 1), strict=True))
    ]
    others = [p for p in publishers if p.url != victim.url]
    async with kit.running(*publishers):
        await kit.progress(publishers)
        victim.kill()
        await kit.progress(others)
        victim.start()
        await kit.progress(publishers)
    count = sum(publisher.sent for publisher in publishers)
    logs = []
    for server in cluster.values():
        await asyncio.to_thread(read_at, server, kit, count=count)
        logs.append(await asyncio.to_thread(kit.read_log, server.flight, "orders"))
    kit.judge(logs[0], publishers)
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_publish_that_nobody_can_store_is_answered(cluster, nats_servers, kit):
    """While the only replica's broker is down, stock publishers get 503 and not silence."""

    def create():
        with strandline.connect(cluster[2].flight) as client:
            client.create_stream("orders", replicas=1)

    await asyncio.to_thread(kit.persist, create)
    leader = await asyncio.to_thread(kit.persist, lambda: leader_of(cluster))
    cluster[leader].kill()
    client = await nats.connect(nats_servers[0].url)
    error = None
    async with asyncio.timeout(60):
        while error is None:
            with contextlib.suppress(nats.errors.TimeoutError):
                error = await rejection_of(client)
    await client.close()
    assert error.description == "orders/0 has no leader now; retry"


async def rejection_of(client):
    """Publish once, while it cannot be stored; return the rejection."""
    with pytest.raises(nats.js.errors.ServiceUnavailableError) as caught:
        await client.jetstream().publish("orders", b"x", timeout=0.5)
    return caught.value
