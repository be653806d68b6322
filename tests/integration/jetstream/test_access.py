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
ADMIN_INBOX = "_INBOX_PRIVATE.__admin"
NS = 1_000_000_000
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
    "STRANDLINE.READ.{}": b'{"count_after":0}',  # of brokers, and of no other principal
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
        client = await connect(server, token, f"_INBOX_PRIVATE.{principal}")
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


async def connect(server, token=ADMIN_TOKEN, inbox=ADMIN_INBOX, error_cb=None):
    """Connect as stock clients do that receive records: with a private inbox prefix."""
    return await nats.connect(
        server.nats_url, token=token, inbox_prefix=inbox, error_cb=error_cb or _ignore
    )


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
    client = await connect(server)
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


async def test_a_push_consumer_delivers_to_private_inboxes_only(server, admin):
    """Else a client could publish by the broker where it may not. Flow control works."""
    client = await connect(server)
    js = client.jetstream()
    for subject in ("other.a", "_INBOX.x", "_INBOX_PRIVATE", "_INBOX_PRIVATES.x"):
        with pytest.raises(js_errors.BadRequestError, match=r"deliver subject.*private"):
            await js.add_consumer("mine", ConsumerConfig(name="bad", deliver_subject=subject))
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

    client = await connect(server, token, "_INBOX_PRIVATE.pushed", keep)
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
    client = await connect(server)
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
    root = await connect(server)
    for name in ("ours", "theirs"):
        bucket = await root.jetstream().create_key_value(bucket=name)
        await bucket.put("k", b"v")
    rules = (("read", "stream", "KV_ours"), ("publish", "subject", "$KV.ours.>"))
    for rule in rules:
        admin.access.grant("keeper", *rule)
    token = admin.access.create_token("keeper")
    client = await connect(server, token, "_INBOX_PRIVATE.keeper")
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


async def _read_every_way(server, admin):
    """Receive records by each request that carries some, as the administrator."""
    client = await connect(server)
    js = client.jetstream()
    found = [await js.get_msg("secret", 1), await js.get_msg("secret", 1, direct=True)]
    found.append(await client.request("$JS.API.DIRECT.GET.secret.secret.a", b""))
    batch = await client.subscribe(client.new_inbox())
    await client.publish("$JS.API.DIRECT.GET.secret", b'{"seq":1,"batch":1}', batch.subject)
    found.append(await batch.next_msg(timeout=10))
    pull = await js.pull_subscribe("", durable="read", stream="secret")
    found += await pull.fetch(1, timeout=10)
    await found[-1].ack_sync()
    push = await js.subscribe("", queue="workers", stream="secret")
    found.append(await push.next_msg(timeout=10))
    bucket = await js.create_key_value(bucket="hidden")
    await bucket.put("k", b"the secret")
    found.append(await bucket.get("k"))
    watch = await bucket.watch("k")
    entry = await watch.updates(timeout=10)
    assert [getattr(each, "data", None) or each.value for each in (*found, entry)] == [
        b"the secret"
    ] * (len(found) + 1)
    await watch.stop()
    await js.delete_consumer("secret", "read")
    await js.delete_key_value("hidden")
    await client.close()


async def test_others_receive_no_records(server, admin):
    """Neither from replies, nor from private inboxes, nor by a rule about all subjects."""
    admin.create_stream("secret", subject="secret.>")
    admin.append("secret", b"the secret", subject="secret.a")
    admin.access.grant("eve", "publish", "subject", "unrelated")
    rules = (">", "*.__admin.>", "_INBOX_PRIVATE.__admin.>", "$JS.>")
    admin.access.grant("mallory", "read", "subject", *rules)
    got, clients = [], []

    async def keep(message):
        got.append((message.subject, message.data))

    patterns = ("_INBOX.>", "_INBOX_PRIVATE.>", f"{ADMIN_INBOX}.>", ">", "*.*.*", "*.__admin.>")
    for name in ("eve", "mallory"):
        token = admin.access.create_token(name)
        client = await connect(server, token, f"_INBOX_PRIVATE.{name}")
        clients.append(client)
        for pattern in patterns:
            await client.subscribe(pattern, cb=keep)
            await client.subscribe(pattern, queue="workers", cb=keep)
        await client.flush()
    await _read_every_way(server, admin)
    with_default = await nats.connect(server.nats_url, token=ADMIN_TOKEN)
    await with_default.jetstream().stream_info("secret")
    await with_default.close()
    for client in clients:
        await client.flush()
    assert any(subject.startswith("_INBOX.") for subject, _ in got), "replies are still seen"
    assert [each for each in got if b"the secret" in each[1] or ADMIN_INBOX in each[0]] == []
    for client in clients:
        await client.close()
    admin.delete_stream("secret")


