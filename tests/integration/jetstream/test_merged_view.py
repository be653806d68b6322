"""Pull consumers of a stream of several partitions, under the stream's own name."""

import asyncio
import json
from collections import Counter

import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy

import strandline
from strandline.testing.server import Server

from .conftest import PATIENCE_S, Asker, connected, ended_by_its_group, floor_of, shape, used_up

NS = 1_000_000_000
PARTITIONS = 3
SUBJECTS = 12


async def publish(nc, count, *, stream="orders"):
    """Publish numbered messages on several subjects, each of which has a partition."""
    js = nc.jetstream()
    acks = [
        await js.publish(f"{stream}.{number % SUBJECTS}", b"%d" % number) for number in range(count)
    ]
    return Counter(ack.seq for ack in acks)


@pytest.fixture
def server(tmp_path):
    """A broker with a stream of several partitions."""
    with Server(nats=True, data_dir=tmp_path) as url:
        with strandline.connect(url.flight) as admin:
            admin.create_stream(
                "orders", subject="orders.>", partitions=PARTITIONS, partition_by="subject"
            )
        yield url


@pytest.fixture
async def nc(server):
    """A stock client."""
    client = await connected(server.nats_url)
    yield client
    await client.close()


async def all_of(sub, count, *, patience_s=PATIENCE_S):
    """Fetch and acknowledge messages until this many different ones have come."""
    seen = {}
    async with asyncio.timeout(patience_s):
        while len(seen) < count:
            for each in await sub.fetch(10, timeout=5):
                seen[each.data] = each
                await each.ack_sync(timeout=5)
    return seen


async def test_a_durable_consumer_receives_every_partition(nc):
    """Each message once; sequences are unique, and a partition's messages stay in order."""
    await publish(nc, 100)
    js = nc.jetstream()
    sub = await js.pull_subscribe("", "d", stream="orders")
    seen = await all_of(sub, 100)
    assert set(seen) == {b"%d" % number for number in range(100)}
    places = [each.metadata.sequence for each in seen.values()]
    assert [place.consumer for place in places] == list(range(1, 101)), "without a gap"
    assert len({place.stream for place in places}) == 100
    for number in range(PARTITIONS):
        mine = [m for m in seen.values() if (m.metadata.sequence.stream - 1) % PARTITIONS == number]
        offsets = [(m.metadata.sequence.stream - 1) // PARTITIONS for m in mine]
        assert offsets == list(range(len(mine)))
        for offset in offsets[:3]:
            found = await js.get_msg(f"orders:{number}", offset + 1)
            assert found.data == mine[offset].data, "the sequence says where the message is"
    last = list(seen.values())[-1]
    assert last.metadata.num_pending == 0
    info = await js.consumer_info("orders", "d")
    state = (await js.stream_info("orders")).state
    assert info.delivered.stream_seq == info.ack_floor.stream_seq == state.last_seq == 100
    assert (info.num_pending, info.num_ack_pending, state.consumer_count) == (0, 0, 1)


async def test_what_is_published_meanwhile_comes_at_once(nc):
    """A waiting pull receives it, whichever partition it belongs to."""
    ask = Asker(nc)
    await ask.consumer("orders", "w", durable_name="w")
    pulling = asyncio.create_task(ask.pull("orders", "w", {"batch": 24, "expires": 20 * NS}))
    await asyncio.sleep(0.2)
    await publish(nc, 24)
    found = await pulling
    assert {each.data for each in found} == {b"%d" % number for number in range(24)}
    statuses = await ask.pull("orders", "w", {"batch": 5, "no_wait": True})
    assert [shape(each) for each in statuses] == [("404", "No Messages")]


async def test_pending_messages_are_summed(nc):
    """In the answer to the creation, with messages, and afterwards."""
    await publish(nc, 36)
    ask = Asker(nc)
    made = await ask.consumer("orders", "p", durable_name="p")
    assert made["num_pending"] == 36
    found = await ask.pull("orders", "p", 36)
    assert [int(each.reply.split(".")[-1]) for each in found] == list(range(35, -1, -1))
    await publish(nc, 6)
    info = await ask("CONSUMER.INFO.orders.p")
    assert (info["num_pending"], info["num_ack_pending"]) == (6, 36)
    filtered = await ask.consumer("orders", "f", filter_subject="orders.1")
    assert filtered["num_pending"] == 4
    found = await ask.pull("orders", "f", {"batch": 10, "no_wait": True})
    assert [shape(each) for each in found] == ["1", "13", "25", "1", ("404", "No Messages")]
    info = await ask("CONSUMER.INFO.orders.f")
    assert (info["num_pending"], info["delivered"]["stream_seq"]) == (0, 42)


async def test_every_partition_takes_every_acknowledgement(nc):
    """Refused, later, never, still at work; counts go up, and the limit of pending ones holds."""
    await publish(nc, 8)
    config = ConsumerConfig(ack_wait=1, max_ack_pending=8)
    sub = await nc.jetstream().pull_subscribe("", "d", stream="orders", config=config)
    first = await sub.fetch(8, timeout=5)
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.2)
    await first[0].nak()
    await first[1].nak(delay=0.3)
    await first[2].term()
    await first[3].in_progress()
    for each in first[4:]:
        await each.ack_sync()
    seen = Counter()
    while len(seen) < 3:
        for again in await sub.fetch(3, timeout=10):
            assert again.metadata.num_delivered == 2
            seen[again.data] += 1
            await again.ack_sync()
    assert set(seen) == {first[0].data, first[1].data, first[3].data}
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 8)
    assert info.delivered.consumer_seq == 11


