"""Access to the JetStream API: a rule about a stream allows the corresponding requests."""

import asyncio

import nats
import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from strandline.testing.server import Server

ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"
REQUESTS = {
    "INFO": None,
    "STREAM.NAMES": None,
    "STREAM.LIST": None,
    "STREAM.INFO.{}": None,
    "STREAM.CREATE.{}": b'{"name":"{}","subjects":["{}.>"]}',
    "STREAM.UPDATE.{}": b'{"name":"{}","subjects":["{}.>"]}',
    "STREAM.MSG.GET.{}": b'{"seq":1}',
    "STREAM.MSG.DELETE.{}": b'{"seq":1}',
    "STREAM.PURGE.{}": b'{"seq":1}',
    "DIRECT.GET.{}": b'{"seq":1}',
    "DIRECT.GET.{}.mine.a": b"",
    "CONSUMER.NAMES.{}": None,
    "CONSUMER.LIST.{}": None,
    "CONSUMER.INFO.{}.c": None,
    "CONSUMER.CREATE.{}.c": b'{"stream_name":"{}","config":{"name":"c","durable_name":"c"}}',
    "CONSUMER.CREATE.{}": b'{"stream_name":"{}"}',
    "CONSUMER.MSG.NEXT.{}.c": b'{"expires":1,"idle_heartbeat":9}',  # answered by a status
}
"""Requests that change nothing if they are done."""


@pytest.fixture(scope="module")
def server():
    with Server(nats=True, auth={"enabled": True, "admin_token": ADMIN_TOKEN}) as url:
        yield url


@pytest.fixture(scope="module")
def admin(server):
    with strandline.connect(server.flight, token=ADMIN_TOKEN) as client:
        for name in ("mine", "other"):
            client.create_stream(name, subject=f"{name}.>")
            client.append(name, b"a record", subject=f"{name}.a")
        yield client


@pytest.fixture
async def allowed(server, admin):
    """A function: which of the requests a principal with some rules gets an answer to."""
    clients = []

    async def allowed(principal, *rules, stream="mine"):
        for rule in rules:
            admin.access.grant(principal, *rule)
        token = admin.access.create_token(principal)
        client = await nats.connect(server.nats_url, token=token, error_cb=_ignore)
        clients.append(client)

        async def ask(operation, body):
            payload = (body or b"").replace(b"{}", stream.encode())
            subject = f"$JS.API.{operation.format(stream)}"
            try:
                answer = await client.request(subject, payload, timeout=1)
            except nats.errors.NoRespondersError:
                return operation  # the broker's own answer: there is no such consumer
            except nats.errors.Error:
                return None  # nobody has heard it
            is_expected = "MSG.DELETE" in operation or operation.endswith(".c")
            assert b'"error"' not in answer.data or is_expected, answer.data
            return operation

        answered = await asyncio.gather(*(ask(*each) for each in REQUESTS.items()))
        return {each for each in answered if each is not None}

    yield allowed
    for client in clients:
        await client.close()


async def _ignore(_):
    """Denials are expected here."""


READ = {
    "INFO",
    "STREAM.INFO.{}",
    "STREAM.MSG.GET.{}",
    "DIRECT.GET.{}",
    "DIRECT.GET.{}.mine.a",
    "CONSUMER.NAMES.{}",
    "CONSUMER.LIST.{}",
}
CONSUMER = {"CONSUMER.INFO.{}.c", "CONSUMER.CREATE.{}.c", "CONSUMER.MSG.NEXT.{}.c"}
ADMIN = {
    "INFO",
    "STREAM.INFO.{}",
    "STREAM.UPDATE.{}",
    "STREAM.PURGE.{}",
    "STREAM.MSG.DELETE.{}",
}
LISTS = {"STREAM.NAMES", "STREAM.LIST"}


async def test_reading_a_stream_allows_what_reads(allowed):
    """And nothing of another stream, nor the lists that would show it."""
    rule = ("read", "stream", "mine")
    assert await allowed("reader", rule) == READ
    assert await allowed("reader", rule, stream="other") == {"INFO"}


async def test_a_consumer_needs_its_group_too(allowed):
    """By its name, by all of the stream, or by all; one without a name needs all."""
    read = ("read", "stream", "mine")
    assert await allowed("member", read, ("group", "group", "js/mine/c")) == READ | CONSUMER
    assert await allowed("stranger", read, ("group", "group", "js/mine/d")) == READ
    assert await allowed("half", ("group", "group", "js/mine/c")) == set()
    assert await allowed("whole", read, ("group", "group", "js/mine/*")) == READ | CONSUMER
    every = READ | CONSUMER | {"CONSUMER.CREATE.{}"}
    assert await allowed("all", read, ("group", "group", "*")) == every


async def test_acknowledging_needs_the_group(server, admin, allowed):
    """A client without permission for the consumer cannot settle its messages."""
    client = await nats.connect(server.nats_url, token=ADMIN_TOKEN)
    js = client.jetstream()
    config = ConsumerConfig(durable_name="acked", ack_policy="explicit")
    await js.add_consumer("mine", config)
    sub = await js.pull_subscribe_bind("acked", stream="mine")
    [message] = await sub.fetch(1, timeout=10)
    admin.access.grant("outsider", "read", "stream", "mine")
    token = admin.access.create_token("outsider")
    outsider = await nats.connect(server.nats_url, token=token, error_cb=_ignore)
    await outsider.publish(message.reply, b"+ACK")
    await outsider.flush()
    assert (await js.consumer_info("mine", "acked")).num_ack_pending == 1
    await message.ack_sync()
    assert (await js.consumer_info("mine", "acked")).num_ack_pending == 0
    await outsider.close()
    await client.close()


