"""The JetStream API on three brokers: one of them answers, whichever is asked."""

import asyncio
import json

import nats
import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from tests.kit.clusters import leader_of

from .conftest import IDS, Asker, connected, ended_by_its_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SETTLE_S = 1.0


async def until_made(js, **settings):
    """Create a stream, once the brokers have found each other."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await js.add_stream(**settings)
            except (nats.errors.Error, js_errors.APIError):
                await asyncio.sleep(0.1)


async def answers_to(client, operation, body=None, *, prefix="$JS.API."):
    """Return every answer to one request."""
    inbox = client.new_inbox()
    found = await client.subscribe(inbox)
    payload = json.dumps(body).encode() if body is not None else b""
    await client.publish(prefix + operation, payload, reply=inbox)
    answers = []
    try:
        answers.append(await found.next_msg(timeout=10))
        while True:
            answers.append(await found.next_msg(timeout=SETTLE_S))
    except nats.errors.TimeoutError:
        pass
    await found.unsubscribe()
    return [json.loads(answer.data) for answer in answers]


async def test_one_broker_answers_each_request(cluster):
    """At every broker's server, each operation has one answer, and all the same one."""
    clients = [await connected(server.nats_url) for server in cluster.values()]
    js = clients[0].jetstream()
    await until_made(js, name="orders", subjects=["orders.>"], num_replicas=3)
    for number in range(4):
        await until_acked(js, "orders.x", b"%d" % number)
    requests = {
        "INFO": None,
        "STREAM.NAMES": None,
        "STREAM.LIST": None,
        "STREAM.INFO.orders": None,
        "STREAM.INFO.nope": None,
        "STREAM.MSG.GET.orders": {"seq": 4},
        "STREAM.CREATE.orders": {"name": "orders", "subjects": ["orders.>"], "num_replicas": 3},
        "STREAM.UPDATE.orders": {"name": "orders", "subjects": ["orders.>"], "num_replicas": 3},
        "BOGUS": None,
    }
    for operation, body in requests.items():
        at_each = await asyncio.gather(*(answers_to(each, operation, body) for each in clients))
        assert [len(found) for found in at_each] == [1] * len(clients), operation
        for (found,) in at_each:
            state = found.get("state")
            assert state is None or state["messages"] == 4, operation
    listed = (await answers_to(clients[2], "STREAM.LIST"))[0]["streams"]
    assert [(each["config"]["name"], each["state"]["last_seq"]) for each in listed] == [
        ("orders", 4)
    ]
    assert len(await answers_to(clients[1], "STREAM.PURGE.orders", {"keep": 1})) == 1
    state = (await clients[2].jetstream().stream_info("orders")).state
    assert (state.messages, state.first_seq) == (1, 4)
    assert len(await answers_to(clients[1], "STREAM.DELETE.orders")) == 1
    with pytest.raises(js_errors.NotFoundError):
        await clients[0].jetstream().stream_info("orders")
    for client in clients:
        await client.close()


