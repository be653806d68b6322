"""The JetStream API as a domain of a user's own nats-server, which has a JetStream of its own."""

import asyncio
import contextlib
import json
import subprocess

import nats
import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from strandline.errors import InvalidConfigError, UnavailableError
from strandline.process.ports import free_ports
from strandline.process.settings import load_settings
from strandline.servers.nats.embedded_server import find_binary
from strandline.testing.server import Server
from tests.kit.clusters import leader_of, three_brokers

from .conftest import Asker, connected, until
from .test_cluster import answers_to, until_acked, until_made
from .test_push_cluster import until_consumer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NS = 1_000_000_000
DOMAIN = "strandline"
CONFIGURATION = """\
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: {store} {jetstream} }}
leafnodes {{
  listen: "127.0.0.1:{leaf}"
  {authorization}
}}
{accounts}
"""
ACCOUNTS = """\
accounts {
  APP { jetstream: enabled, users: [ { user: app, password: secret } ] }
  OTHER { jetstream: enabled, users: [ { user: other, password: secret } ] }
}
"""
AUTHORIZATION = 'authorization { user: app, password: "secret", account: APP }'


class External:
    """A nats-server with JetStream and a listener for leaf nodes."""

    def __init__(self, directory, *, accounts="", authorization="", user="", jetstream=""):
        self.port, self.leaf = free_ports(2)
        self._file = directory / "nats.conf"
        store = json.dumps(str(directory / "jetstream"))
        self._file.write_text(
            CONFIGURATION.format(
                port=self.port,
                leaf=self.leaf,
                store=store,
                jetstream=jetstream,
                authorization=authorization,
                accounts=accounts,
            )
        )
        self.url = f"nats://{user}127.0.0.1:{self.port}"
        self.leaf_url = f"nats-leaf://{user}127.0.0.1:{self.leaf}"
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [find_binary(), "-c", self._file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self):
        self._process.kill()
        self._process.wait()

    @property
    def settings(self):
        return {"servers": [self.url], "leafnodes": [self.leaf_url], "ingest_port": 0}


@pytest.fixture
async def external(tmp_path):
    server = External(tmp_path)
    server.start()
    await (await connected(server.url)).close()
    yield server
    server.kill()


@pytest.fixture
def broker(tmp_path, external):
    """A broker that uses it."""
    with Server(data_dir=tmp_path / "broker", nats=external.settings) as url:
        yield url


@pytest.fixture
async def nc(external, broker):
    client = await connected(external.url)
    yield client
    await client.close()


class DomainAsker(Asker):
    """Asks in the domain."""

    async def raw(self, operation, body=None, *, headers=None):
        payload = b"" if body is None else json.dumps(body).encode()
        subject = f"$JS.{DOMAIN}.API.{operation}"
        return await self.nc.request(subject, payload, headers=headers, timeout=5)


async def test_both_jetstreams_work_side_by_side(nc, broker):
    """Streams and consumers of the same names, each in its own; no answer comes twice."""
    ours, theirs = nc.jetstream(domain=DOMAIN), nc.jetstream()
    await theirs.add_stream(name="orders", subjects=["theirs.>"])
    await ours.add_stream(name="orders", subjects=["ours.>"])
    for number in range(1, 6):
        assert (await theirs.publish("theirs.x", b"their %d" % number)).seq == number
        ack = await ours.publish("ours.x", b"our %d" % number)
        assert (ack.stream, ack.seq) == ("orders", number)
    info = await ours.stream_info("orders")
    assert (info.config.subjects, info.state.messages) == (["ours.>"], 5)
    assert (await theirs.stream_info("orders")).config.subjects == ["theirs.>"]
    assert (await ours.get_msg("orders", 2)).data == b"our 2"
    assert (await ours.account_info()).domain == DOMAIN
    config = ConsumerConfig(ack_wait=1)
    for js, who, name in ((ours, b"our", "d"), (theirs, b"their", "e")):
        sub = await js.pull_subscribe("", name, stream="orders", config=config)
        messages = await sub.fetch(3, timeout=5)
        assert [each.data for each in messages] == [b"%b %d" % (who, n) for n in (1, 2, 3)]
        for each in messages[:2]:
            await each.ack_sync()
        [again] = await sub.fetch(1, timeout=5)
        assert again.data == b"%b 4" % who
        await again.ack_sync()
        async with asyncio.timeout(30):
            while (await sub.consumer_info()).num_ack_pending:
                for each in await sub.fetch(2, timeout=5):
                    await each.ack_sync()
    with strandline.connect(broker.flight) as admin:
        values = [v for batch in admin.read("orders") for v in batch["value"].to_pylist()]
        assert values == [b"our %d" % number for number in range(1, 6)]
        assert [each.group for each in admin.groups.list()] == ["js/orders/d"]
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    await nc.publish(f"$JS.{DOMAIN}.API.STREAM.INFO.orders", b"", reply=inbox)
    await nc.publish("$JS.API.STREAM.INFO.orders", b"", reply=inbox)
    found = [json.loads((await answers.next_msg(timeout=5)).data) for _ in range(2)]
    assert sorted(each["config"]["subjects"][0] for each in found) == ["ours.>", "theirs.>"]
    with pytest.raises(nats.errors.TimeoutError):
        await answers.next_msg(timeout=0.5)
    assert (await ours.delete_stream("orders")) is True
    assert (await theirs.stream_info("orders")).state.messages == 5
    with pytest.raises(js_errors.NotFoundError):
        await ours.stream_info("orders")


