"""The JetStream API on the broker's own listener for publishers."""

import asyncio
import contextlib
import json

import nats
import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from strandline.testing.server import Server

from .conftest import Asker, until

ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"


@pytest.fixture(scope="module")
def server():
    with Server(nats=True, auth={"enabled": True, "admin_token": ADMIN_TOKEN}) as url:
        yield url


async def client_of(server, token=ADMIN_TOKEN, errors=None):
    async def keep(error):
        if errors is not None:
            errors.append(str(error))

    return await nats.connect(server.ingest_url, token=token, error_cb=keep)


@pytest.fixture
async def nc(server):
    client = await client_of(server)
    yield client
    await client.close()


async def test_streams_are_managed_and_read_there(nc):
    """Create, publish, show, list, read directly and not, purge, delete; none is not found."""
    js = nc.jetstream()
    await js.add_stream(name="own", subjects=["own.>"])
    for number in range(5):
        ack = await js.publish(f"own.{number}", b"%d" % number, headers={"n": str(number)})
        assert (ack.stream, ack.seq) == ("own", number + 1)
    assert (await js.stream_info("own")).state.messages == 5
    assert "own" in [each.config.name for each in await js.streams_info()]
    found = await js.get_msg("own", 2)
    assert (found.data, found.subject, found.headers) == (b"1", "own.1", {"n": "1"})
    direct = await js.get_msg("own", 3, direct=True)
    assert (direct.data, direct.headers["n"], direct.headers["Nats-Sequence"]) == (b"2", "2", "3")
    assert (await js.get_last_msg("own", "own.4")).data == b"4"
    assert (await js.account_info()).streams >= 1
    await js.purge_stream("own", keep=2)
    assert (await js.stream_info("own")).state.messages == 2
    await js.delete_stream("own")
    with pytest.raises(js_errors.NotFoundError):
        await js.stream_info("own")


async def test_a_client_reads_there_alone(nc):
    """By pulls, in order, acknowledged in every way; a pull ends when its receiver is gone."""
    js = nc.jetstream()
    await js.add_stream(name="cons", subjects=["cons.>"])
    for number in range(10):
        await js.publish(
            f"cons.{number}", b"%d" % number, headers={"n": "x"} if number % 2 else None
        )
    sub = await js.pull_subscribe("cons.>", "d", stream="cons")
    found = await sub.fetch(6, timeout=10)
    assert [each.data for each in found] == [b"%d" % number for number in range(6)]
    assert [each.subject for each in found] == [f"cons.{number}" for number in range(6)]
    assert found[1].headers == {"n": "x"}
    assert [each.metadata.num_pending for each in found] == [9, 8, 7, 6, 5, 4]
    await found[0].ack()
    await found[1].ack_sync()
    await found[2].nak()
    await found[3].term()
    again = await sub.fetch(1, timeout=10)
    assert (again[0].data, again[0].metadata.num_delivered) == (b"2", 2)
    info = await js.consumer_info("cons", "d")
    assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (2, 3, 4)
    none = await js.pull_subscribe("none", "n", stream="cons")
    with pytest.raises(nats.errors.TimeoutError):
        await none.fetch(1, timeout=0.5)
    inbox = nc.new_inbox()
    gone = await nc.subscribe(inbox)
    await nc.publish("$JS.API.CONSUMER.MSG.NEXT.cons.n", b'{"batch":5}', reply=inbox)
    await nc.flush()
    assert (await js.consumer_info("cons", "n")).num_waiting == 1
    await gone.unsubscribe()
    await nc.flush()
    assert (await js.consumer_info("cons", "n")).num_waiting == 0
    await js.delete_stream("cons")


async def test_push_and_ordered_consumers_and_buckets_work_there_alone(server):
    """What is pushed goes to who subscribes to it, here as at nats-server."""
    nc = await nats.connect(
        server.ingest_url, token=ADMIN_TOKEN, inbox_prefix="_INBOX_PRIVATE.__admin"
    )
    js = nc.jetstream()
    await js.add_stream(name="push", subjects=["push"])
    for number in range(2_000):
        await nc.publish("push", b"%d" % number)
    ordered = await js.subscribe("push", stream="push", ordered_consumer=True)
    for number in range(2_000):
        message = await ordered.next_msg(timeout=10)
        assert message.data == b"%d" % number
    await ordered.unsubscribe()
    workers = [await js.subscribe("push", "team", stream="push") for _ in range(2)]
    seen = []
    for worker in workers:
        for _ in range(10):
            with contextlib.suppress(nats.errors.TimeoutError):
                seen.append((await worker.next_msg(timeout=0.5)).data)
    assert len(seen) == len(set(seen)) > 0
    bucket = await js.create_key_value(bucket="KV")
    revision = await bucket.put("a", b"1")
    await bucket.update("a", b"2", last=revision)
    assert (await bucket.get("a")).value == b"2"
    watcher = await bucket.watchall()
    assert (await watcher.updates(timeout=10)).value == b"2"
    assert await watcher.updates(timeout=10) is None
    await bucket.put("b", b"3")
    assert (await watcher.updates(timeout=10)).key == "b"
    assert sorted(await bucket.keys()) == ["a", "b"]
    await js.delete_key_value("KV")
    await js.delete_stream("push")
    await nc.close()