async def test_every_partition_without_acknowledgements(nc):
    """Every message once."""
    await publish(nc, 30)
    ask = Asker(nc)
    await ask.consumer("orders", "n", ack_policy="none")
    found = await ask.pull("orders", "n", {"batch": 40, "no_wait": True})
    assert Counter(each.data for each in found[:-1]) == Counter(b"%d" % n for n in range(30))
    info = await ask("CONSUMER.INFO.orders.n")
    assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (30, 0)


async def test_where_a_merged_consumer_begins(nc):
    """With all, with new messages, at a time."""
    await publish(nc, 20)
    ask = Asker(nc)
    first = await ask("STREAM.MSG.GET.orders:0", {"seq": 1})
    new = await ask.consumer("orders", "new", deliver_policy="new")
    assert (new["num_pending"], new["delivered"]["stream_seq"]) == (0, 20)
    since = {"deliver_policy": "by_start_time", "opt_start_time": first["message"]["time"]}
    assert (await ask.consumer("orders", "since", **since))["num_pending"] >= 10
    await publish(nc, 3)
    found = await ask.pull("orders", "new", {"batch": 9, "no_wait": True})
    assert {each.data for each in found[:-1]} == {b"0", b"1", b"2"}


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"deliver_subject": "_INBOX.x"}, "a push consumer"),
        ({"ack_policy": "all"}, "ack_policy all"),
        ({"deliver_policy": "last"}, "deliver_policy last"),
        (
            {"deliver_policy": "last_per_subject", "filter_subject": "orders.>"},
            "deliver_policy last_per_subject",
        ),
        (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 5},
            "deliver_policy by_start_sequence",
        ),
        ({"replay_policy": "original"}, "replay_policy original"),
        ({"ack_policy": "none", "mem_storage": True, "num_replicas": 1}, "an ordered consumer"),
    ],
)
async def test_what_needs_an_order_is_rejected(nc, config, what):
    """The error names what to use in its place."""
    code, number, text = (await _error(Asker(nc), config)).values()
    assert (code, number) == (400, 10003)
    assert what in text
    assert text.endswith("use orders:0 to orders:2")


async def _error(ask, config):
    found = await ask.consumer("orders", "x", **config)
    return {name: found["error"][name] for name in ("code", "err_code", "description")}


