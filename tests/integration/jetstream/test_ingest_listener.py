"""The JetStream API on the broker's own listener for publishers."""

import asyncio
import json

import nats
import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from strandline.testing.server import Server

from .conftest import Asker, shape

ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"
NS = 1_000_000_000


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


async def test_consumers_are_managed_there_and_deliver_at_nats_server(server, nc):
    """A pull from there is told so; the same consumer delivers at the other port."""
    js = nc.jetstream()
    await js.add_stream(name="cons", subjects=["cons"])
    await js.publish("cons", b"x")
    await js.add_consumer("cons", ConsumerConfig(durable_name="d", ack_policy="explicit"))
    assert [each.name for each in await js.consumers_info("cons")] == ["d"]
    [told] = await Asker(nc).pull("cons", "d", {"batch": 1, "expires": NS}, seconds=0.5)
    assert shape(told) == ("409", "Consumers deliver at the port of nats-server only")
    config = {"name": "p", "deliver_subject": "_INBOX.x"}
    body = {"stream_name": "cons", "config": config}
    assert (await Asker(nc).error("CONSUMER.CREATE.cons.p", body))[1] == 10012
    other = await nats.connect(
        server.nats_url, token=ADMIN_TOKEN, inbox_prefix="_INBOX_PRIVATE.__admin"
    )
    sub = await other.jetstream().pull_subscribe_bind("d", stream="cons")
    [message] = await sub.fetch(1, timeout=10)
    assert message.data == b"x"
    await message.ack_sync()
    await other.close()
    assert await js.delete_consumer("cons", "d")
    await js.delete_stream("cons")


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
