"""Consumers of several partitions on three brokers, which lead different ones and are killed."""

import asyncio
import contextlib
import json
from collections import Counter

import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from strandline.api.cluster import CLUSTER_STATUS
from strandline.client.connection import BrokerConnection, Credentials
from strandline.process.ports import free_ports
from tests.kit.clusters import three_brokers

from .conftest import IDS, Asker, connected, shape, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
NS = 1_000_000_000
PARTITIONS = 6
ADMIN = "an-administrators-token-made-for-this-test"
AUTH = {"STRANDLINE_AUTH__ENABLED": "true", "STRANDLINE_AUTH__ADMIN_TOKEN": ADMIN}
SUBJECTS = 30


def status(server, token=None):
    credentials = Credentials(token=token) if token else None
    connection = BrokerConnection(server.flight, timeout_s=5, credentials=credentials)
    try:
        [found] = connection.action(CLUSTER_STATUS, None)
    finally:
        connection.close()
    return found


async def leaders(server, token=None):
    """The number of each partition's leader, once every partition has one."""
    found = {}

    async def is_known():
        partitions = (await asyncio.to_thread(status, server, token)).partitions
        found.update({p.partition: p.leader for p in partitions if p.stream == "orders"})
        return found and None not in found.values()

    await until(is_known)
    return found


async def until_all_live(server, token=None):
    async def are_live():
        brokers = (await asyncio.to_thread(status, server, token)).brokers
        return [each.state for each in brokers] == ["live"] * len(IDS)

    await until(are_live)


async def made(cluster, *, replicas, token=None):
    """Make the stream, with leaders at several brokers; return them."""
    await until_all_live(cluster[1], token)
    with strandline.connect(cluster[1].flight, token=token) as admin:
        settings = {"subject": "orders.>", "partition_by": "subject", "replicas": replicas}
        await asyncio.to_thread(admin.create_stream, "orders", partitions=PARTITIONS, **settings)
    found = await leaders(cluster[1], token)
    assert len(set(found.values())) > 1, found
    return found


async def publish(js, numbers):
    """Publish until each is acknowledged; one may be stored twice where its ack was lost."""
    for number in numbers:
        async with asyncio.timeout(90):
            while True:
                try:
                    await js.publish(f"orders.{number % SUBJECTS}", b"%d" % number, timeout=2)
                    break
                except (nats.errors.Error, js_errors.APIError):
                    await asyncio.sleep(0.05)