async def test_merged_consumers_are_listed_updated_and_deleted(nc):
    """Those of the stream's own name, beside those of its partitions."""
    ask = Asker(nc)
    await ask.consumer("orders", "whole", durable_name="whole")
    await ask.consumer("orders:1", "part", durable_name="part")
    assert (await ask("CONSUMER.NAMES.orders"))["consumers"] == ["whole"]
    assert (await ask("CONSUMER.NAMES.orders:1"))["consumers"] == ["part"]
    counts = {
        each["config"]["name"]: each["state"]["consumer_count"]
        for each in (await ask("STREAM.LIST"))["streams"]
    }
    assert counts == {"orders": 1, "orders:0": 0, "orders:1": 1, "orders:2": 0}
    assert (await ask("INFO"))["consumers"] == 2
    await publish(nc, 24)
    updated = await ask.consumer("orders", "whole", durable_name="whole", filter_subject="orders.7")
    assert updated["num_pending"] == 2
    found = await ask.pull("orders", "whole", {"batch": 5, "no_wait": True})
    assert [each.data for each in found[:-1]] == [b"7", b"19"]
    assert (await ask("CONSUMER.DELETE.orders.whole"))["success"]
    code, number, _ = await ask.error("CONSUMER.INFO.orders.whole")
    assert (code, number) == (404, 10014)


async def test_deleting_the_group_deletes_a_merged_consumer(server, nc):
    """At once, its waiting pulls, too."""
    ask = Asker(nc)
    await ask.consumer("orders", "d", durable_name="d")
    with strandline.connect(server.flight) as admin:
        await ended_by_its_group(ask, admin, "orders", "d")