async def test_a_push_consumer_delivers_to_inboxes_only(server, admin):
    """Else a client could publish by the broker where it may not. Flow control works."""
    client = await nats.connect(server.nats_url, token=ADMIN_TOKEN)
    js = client.jetstream()
    with pytest.raises(js_errors.BadRequestError, match="invalid push consumer deliver subject"):
        await js.add_consumer("mine", ConsumerConfig(name="bad", deliver_subject="other.a"))
    await client.close()
    admin.access.grant("pushed", "read", "stream", "mine")
    admin.access.grant("pushed", "group", "group", "js/mine/*", "js/big/*")
    admin.access.grant("pushed", "read", "stream", "big")
    admin.create_stream("big", subject="big")
    for _ in range(30):
        admin.append("big", b"x" * 100_000, subject="big")
    token = admin.access.create_token("pushed")
    errors = []

    async def keep(error):
        errors.append(str(error))

    client = await nats.connect(server.nats_url, token=token, error_cb=keep)
    js = client.jetstream()
    sub = await js.subscribe("", durable="p", stream="mine")
    message = await sub.next_msg(timeout=10)
    await message.ack_sync()
    assert (message.data, message.subject) == (b"a record", "mine.a")
    sub = await js.subscribe("", durable="q", stream="big", flow_control=True, idle_heartbeat=1)
    for _ in range(30):
        await (await sub.next_msg(timeout=10)).ack()
    assert errors == []
    admin.delete_stream("big")
    await client.close()


async def test_administering_a_stream_allows_what_changes_it(allowed):
    """But not to create one: that would record any subject."""
    assert await allowed("keeper", ("admin", "stream", "mine")) == ADMIN
    rules = (("admin", "stream", "mine"), ("read", "subject", ">"))
    assert await allowed("maker", *rules) == ADMIN | {"STREAM.CREATE.{}"}
    assert await allowed("maker", *rules, stream="other") == {"INFO"}


async def test_a_rule_about_all_streams_allows_the_lists(allowed):
    """Where nothing is hidden they show nothing that may not be known."""
    assert await allowed("everything", ("read", "stream", "*")) == READ | LISTS
    assert await allowed("publisher", ("publish", "stream", "*")) == LISTS | {
        "INFO",
        "STREAM.INFO.{}",
    }


async def test_rules_that_stand_for_no_request_allow_none(allowed):
    """The beginning of a name; subjects only; a subject pattern that covers NATS' own."""
    assert await allowed("prefix", ("read", "stream", "mi*")) == set()
    assert await allowed("subjects", ("publish", "subject", "mine.>")) == set()
    rules = (("publish", "subject", ">"), ("read", "stream", "mine"))
    assert await allowed("greedy", *rules) == set()


async def test_a_quota_of_requests_closes_the_api(allowed, admin):
    """The broker does not know the caller, so it cannot count requests."""
    admin.quotas.set("counted", requests_per_s=10)
    assert await allowed("counted", ("read", "stream", "mine")) == set()


async def test_administrators_do_everything(server, admin):
    """Also create a stream; none on a subject of NATS' own."""
    client = await nats.connect(server.nats_url, token=ADMIN_TOKEN)
    js = client.jetstream()
    await js.add_stream(name="made", subjects=["made"])
    ack = await js.publish("made", b"x")
    assert (ack.stream, ack.seq) == ("made", 1)
    with pytest.raises(js_errors.ServerError, match="NATS' own"):
        await js.add_stream(name="odd", subjects=["$KV.odd.>"])
    await js.delete_stream("made")
    await client.close()


async def test_a_bucket_needs_its_stream_and_its_subject(server, admin):
    """Reading it is reading its stream, putting is publishing; other buckets stay closed."""
    root = await nats.connect(server.nats_url, token=ADMIN_TOKEN)
    for name in ("ours", "theirs"):
        bucket = await root.jetstream().create_key_value(bucket=name)
        await bucket.put("k", b"v")
    rules = (("read", "stream", "KV_ours"), ("publish", "subject", "$KV.ours.>"))
    for rule in rules:
        admin.access.grant("keeper", *rule)
    token = admin.access.create_token("keeper")
    client = await nats.connect(server.nats_url, token=token)
    js = client.jetstream(timeout=1)
    bucket = await js.key_value("ours")
    assert (await bucket.get("k")).value == b"v"
    assert await bucket.update("k", b"w", last=1) == 2
    assert (await bucket.get("k")).value == b"w"
    with pytest.raises(nats.errors.TimeoutError):
        await js.key_value("theirs")
    with pytest.raises(nats.errors.TimeoutError):
        await js.publish("$KV.theirs.k", b"x")
    assert (await (await root.jetstream().key_value("theirs")).get("k")).value == b"v"
    await client.close()
    await root.close()


async def test_nobody_hears_the_requests_of_others(server, admin):
    """A rule about all subjects does not allow to receive them."""
    admin.access.grant("listener", "read", "subject", ">", "$JS.API.>")
    token = admin.access.create_token("listener")
    errors = []

    async def keep(error):
        errors.append(str(error))

    client = await nats.connect(server.nats_url, token=token, error_cb=keep)
    await client.subscribe("$JS.API.>")
    async with asyncio.timeout(30):
        while not errors:
            await client.flush()
            await asyncio.sleep(0.02)
    assert "permissions violation" in errors[0].lower()
    await client.close()