async def test_both_ports_share_a_consumer(server, nc):
    """Pulls of both take turns, and acknowledgements count at either."""
    js = nc.jetstream()
    await js.add_stream(name="both", subjects=["both"])
    await js.add_consumer("both", ConsumerConfig(durable_name="d", ack_policy="explicit"))
    other = await nats.connect(
        server.nats_url, token=ADMIN_TOKEN, inbox_prefix="_INBOX_PRIVATE.__admin"
    )
    here = await js.pull_subscribe_bind("d", stream="both")
    there = await other.jetstream().pull_subscribe_bind("d", stream="both")
    waiting = [asyncio.create_task(each.fetch(5, timeout=10)) for each in (here, there)]

    async def is_waited_for():
        return (await js.consumer_info("both", "d")).num_waiting == 2

    await until(is_waited_for)
    for number in range(10):
        await nc.publish("both", b"%d" % number)
    parts = await asyncio.gather(*waiting)
    found = sorted(message.data for part in parts for message in part)
    assert found == [b"%d" % number for number in range(10)]
    for message in parts[0]:
        await message.ack_sync()
    for message in parts[1]:
        await other.request(message.reply, b"", timeout=5)
    assert (await js.consumer_info("both", "d")).num_ack_pending == 0
    await other.close()
    await js.delete_stream("both")


async def test_nobody_else_receives_what_a_client_pulls_there(server, nc):
    """Not one who subscribes to the same inbox; nor is it pushed to another's private inbox."""
    js = nc.jetstream()
    await js.add_stream(name="secret", subjects=["secret"])
    await js.publish("secret", b"x")
    with strandline.connect(server.flight, token=ADMIN_TOKEN) as admin:
        admin.access.grant("spy", "publish", "subject", "nothing.of.it")
        token = admin.access.create_token("spy")
    spy = await client_of(server, token, [])
    inbox = "_INBOX_PRIVATE.__admin.x"
    heard = await spy.subscribe(inbox)
    await spy.flush()
    body = {"stream_name": "secret", "config": {"name": "p", "deliver_subject": inbox}}
    assert "error" not in await Asker(nc)("CONSUMER.CREATE.secret.p", body)
    assert not (await js.consumer_info("secret", "p")).push_bound
    pulled = await nc.subscribe(inbox)
    await Asker(nc).consumer("secret", "c")
    await nc.publish("$JS.API.CONSUMER.MSG.NEXT.secret.c", b"1", reply=inbox)
    assert (await pulled.next_msg(timeout=10)).data == b"x"
    await spy.publish("$JS.ACK.secret.c.1.1.1.1.0", b"")
    await spy.flush()
    with pytest.raises(nats.errors.TimeoutError):
        await heard.next_msg(timeout=0.3)
    assert (await js.consumer_info("secret", "c")).num_ack_pending == 1
    await spy.close()
    await js.delete_stream("secret")


async def test_a_stream_needs_a_rule_there_too(server):
    """As at nats-server: what shows or reads another stream is not allowed."""
    with strandline.connect(server.flight, token=ADMIN_TOKEN) as admin:
        for name in ("mine", "other"):
            admin.create_stream(name, subject=f"{name}.>")
            admin.append(name, b"a record", subject=f"{name}.a")
        admin.access.grant("reader", "read", "stream", "mine")
        admin.access.grant("reader", "publish", "subject", "mine.>")
        token = admin.access.create_token("reader")
        admin.access.grant("greedy", "publish", "subject", ">")
        greedy = admin.access.create_token("greedy")
    errors = []
    client = await client_of(server, token, errors)
    js = client.jetstream()
    assert (await js.stream_info("mine")).state.messages == 1
    assert (await js.get_msg("mine", 1, direct=True)).data == b"a record"
    requests = {
        "STREAM.INFO.other": b"",
        "STREAM.MSG.GET.other": b'{"seq":1}',
        "DIRECT.GET.other": b'{"seq":1}',
        "STREAM.DELETE.mine": b"",
        "STREAM.PURGE.mine": b"",
        "STREAM.CREATE.new": b'{"name":"new","subjects":["new"]}',
        "STREAM.NAMES": b"",
        "CONSUMER.CREATE.mine.c": b'{"stream_name":"mine"}',
    }
    for operation, body in requests.items():
        answer = await client.request(f"$JS.API.{operation}", body, timeout=5)
        assert b"you may not publish" in answer.data, operation
    await client.flush()
    assert len(errors) == len(requests)
    await client.close()
    client = await client_of(server, greedy)
    answer = await client.request("$JS.API.STREAM.INFO.mine", b"", timeout=5)
    assert b"you may not publish" in answer.data
    await client.close()
    client = await client_of(server)
    assert (await client.jetstream().stream_info("mine")).state.messages == 1
    await client.close()


async def test_any_request_there_is_answered(nc):
    """Whatever its body; one without a reply subject is not."""
    bodies = [b"", b"{", b"[]", b"\xff" * 50, json.dumps({"a": "b" * 999}).encode()]
    for operation in (
        "STREAM.CREATE.x",
        "STREAM.INFO.x",
        "BOGUS",
        "DIRECT.GET.x",
        "CONSUMER.LIST.x",
    ):
        for body in bodies:
            await nc.publish(f"$JS.API.{operation}", body)
            try:
                answer = await nc.request(f"$JS.API.{operation}", body, timeout=5)
            except nats.errors.NoRespondersError:
                assert operation == "DIRECT.GET.x", "503 is its status for no such stream"
            else:
                assert b"error" in answer.data or answer.headers
    async with asyncio.timeout(5):
        await nc.flush()