async def test_push_and_ordered_consumers_of_a_domain(nc):
    """Their messages come with their own subjects."""
    js = nc.jetstream(domain=DOMAIN)
    await js.add_stream(name="pushed", subjects=["pushed.>"])
    for number in range(20):
        await js.publish(f"pushed.{number}", b"%d" % number)
    sub = await js.subscribe("pushed.>", ordered_consumer=True, stream="pushed")
    found = [await sub.next_msg(timeout=5) for _ in range(20)]
    assert [(each.subject, each.data) for each in found] == [
        (f"pushed.{number}", b"%d" % number) for number in range(20)
    ]
    sub = await js.subscribe(
        "pushed.>", durable="p", stream="pushed", flow_control=True, idle_heartbeat=1
    )
    for number in range(20):
        message = await sub.next_msg(timeout=5)
        assert message.data == b"%d" % number
        await message.ack()


async def test_buckets_of_a_domain(nc, external, go_programs):
    """nats.py puts to the bucket's subject, nats.go below the domain's prefix."""
    bucket = await nc.jetstream(domain=DOMAIN).create_key_value(bucket="prices")
    assert await bucket.put("apple", b"3") == 1
    assert (await bucket.get("apple")).value == b"3"
    with pytest.raises(js_errors.NotFoundError):
        await nc.jetstream().key_value("prices")
    words = [str(go_programs / "kv"), external.url, DOMAIN]
    found = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, check=False, text=True, timeout=90
    )
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-2000:]


async def test_a_stream_of_several_partitions_there(nc, broker):
    """Its consumers, too."""
    with strandline.connect(broker.flight) as admin:
        admin.create_stream("parts", subject="parts.>", partitions=3, partition_by="subject")
    js, ask = nc.jetstream(domain=DOMAIN), DomainAsker(nc)
    for number in range(12):
        await js.publish(f"parts.{number}", b"%d" % number)
    assert (await ask("STREAM.INFO.parts"))["state"]["messages"] == 12
    sub = await js.pull_subscribe("", "d", stream="parts")
    seen = set()
    while len(seen) < 12:
        for each in await sub.fetch(12, timeout=5):
            seen.add(each.data)
            await each.ack_sync()


async def test_the_command_uses_the_domain(nc, external, cli):
    """Streams, consumers and messages."""
    url = external.url
    await nc.jetstream(domain=DOMAIN).add_stream(name="cli", subjects=["cli.>"])
    await nc.jetstream(domain=DOMAIN).publish("cli.a", b"hello")
    assert "cli" in cli(url, "--js-domain", DOMAIN, "stream", "ls", "--names")
    assert "hello" in cli(url, "--js-domain", DOMAIN, "stream", "get", "cli", "1")
    cli(url, "--js-domain", DOMAIN, "consumer", "add", "cli", "c", "--pull", "--defaults")
    assert "hello" in cli(url, "--js-domain", DOMAIN, "consumer", "next", "cli", "c")


async def test_a_stream_that_their_jetstream_covers_is_rejected(nc):
    """Both would acknowledge its publishes; the answer names theirs."""
    await nc.jetstream().add_stream(name="theirs", subjects=["covered.>"])
    found = await DomainAsker(nc).error(
        "STREAM.CREATE.ours", {"name": "ours", "subjects": ["covered.x"]}
    )
    assert "'theirs'" in found[2]


async def test_it_goes_on_when_the_server_comes_back(nc, external, broker):
    """A durable consumer continues over the new connections."""
    js = nc.jetstream(domain=DOMAIN)
    await js.add_stream(name="orders", subjects=["orders.>"])
    for number in range(4):
        await js.publish("orders.x", b"%d" % number)
    sub = await js.pull_subscribe("", "d", stream="orders", config=ConsumerConfig(ack_wait=1))
    [first] = await sub.fetch(1, timeout=5)
    await first.ack_sync()
    external.kill()
    external.start()
    client = await connected(external.url)
    ask = DomainAsker(client)

    async def answers():
        try:
            return (await ask("CONSUMER.INFO.orders.d"))["num_pending"] == 3
        except nats.errors.Error:
            return False

    await until(answers)
    sub = await client.jetstream(domain=DOMAIN).pull_subscribe_bind("d", stream="orders")
    seen = set()
    async with asyncio.timeout(60):
        while len(seen) < 3:
            try:
                found = await sub.fetch(3, timeout=2)
            except nats.errors.Error:
                continue  # the leaf connection is not there yet
            for each in found:
                seen.add(each.data)
                await each.ack_sync()
    assert seen == {b"1", b"2", b"3"}
    await client.close()


