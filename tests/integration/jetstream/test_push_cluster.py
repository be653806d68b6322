"""Push and ordered consumers on three brokers, while the leader of their stream is killed."""

import asyncio

import nats.errors
import pytest

from tests.kit.clusters import leader_of

from .conftest import IDS, Asker, connected, until
from .test_cluster import until_acked, until_made
from .test_push_consumers import Listener, texts, until_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
NS = 1_000_000_000


async def made_at_another(cluster, **settings):
    """A stream on three brokers, the number of its leader, and a client of another broker."""
    client = await connected(cluster[1].nats_url)
    await until_made(client.jetstream(), name="orders", subjects=["orders.>"], **settings)
    await until_acked(client.jetstream(), "orders.x", b"0")
    await client.close()
    leader = await asyncio.to_thread(leader_of, cluster)
    other = next(number for number in IDS if number != leader)
    return leader, await connected(cluster[other].nats_url)


async def until_consumer(ask, **config):
    """Make the durable consumer d, once the group coordinator is there."""

    async def is_made():
        return "error" not in await ask.consumer("orders", "d", **{"durable_name": "d", **config})

    await until(is_made)


async def test_an_ordered_consumer_goes_on_at_the_next_leader(cluster):
    """Every message once and in order, whatever the client had to do for it."""
    leader, client = await made_at_another(cluster, num_replicas=3)
    js, seen = client.jetstream(), []
    for number in range(1, 30):
        await until_acked(js, "orders.x", b"%d" % number)

    async def keep(message):
        seen.append(int(message.data))

    await js.subscribe("orders.>", cb=keep, ordered_consumer=True, idle_heartbeat=1)
    await until_that(lambda: len(seen) == 30)
    cluster[leader].kill()
    for number in range(30, 60):
        await until_acked(js, "orders.x", b"%d" % number)
    await until_that(lambda: seen[-1] == 59)
    # A publish may be stored twice where its ack was lost with the leader.
    assert sorted(set(seen)) == list(range(60))
    assert seen == sorted(seen)
    await client.close()


async def read_through_a_kill(cluster, *command, kinds, folder=None):
    """Let a program read a stream in order, whose leader is killed when it has read half of it."""
    leader, client = await made_at_another(cluster, num_replicas=3)
    js, sequence = client.jetstream(), 1
    while sequence < 40:
        sequence = (await until_acked(js, "orders.x", b"x")).seq
    words = (*command, client.connected_url.geturl(), "orders", "80")
    program = await asyncio.create_subprocess_exec(
        *map(str, words), cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    lines = []

    async def read_until(*wanted):
        async with asyncio.timeout(120):
            while not set(wanted) <= set(lines):
                lines.append((await program.stdout.readline()).decode().strip())
                assert lines[-1], lines[-5:]
                assert not lines[-1].startswith("failed"), lines[-1]

    try:
        await read_until(*(f"{kind} 40" for kind in kinds))
        cluster[leader].kill()
        while sequence < 80:
            sequence = (await until_acked(js, "orders.x", b"x")).seq
        await read_until(*(f"{kind} 80" for kind in kinds), "all done")
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()
    await client.close()


async def test_gos_ordered_consumers_go_on_at_the_next_leader(cluster, go_programs):
    """Pulled and pushed, without a gap."""
    await read_through_a_kill(cluster, go_programs / "ordered", kinds=("pull", "push"))


async def test_javascripts_ordered_consumers_go_on_at_the_next_leader(cluster, javascript_programs):
    """Pulled; its heartbeats of pushes, 30 s, cannot be set."""
    command = ("node", "ordered.mjs")
    await read_through_a_kill(cluster, *command, kinds=("pull",), folder=javascript_programs)


async def test_a_durable_push_consumer_goes_on_at_the_next_leader(cluster):
    """Its receiver only listens; nobody asks the next leader for the consumer."""
    leader, client = await made_at_another(cluster, num_replicas=3)
    js, listener = client.jetstream(), Listener(client)
    for number in range(1, 20):
        await until_acked(js, "orders.x", b"%d" % number)
    config = {"durable_name": "d", "deliver_subject": listener.subject, "ack_wait": 2 * NS}
    await listener.start()
    await until_consumer(Asker(client), **config)
    await listener.until(lambda found: len(texts(found)) >= 20)
    done = set()
    for each in listener.found[:10]:
        await client.request(each.reply, b"+ACK", timeout=10)
        done.add(each.data.decode())
    listener.found.clear()
    cluster[leader].kill()
    await listener.until(lambda found: len(set(texts(found))) == 10)
    assert set(texts(listener.found)) == {str(number) for number in range(20)} - done
    assert all(int(each.reply.split(".")[4]) >= 2 for each in listener.found)
    await until_acked(js, "orders.x", b"later")
    await listener.until(lambda found: "later" in texts(found))
    await client.close()


async def test_acknowledgements_are_heard_by_the_leader_only(cluster):
    """One broker subscribes to them; when it is gone the next one does."""
    leader, client = await made_at_another(cluster, num_replicas=3)
    ask = Asker(client)
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("$JS.ACK.orders.d.1.1.1.1.1", b"+ACK", timeout=5)
    await until_consumer(ask)
    [message] = await ask.pull("orders", "d", {"expires": 5 * NS}, seconds=6)
    inbox = client.new_inbox()
    answers = Listener(client)
    answers.subject = inbox
    await answers.start()
    await client.publish(message.reply, b"+WPI", reply=inbox)
    await answers.until(lambda found: len(found) == 1)
    cluster[leader].kill()

    async def is_heard():
        try:
            await client.request(message.reply, b"+ACK", timeout=2)
        except nats.errors.Error:
            return False
        return True

    await until(is_heard)
    assert len(answers.found) == 1
    await client.close()