async def subscribed(js, name="d", **config):
    """A durable consumer, once the brokers have found each other."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await js.pull_subscribe(
                    "", name, stream="orders", config=ConsumerConfig(**config)
                )
            except (nats.errors.Error, js_errors.APIError):
                await asyncio.sleep(0.1)


class Reader:
    """Fetches and acknowledges, and judges what comes."""

    def __init__(self):
        self.acked = set()
        self.counts = {}

    async def until(self, wanted, sub, *, patience_s=90):
        async with asyncio.timeout(patience_s):
            while not wanted <= self.acked:
                with contextlib.suppress(nats.errors.Error, js_errors.APIError):
                    await self.fetch(sub)

    async def fetch(self, sub):
        for each in await sub.fetch(10, timeout=2):
            key, count = (each.data, each.metadata.sequence.stream), each.metadata.num_delivered
            assert key not in self.counts or each.data not in self.acked or count == 1
            assert count > self.counts.get(key, 0), "counts never go down"
            self.counts[key] = count
            with contextlib.suppress(nats.errors.Error):
                await each.ack_sync(timeout=1)
                self.acked.add(each.data)


def numbered(numbers):
    return {b"%d" % number for number in numbers}


async def test_partitions_of_every_broker_are_read(cluster):
    """Without a replica at the broker where the consumer works; at whichever broker one asks."""
    await made(cluster, replicas=1)
    clients = [await connected(server.nats_url) for server in cluster.values()]
    js = clients[0].jetstream()
    await publish(js, range(120))
    reader = Reader()
    sub = await subscribed(js)
    assert (await sub.consumer_info()).num_pending == 120
    for client in clients:
        bound = await client.jetstream().pull_subscribe_bind("d", stream="orders")
        await reader.fetch(bound)
    await reader.until(numbered(range(120)), sub)
    assert set(reader.counts.values()) == {1}
    places = sorted((sequence - 1) % PARTITIONS for _, sequence in reader.counts)
    assert len(set(places)) == PARTITIONS
    for index, client in enumerate(clients):
        ask = Asker(client)
        info = await ask("CONSUMER.INFO.orders.d")
        assert (info["num_pending"], info["delivered"]["stream_seq"]) == (0, 120)
        config = {"filter_subject": f"orders.{index}", "ack_policy": "none"}
        filtered = await ask.consumer("orders", f"f{index}", **config)
        assert filtered["num_pending"] == 4
        found = await ask.pull("orders", f"f{index}", {"batch": 9, "no_wait": True})
        assert [each.data for each in found[:-1]] == [b"%d" % n for n in range(index, 120, 30)]
        assert shape(found[-1]) == ("404", "No Messages")
        new = await ask.consumer("orders", f"n{index}", deliver_policy="new")
        assert new["num_pending"] == 0
    pulls = [
        asyncio.create_task(
            Asker(client).pull("orders", f"n{index}", {"batch": 30, "expires": 30 * NS})
        )
        for index, client in enumerate(clients)
    ]
    await asyncio.sleep(0.3)
    await publish(js, range(120, 150))
    for found in await asyncio.gather(*pulls):
        assert {each.data for each in found} == numbered(range(120, 150))
    for client in clients:
        await client.close()


async def test_redeliveries_of_partitions_led_elsewhere(cluster):
    """Refused and late messages come again from their leaders; purged ones do not."""
    at = await made(cluster, replicas=1)
    client = await connected(cluster[1].nats_url)
    js, ask = client.jetstream(), Asker(client)
    await publish(js, range(60))
    await subscribed(js, ack_wait=1, max_ack_pending=60)
    found = await ask.pull("orders", "d", 60)
    assert len(found) == 60
    for each in found[::2]:
        await client.request(each.reply, b"+ACK", timeout=5)
    number = next(n for n, leader in at.items() if leader != at[0])
    assert (await ask(f"STREAM.PURGE.orders:{number}"))["success"]
    purged = {each.data for each in found[1::2] if _partition(each) == number}
    assert purged
    left = {each.data for each in found[1::2]} - purged
    seen = {}
    async with asyncio.timeout(60):
        while left - set(seen):
            for each in await ask.pull("orders", "d", {"batch": 60, "expires": 2 * NS}):
                if each.headers is None:
                    seen[each.data] = int(each.reply.split(".")[4])
    assert set(seen) == left
    assert min(seen.values()) >= 2
    await client.close()


def _partition(message):
    return (int(message.reply.split(".")[5]) - 1) % PARTITIONS


async def test_a_merged_consumer_goes_on_when_brokers_are_killed(cluster):
    """First the one where it works, then another leader: nothing lost, counts never go down."""
    at = await made(cluster, replicas=3)
    stays = next(number for number in IDS if number != at[0])
    client = await connected(cluster[stays].nats_url)
    js = client.jetstream()
    await publish(js, range(60))
    sub, reader = await subscribed(js, ack_wait=1, max_ack_pending=30), Reader()
    await sub.fetch(10, timeout=5)  # never acknowledged
    await reader.fetch(sub)
    cluster[at[0]].kill()
    publishing = asyncio.create_task(publish(js, range(60, 120)))
    await reader.until(numbered(range(60)), sub)
    await publishing
    await reader.until(numbered(range(120)), sub)
    await asyncio.to_thread(cluster[at[0]].start)
    now = await leaders(cluster[stays])
    other = next(number for number in IDS if number not in (stays, now[0]))

    async def is_back():
        found = await leaders(cluster[stays])
        return other in found.values() or found[0] == stays

    await until(is_back)
    cluster[other].kill()
    publishing = asyncio.create_task(publish(js, range(120, 180)))
    await publishing
    await reader.until(numbered(range(180)), sub)
    info = await sub.consumer_info()
    assert info.num_ack_pending == 0
    assert info.num_pending == 0
    await client.close()


async def test_the_partitions_of_a_dead_broker_hold_up_no_others(cluster):
    """Their messages come once it is back."""
    at = await made(cluster, replicas=1)
    dead = next(leader for leader in at.values() if leader != at[0])
    client = await connected(cluster[at[0]].nats_url)
    js = client.jetstream()
    await publish(js, range(60))
    sub, reader = await subscribed(js, ack_wait=1, max_ack_pending=60), Reader()
    first = await Asker(client).pull("orders", "d", 60)
    assert len(first) == 60
    gone = {each.data for each in first if at[_partition(each)] == dead}
    cluster[dead].kill()
    await reader.until(numbered(range(60)) - gone, sub)
    assert not gone & reader.acked
    with pytest.raises(js_errors.ServiceUnavailableError):
        await sub.consumer_info()
    await asyncio.to_thread(cluster[dead].start)
    await reader.until(gone, sub)
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    await client.close()


async def test_gos_client_goes_on_when_brokers_are_killed(cluster, go_programs):
    """What it has acknowledged does not come again; it receives all."""
    at = await made(cluster, replicas=3)
    stays = next(number for number in IDS if number != at[0])
    client = await connected(cluster[stays].nats_url)
    js = client.jetstream()
    await publish(js, range(100))
    await subscribed(js, "warm")  # the coordinator of groups is there
    words = (go_programs / "merged", cluster[stays].nats_url, "orders", "160")
    program = await asyncio.create_subprocess_exec(*map(str, words), stdout=asyncio.subprocess.PIPE)
    lines = []

    async def read_until(wanted):
        async with asyncio.timeout(150):
            while wanted not in lines:
                lines.append((await program.stdout.readline()).decode().strip())
                assert lines[-1], lines[-5:]
                assert not lines[-1].startswith("failed"), lines[-1]

    try:
        await read_until("acked 40")
        cluster[at[0]].kill()
        await publish(js, range(100, 160))
        await read_until("all done")
    finally:
        if program.returncode is None:
            program.kill()
        await program.wait()
    await client.close()


async def test_a_merged_consumer_ends_when_partitions_are_added(cluster):
    """A sequence would mean another message. Pulls are told so, and it can be made again."""
    await made(cluster, replicas=1)
    client = await connected(cluster[1].nats_url)
    js, ask = client.jetstream(), Asker(client)
    await publish(js, range(12))
    await subscribed(js)
    assert len(await ask.pull("orders", "d", 12)) == 12
    pulling = asyncio.create_task(ask.pull("orders", "d", {"batch": 1, "expires": 20 * NS}))
    await asyncio.sleep(0.3)
    with strandline.connect(cluster[1].flight) as admin:
        await asyncio.to_thread(admin.add_partitions, "orders", PARTITIONS + 2)
        assert [shape(each)[:2] for each in await pulling] == [("409", "Consumer Deleted")]

        async def is_forgotten():
            found = json.loads((await client.request("$JS.API.CONSUMER.INFO.orders.d", b"")).data)
            groups = await asyncio.to_thread(lambda: [each.group for each in admin.groups.list()])
            return found.get("error", {}).get("err_code") == 10014 and "js/orders/d" not in groups

        await until(is_forgotten)
    info = await ask.consumer("orders", "d", durable_name="d")
    assert info["num_pending"] == 12
    found = await ask.pull("orders", "d", 12)
    assert Counter(each.data for each in found) == Counter(numbered(range(12)))
    await client.close()


@pytest.fixture
def guarded(tmp_path):
    """Three brokers that check access."""
    ports = free_ports(len(IDS))
    meeting = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, ports, strict=True))
    secret = tmp_path / "secret"
    secret.write_text("shared-by-the-servers-of-this-test")
    secret.chmod(0o600)
    environment = {**AUTH, "STRANDLINE_CLUSTER__NATS_SECRET_FILE": str(secret)}
    more = ("--nats-peers", meeting)
    with three_brokers(tmp_path, environment_of=lambda _: environment, more=more) as servers:
        yield servers


async def test_rules_hold_where_brokers_read_for_each_other(guarded):
    """Who may read the stream and use the consumer gets records, and nobody else hears them."""
    at = await made(guarded, replicas=1, token=ADMIN)
    with strandline.connect(guarded[1].flight, token=ADMIN) as admin:
        admin.access.grant("billing", "read", "stream", "orders")
        admin.access.grant("billing", "group", "group", "js/orders/d")
        admin.access.grant("shop", "publish", "subject", "orders.>")
        admin.access.grant("spy", "read", "subject", "orders.>")
        tokens = {each: admin.access.create_token(each) for each in ("billing", "shop", "spy")}
    # Where the consumer works, and where other partitions are led.
    urls = [guarded[at[0]].nats_url, *(server.nats_url for server in guarded.values())]
    shop = await nats.connect(
        urls[0], token=tokens["shop"], inbox_prefix="_INBOX_PRIVATE.shop", connect_timeout=10
    )
    await publish(shop.jetstream(), range(60))
    heard = []

    async def hear(message):
        heard.append(message.data)

    spies = [await nats.connect(url, token=tokens["spy"]) for url in urls]
    for each in spies:
        await each.subscribe("_INBOX.>", cb=hear)
        await each.flush()
    billing = await nats.connect(
        urls[0], token=tokens["billing"], inbox_prefix="_INBOX_PRIVATE.billing"
    )
    ask = Asker(billing)
    await subscribed(billing.jetstream())
    found = await ask.pull("orders", "d", {"batch": 60, "expires": 20 * NS})
    assert {each.data for each in found} == numbered(range(60))
    subject = f"$JS.API.STRANDLINE.READ.orders:{PARTITIONS - 1}"
    for client in (billing, spies[0]):
        with pytest.raises(nats.errors.TimeoutError):
            await client.request(subject, b'{"read_from": 0}', timeout=1)
    assert not [each for each in heard if each in numbered(range(60)) or b"orders." in each]
    for client in (shop, billing, *spies):
        await client.close()