async def test_accounts_of_the_server(tmp_path):
    """The API is in the account that the broker logs in to, and in no other."""
    server = External(tmp_path, accounts=ACCOUNTS, authorization=AUTHORIZATION, user="app:secret@")
    server.start()
    try:
        app = await connected(server.url)
        with Server(data_dir=tmp_path / "broker", nats=server.settings):
            js = app.jetstream(domain=DOMAIN)
            await js.add_stream(name="orders", subjects=["orders.>"])
            await js.publish("orders.x", b"1")
            sub = await js.pull_subscribe("", "d", stream="orders")
            [message] = await sub.fetch(1, timeout=5)
            await message.ack_sync()
            other = await connected(server.url.replace("app:", "other:"))
            with pytest.raises(nats.errors.NoRespondersError):
                await other.request(f"$JS.{DOMAIN}.API.INFO", b"", timeout=2)
            await other.close()
        await app.close()
    finally:
        server.kill()


def test_without_a_leaf_listener_the_broker_says_so(tmp_path):
    """A wrong address ends the start with an error that names it."""
    server = External(tmp_path)
    server.start()
    try:
        [nobody] = free_ports(1)
        settings = {**server.settings, "leafnodes": [f"127.0.0.1:{nobody}"]}
        with (
            pytest.raises(UnavailableError, match=f"no leaf connection to 127.0.0.1:{nobody}"),
            Server(data_dir=tmp_path / "broker", nats=settings),
        ):
            pass
    finally:
        server.kill()


def test_a_domain_that_the_server_has_itself_is_rejected(tmp_path):
    """Both would answer each request."""
    server = External(tmp_path, jetstream=f", domain: {DOMAIN}")
    server.start()
    try:
        with (
            pytest.raises(UnavailableError, match=r"set nats\.domain to another"),
            Server(data_dir=tmp_path / "broker", nats=server.settings),
        ):
            pass
        with Server(data_dir=tmp_path / "broker", nats={**server.settings, "domain": "ours"}):
            pass
    finally:
        server.kill()


async def take_five(sub, done):
    """Add the next messages to those that are done, as many as come and can be acknowledged."""
    with contextlib.suppress(nats.errors.Error, js_errors.APIError):
        for each in await sub.fetch(5, timeout=2):
            assert each.data not in done
            await each.ack_sync(timeout=2)
            done.add(each.data)


async def test_three_brokers_share_the_server(tmp_path, external):
    """One answers each request. When the leader is killed the next one goes on."""
    environment = {"STRANDLINE_NATS__LEAFNODES": external.leaf_url}
    more = ("--nats", external.url)
    with three_brokers(tmp_path, environment_of=lambda _: environment, more=more) as servers:
        client = await connected(external.url)
        js = client.jetstream(domain=DOMAIN)
        await until_made(js, name="orders", subjects=["orders.>"], num_replicas=3)
        for number in range(20):
            await until_acked(js, "orders.x", b"%d" % number)
        found = await answers_to(client, "STREAM.INFO.orders", prefix=f"$JS.{DOMAIN}.API.")
        assert [each["state"]["messages"] for each in found] == [20]
        await until_consumer(DomainAsker(client), ack_wait=NS)
        sub = await js.pull_subscribe_bind("d", stream="orders")
        done = set()
        for each in await sub.fetch(5, timeout=5):
            await each.ack_sync()
            done.add(each.data)
        servers[await asyncio.to_thread(leader_of, servers)].kill()
        async with asyncio.timeout(90):
            while len(done) < 20:
                await take_five(sub, done)
        await client.close()


@pytest.mark.parametrize(
    ("nats_settings", "more", "text"),
    [
        ({"leafnodes": ["a:1"]}, {}, "set nats.servers"),
        ({"servers": ["a"], "domain": "a.b"}, {}, "nats.domain is 'a.b'"),
        ({"servers": ["a"], "domain": "API"}, {}, "none of API"),
        (
            {"servers": ["a"], "leafnodes": ["a"]},
            {"auth": {"enabled": True, "admin_token": "x" * 40}},
            "remove nats.leafnodes",
        ),
    ],
)
def test_settings_that_cannot_work_are_rejected(nats_settings, more, text):
    """Before anything starts, with what to do."""
    with pytest.raises(InvalidConfigError, match=text):
        load_settings(None, {}, {"nats": nats_settings, **more})