async def _until_waiting(js, count):
    """Wait until so many pulls of the consumer wait."""
    async with asyncio.timeout(30):
        while True:
            if (await js.consumer_info("mine", "w")).num_waiting == count:
                return
            await asyncio.sleep(0.02)


async def test_no_other_client_keeps_a_pull_alive(server, admin):
    """A subscription to everybody's replies is not a receiver of a private inbox."""
    admin.access.grant("eve", "publish", "subject", "unrelated")
    eve = await nats.connect(server.nats_url, token=admin.access.create_token("eve"))
    await eve.subscribe("_INBOX.>")
    await eve.flush()
    client = await connect(server)
    js = client.jetstream()
    await js.add_consumer("mine", ConsumerConfig(durable_name="w", filter_subject="mine.none"))
    gone = await client.subscribe(client.new_inbox())
    pull = b'{"batch":5,"expires":%d}' % (60 * NS)
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.mine.w", pull, gone.subject)
    await _until_waiting(js, 1)
    await gone.unsubscribe()
    await _until_waiting(js, 0)
    await js.delete_consumer("mine", "w")
    await eve.close()
    await client.close()


async def test_records_are_not_sent_to_public_inboxes(server, admin):
    """The rejection says what to set; it is JetStream's, so stock clients show it."""
    client = await nats.connect(server.nats_url, token=ADMIN_TOKEN)
    js = client.jetstream()
    remedy = "set your client's inbox prefix to _INBOX_PRIVATE"
    for direct in (False, True):
        with pytest.raises(js_errors.APIError, match=remedy) as caught:
            await js.get_msg("mine", 1, direct=direct)
        assert caught.value.code == 403
    for body in (b'{"seq":1,"batch":1}', b'{"multi_last":["mine.>"]}'):
        answer = await client.request("$JS.API.DIRECT.GET.mine", body)
        assert remedy in answer.headers["Description"]
    config = ConsumerConfig(durable_name="public", ack_policy="explicit")
    await js.add_consumer("mine", config)
    sub = await js.pull_subscribe_bind("public", stream="mine")
    with pytest.raises(js_errors.APIError, match=remedy) as caught:
        await sub.fetch(1, timeout=10)
    assert caught.value.code == 400
    private = await connect(server)
    mine = await private.jetstream().pull_subscribe_bind("public", stream="mine")
    [message] = await mine.fetch(1, timeout=10)
    answer = await client.request(message.reply, b"+NXT")
    assert remedy in answer.headers["Description"]
    info = await js.consumer_info("mine", "public")  # which carries no record
    assert (info.num_waiting, info.num_ack_pending) == (0, 0)
    with pytest.raises(js_errors.BadRequestError, match=remedy):
        await js.subscribe("", stream="mine")
    await js.delete_consumer("mine", "public")
    await private.close()
    await client.close()


async def test_each_name_has_an_inbox_of_its_own(server, admin):
    """A name with dots, spaces or wildcards is one token; acknowledgements go there, too."""
    names = {
        "svc": "_INBOX_PRIVATE.svc",
        "svc.a": "_INBOX_PRIVATE.svc%2Ea",
        "svc%2Ea": "_INBOX_PRIVATE.svc%252Ea",
        "> *": "_INBOX_PRIVATE.%3E%20%2A",
        "zoë": "_INBOX_PRIVATE.zo%C3%AB",
    }
    got, clients = {name: [] for name in names}, {}
    for name, inbox in names.items():
        admin.access.grant(name, "read", "stream", "mine")
        admin.access.grant(name, "publish", "subject", "mine.>")
        client = await connect(server, admin.access.create_token(name), inbox)
        clients[name] = client

        async def keep(message, to=got[name]):
            to.append(message.subject)

        for other in names.values():
            await client.subscribe(f"{other}.>", cb=keep)
        await client.flush()
    for client in clients.values():
        js = client.jetstream()
        assert (await js.get_msg("mine", 1)).data == b"a record"
        assert (await js.publish("mine.b", b"x")).stream == "mine"
    for name, client in clients.items():
        await client.flush()
        await client.close()
        assert got[name]
        assert all(each.startswith(names[name] + ".") for each in got[name])


async def test_the_ingest_listener_takes_the_same_inboxes(server, admin):
    """One configuration of a client works at both ports."""
    client = await nats.connect(server.ingest_url, token=ADMIN_TOKEN, inbox_prefix=ADMIN_INBOX)
    js = client.jetstream()
    assert (await js.publish("mine.b", b"x")).stream == "mine"
    assert (await js.get_msg("mine", 1, direct=True)).data == b"a record"
    await client.close()