async def until_acked(js, subject, payload):
    """Publish until it is acknowledged: the leader may have just been chosen."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await js.publish(subject, payload, timeout=2)
            except (nats.errors.Error, js_errors.APIError):
                await asyncio.sleep(0.1)


async def test_streams_on_every_broker_are_listed(cluster):
    """The controller asks the leaders for the state of their streams."""
    client = await connected(cluster[1].nats_url)
    js = client.jetstream()
    for number in range(6):
        await until_made(js, name=f"S{number}", subjects=[f"s{number}"])
        await until_acked(js, f"s{number}", b"x")
    async with asyncio.timeout(60):
        while True:
            listed = (await answers_to(client, "STREAM.LIST"))[0]
            if "missing" not in listed:
                break
    found = {each["config"]["name"]: each["state"]["messages"] for each in listed["streams"]}
    assert found == {f"S{number}": 1 for number in range(6)}
    await client.close()


async def test_the_next_leader_answers(cluster):
    """When the leader is killed, its successor answers, with all that was acked."""
    client = await connected(cluster[1].nats_url)
    await until_made(client.jetstream(), name="orders", subjects=["orders.>"], num_replicas=3)
    for number in range(10):
        await until_acked(client.jetstream(), "orders.x", b"%d" % number)
    await client.close()
    leader = await asyncio.to_thread(leader_of, cluster)
    cluster[leader].kill()
    survivor = next(number for number in IDS if number != leader)
    client = await connected(cluster[survivor].nats_url)
    async with asyncio.timeout(60):
        while True:
            try:
                info = await client.jetstream().stream_info("orders")
                break
            except (nats.errors.Error, js_errors.APIError):
                await asyncio.sleep(0.1)
    assert (info.state.messages, info.state.last_seq) == (10, 10)
    assert (await client.jetstream().get_msg("orders", 10)).data == b"9"
    await client.close()


async def fetched(client, consumer, count, *, seen):
    """Fetch and acknowledge until this many different messages were seen, across failovers."""
    async with asyncio.timeout(120):
        while len(seen) < count:
            try:
                await fetch_some(client, consumer, seen)
            except (nats.errors.Error, js_errors.APIError, js_errors.Error):
                await asyncio.sleep(0.2)


async def fetch_some(client, consumer, seen):
    """Fetch once, acknowledge, and note how often each message was delivered."""
    sub = await client.jetstream().pull_subscribe_bind(consumer, stream="orders")
    for each in await sub.fetch(10, timeout=3):
        delivered = each.metadata.num_delivered
        assert delivered > seen.get(each.data, 0), "counts never go down"
        seen[each.data] = delivered
        await each.ack_sync(timeout=3)


async def test_a_consumer_continues_at_the_next_leader(cluster):
    """Acknowledged messages are not repeated; others are, with their count."""
    client = await connected(cluster[1].nats_url)
    js = client.jetstream()
    await until_made(js, name="orders", subjects=["orders.>"], num_replicas=3)
    for number in range(30):
        await until_acked(js, "orders.x", b"%d" % number)
    config = ConsumerConfig(ack_wait=1)
    async with asyncio.timeout(90):
        while True:
            try:
                sub = await js.pull_subscribe("", "d", stream="orders", config=config)
                break
            except (nats.errors.Error, js_errors.APIError):
                await asyncio.sleep(0.2)
    messages = await sub.fetch(10, timeout=10)
    done = {each.data for each in messages[::2]}
    for each in messages[::2]:
        await each.ack_sync(timeout=10)
    await client.close()
    leader = await asyncio.to_thread(leader_of, cluster)
    cluster[leader].kill()
    survivor = next(number for number in IDS if number != leader)
    client = await connected(cluster[survivor].nats_url)
    seen = {}
    await fetched(client, "d", 25, seen=seen)
    assert set(seen) == {b"%d" % number for number in range(30)} - done
    assert all(seen[each.data] >= 2 for each in messages[1::2])
    info = await client.jetstream().consumer_info("orders", "d")
    assert (info.ack_floor.stream_seq, info.num_ack_pending) == (30, 0)
    assert info.delivered.consumer_seq >= 35
    await client.close()


async def test_consumers_work_wherever_they_are_asked_for(cluster):
    """At each broker's server: one answer, and the messages come there, from any leader."""
    clients = [await connected(server.nats_url) for server in cluster.values()]
    for number in range(3):
        await until_made(clients[0].jetstream(), name=f"S{number}", subjects=[f"s{number}"])
        await until_acked(clients[0].jetstream(), f"s{number}", b"x")
    for index, client in enumerate(clients):
        for number in range(3):
            name = f"d{index}"
            config = {"durable_name": name, "ack_policy": "explicit"}
            body = {"stream_name": f"S{number}", "config": {**config, "num_replicas": 3}}
            refused = await answers_to(client, f"CONSUMER.DURABLE.CREATE.S{number}.{name}", body)
            assert [each["error"]["err_code"] for each in refused] == [10126]
            body = {"stream_name": f"S{number}", "config": config}
            path = f"CONSUMER.DURABLE.CREATE.S{number}.{name}"
            answers = await answers_to(client, path, body)
            assert [each.get("name") for each in answers] == [name], answers
            sub = await client.jetstream().pull_subscribe_bind(name, stream=f"S{number}")
            [message] = await sub.fetch(1, timeout=10)
            assert message.data == b"x"
            await message.ack_sync(timeout=10)
    with strandline.connect(cluster[1].flight) as admin:
        for number in range(3):
            await ended_by_its_group(Asker(clients[0]), admin, f"S{number}", "d1")
    for client in clients:
        await client.close()