async def test_deleted_messages_of_a_partition_are_skipped(nc):
    """A purge of one partition drops its pending messages; the others' come again."""
    await publish(nc, 24)
    ask = Asker(nc)
    await ask.consumer("orders", "d", durable_name="d", ack_wait=NS // 2)
    found = await ask.pull("orders", "d", 10)
    purged = {each.data for each in found if _partition(each) == 1}
    assert (await ask("STREAM.PURGE.orders:1"))["success"]
    seen = {each.data for each in await ask.pull("orders", "d", {"batch": 99, "expires": 2 * NS})}
    kept = {each.data for each in found} - purged
    assert kept <= seen
    assert not purged & seen
    info = await ask("CONSUMER.INFO.orders.d")
    assert info["num_pending"] == 0


def _partition(message):
    return (int(message.reply.split(".")[5]) - 1) % PARTITIONS


async def test_the_state_of_every_partition_adds_up(nc):
    """The first sequence follows what was deleted, in each partition and so in their sums."""
    ask = Asker(nc)

    async def state():
        found = (await ask("STREAM.INFO.orders"))["state"]
        return tuple(found[name] for name in ("messages", "first_seq", "last_seq", "num_deleted"))

    assert await state() == (0, 0, 0, 0)
    await publish(nc, 60)
    assert await state() == (60, 1, 60, 0)
    for number in range(PARTITIONS - 1):
        assert (await ask(f"STREAM.PURGE.orders:{number}", {"keep": 2}))["success"]
    [left] = [(await ask("STREAM.INFO.orders:2"))["state"]["messages"]]
    assert await state() == (4 + left, 60 - 4 - left + 1, 60, 0)
    for number in range(PARTITIONS):
        assert (await ask(f"STREAM.PURGE.orders:{number}"))["success"]
    assert await state() == (0, 61, 60, 0), "as of a purged stream of JetStream"


async def test_the_floor_of_every_partition_stays_when_all_deliveries_are_used_up(server, nc):
    """As that of a consumer of one partition; its group's committed offsets, too."""
    await publish(nc, 12)
    ask = Asker(nc)
    await used_up(ask, "orders", 12)
    with strandline.connect(server.flight) as admin:
        assert set(admin.groups.info("js/orders/u").positions["orders"].values()) == {0}
    await publish(nc, 6)
    found = await ask.pull("orders", "u", 6)
    for each in found:
        await nc.request(each.reply, b"+ACK")
    assert floor_of(await ask("CONSUMER.INFO.orders.u")) == (30, 18)


async def test_a_merged_consumer_survives_a_restart(tmp_path):
    """Positions, pending messages and their counts; the group has a position per partition."""
    with Server(nats=True, data_dir=tmp_path) as url:
        with strandline.connect(url.flight) as admin:
            admin.create_stream("orders", subject="orders.>", partitions=3, partition_by="subject")
        client = await connected(url.nats_url)
        await publish(client, 24)
        config = ConsumerConfig(ack_wait=1)
        sub = await client.jetstream().pull_subscribe("", "d", stream="orders", config=config)
        messages = await sub.fetch(20, timeout=5)
        for each in messages[::2]:
            await each.ack_sync()
        await client.close()
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        js = client.jetstream()
        info = await js.consumer_info("orders", "d")
        assert (info.num_ack_pending, info.num_pending) == (10, 4)
        sub = await js.pull_subscribe_bind("d", stream="orders")
        seen = {}
        while len(seen) < 14:
            for each in await sub.fetch(20, timeout=10):
                assert each.data not in seen
                seen[each.data] = each.metadata.num_delivered
                await each.ack_sync()
        again = {each.data for each in messages[1::2]}
        assert {data for data, count in seen.items() if count == 2} == again
        with strandline.connect(url.flight) as admin:
            [group] = [each for each in admin.groups.list() if each.group == "js/orders/d"]
            [(_, positions)] = admin.groups.info(group.group).positions.items()
            assert sum(positions.values()) == 24
            assert sorted(positions) == [0, 1, 2]
        await client.close()


async def test_a_deleted_streams_merged_consumers_are_forgotten(server, nc):
    """Another stream of the name has none of them."""
    ask = Asker(nc)
    await ask.consumer("orders", "d", durable_name="d")
    assert (await ask("STREAM.DELETE.orders"))["success"]
    with strandline.connect(server.flight) as admin:
        assert not [each.group for each in admin.groups.list() if "orders" in each.group]
        admin.create_stream("orders", subject="orders.>", partitions=2, partition_by="subject")
    assert (await ask("CONSUMER.NAMES.orders"))["consumers"] == []


async def test_many_messages_of_every_partition(nc):
    """None is lost or comes twice while more are published."""
    js = nc.jetstream()
    sub = await js.pull_subscribe("", "d", stream="orders")
    publishing = asyncio.create_task(publish(nc, 2_000))
    seen = Counter()
    async with asyncio.timeout(120):
        while sum(seen.values()) < 2_000:
            try:
                found = await sub.fetch(100, timeout=5)
            except nats.errors.TimeoutError:
                continue
            for each in found:
                seen[each.data] += 1
                await each.ack()
    await publishing
    assert set(seen.values()) == {1}
    info = await sub.consumer_info()
    assert (info.num_pending, info.delivered.consumer_seq) == (0, 2_000)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"read_from": -5}',
        b'{"read_from": 9223372036854775807}',
        b'{"offsets": [-1, 99999]}',
        b'{"offsets": [0, 0, 1]}',
        b'{"count_after": -9}',
        b'{"end_not": -1}',
        b'{"filters": ["a..b"], "read_from": 0}',
        (
            b'{"begin": {"name": "x", "deliver_policy": "by_start_time", "ack_policy": "none", '
            b'"max_deliver": 1, "replay_policy": "instant", "num_replicas": 1, '
            b'"opt_start_time": "x"}}'
        ),
        b"[]",
    ],
)
async def test_any_request_between_brokers_is_answered(nc, body):
    """Also one that no broker would send."""
    await publish(nc, 3)
    for name in ("orders:0", "orders", "nope"):
        found = await nc.request(f"$JS.API.STRANDLINE.READ.{name}", body, timeout=5)
        assert found.data
        if name != "orders:0":
            assert json.loads(found.data)["error"]["err_code"] in (10003, 10025, 10059)
    sub = await nc.jetstream().pull_subscribe("", "d", stream="orders")
    assert len(await sub.fetch(3, timeout=5)) == 3


async def test_new_messages_of_every_partition(nc):
    """By a client that asks for them."""
    await publish(nc, 5)
    config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    sub = await nc.jetstream().pull_subscribe("", "n", stream="orders", config=config)
    await publish(nc, 2)
    assert {each.data for each in await sub.fetch(2, timeout=5)} == {b"0", b"1"}
    with pytest.raises(js_errors.BadRequestError, match="use orders:0 to orders:2"):
        await nc.jetstream().subscribe("orders.>", stream="orders", ordered_consumer=True)
