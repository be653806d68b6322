"""Access control at our nats-server, with stock clients: raw NATS goes around none of the rules."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import ssl
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import nats
import nats.errors
import pytest
import trustme

import strandline
from strandline.api.monitoring import LIST_CONNECTIONS
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.servers.nats import auth_callout as door
from strandline.testing.server import Server
from tests.kit.waiting import until_async

ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"
ROUTE_SECRET = "what-nats-servers-of-tests-show-each-other"
PATIENCE_S = 90.0
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("forgiving"),
]


@pytest.fixture(scope="module")
def server():
    """A broker that checks access, with its own nats-server."""
    running = Server(nats=True, auth={"enabled": True, "admin_token": ADMIN_TOKEN})
    with running as url:
        yield SimpleNamespace(url=url, app=running.app)
    gc.collect()  # what nats-py leaves open, once its loops are closed


@pytest.fixture(scope="module")
def admin(server):
    """The administrator, and two streams: ``orders`` and ``secrets``."""
    with strandline.connect(server.url.flight, token=ADMIN_TOKEN) as client:
        client.create_stream("orders", subject="orders.>")
        client.create_stream("secrets", subject="secrets.>")
        yield client


@pytest.fixture
def shop(admin):
    """A principal's token: it may publish orders, and read news."""
    admin.access.grant("shop", "publish", "subject", "orders.>")
    admin.access.grant("shop", "read", "subject", "news.>")
    return admin.access.create_token("shop")


@pytest.fixture
async def connect(server):
    """A function that connects a stock client and collects its errors."""
    made = []

    async def connect(*, url=None, **options):
        errors, gone = [], asyncio.Event()

        async def failed(error):
            errors.append(error)

        async def disconnected():
            gone.set()

        options.setdefault("allow_reconnect", False)
        client = await nats.connect(
            url or server.url.nats_url,
            connect_timeout=30,
            error_cb=failed,
            disconnected_cb=disconnected,
            **options,
        )
        made.append(client)
        client.seen, client.gone = errors, gone
        return client

    yield connect
    for client in made:
        with contextlib.suppress(Exception):
            await client.close()


until = partial(until_async, seconds=PATIENCE_S)


async def ignore(_):
    """Rejections are expected here; nats-py would log them."""


async def refused(connect, **options):
    """Assert that these credentials are rejected."""
    with pytest.raises((nats.errors.Error, ConnectionError, OSError)) as caught:
        await connect(**options)
    return caught.value


async def nats_clients(client):
    """The principal and the messages of each client that nats-servers list, by server."""
    answers = await asyncio.to_thread(
        client.brokers.ask_all, LIST_CONNECTIONS, None, timeout_s=PATIENCE_S
    )
    return {
        address: sorted(
            (each.principal, each.messages) for each in found if each.listener == "nats"
        )
        for address, found in answers.items()
    }


async def test_the_clients_of_nats_server_are_listed(admin, connect, shop):
    """Each with its principal, however long what it says of itself; none of the broker's own."""
    [before] = (await nats_clients(admin)).values()
    assert before == []
    for number in range(45):
        made = await connect(token=shop, name=chr(1) * 500 + str(number))
        for _ in range(number):
            await made.publish("orders.a", b"x")
        await made.flush()
    [found] = (await nats_clients(admin)).values()
    assert found == [("shop", number) for number in range(45)]


def values(admin, stream):
    return [row["value"] for batch in admin.read(stream) for row in batch.to_pylist()]


async def test_nobody_comes_in_without_credentials(connect, shop):
    """No credentials, a wrong token, a wrong password, and another user's name are rejected."""
    for options in (
        {},
        {"token": "wrong"},
        {"token": shop[:-1]},
        {"user": "shop", "password": "wrong"},
        {"user": "strandline", "password": ""},
    ):
        error = await refused(connect, **options)
        assert "uthoriz" in str(error), options


async def test_a_token_without_rules_opens_nothing(admin, connect):
    """A known principal without permissions is rejected, too."""
    nobody = await asyncio.to_thread(admin.access.create_token, "nobody")
    await refused(connect, token=nobody)


@pytest.mark.parametrize("how", ["token", "password"])
async def test_who_may_publish_is_acknowledged(admin, shop, connect, how):
    """A stock JetStream publish with the token, or with it as a password, is stored and acked."""
    shown = {"token": shop} if how == "token" else {"user": "shop", "password": shop}
    client = await connect(**shown)
    ack = await client.jetstream().publish(f"orders.{how}", b"one espresso", timeout=30)
    assert ack.stream == "orders"
    assert b"one espresso" in await asyncio.to_thread(values, admin, "orders")


@pytest.mark.parametrize(
    "subject",
    [
        "secrets.x",
        "orders",
        "elsewhere",
        "$SYS.REQ.USER.AUTH",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.x.y",
    ],
)
async def test_nothing_else_can_be_published(admin, shop, connect, subject):
    """Other subjects, replies and the server's own are rejected, and nothing is stored."""
    client = await connect(token=shop)
    await client.publish(subject, b"forged")
    await client.flush(timeout=30)
    await until(lambda: any("ermissions" in str(error) for error in client.seen))
    assert b"forged" not in await asyncio.to_thread(values, admin, "secrets")


@pytest.mark.parametrize("subject", ["orders.>", "secrets.x", ">", "$SYS.>", "*.x"])
async def test_nothing_else_can_be_heard(shop, connect, subject):
    """Neither others' subjects, nor its own that it may only publish to, nor all at once."""
    client = await connect(token=shop)
    await client.subscribe(subject)
    await client.flush(timeout=30)
    await until(lambda: any("ermissions" in str(error) for error in client.seen))


async def test_what_may_be_read_is_heard(admin, shop, connect):
    """A rule to read a subject allows a subscription to it."""
    reader = await connect(token=shop)
    heard = await reader.subscribe("news.>")
    await reader.flush(timeout=30)
    writer = await connect(token=ADMIN_TOKEN)
    await writer.publish("news.local", b"rain")
    assert (await heard.next_msg(timeout=30)).data == b"rain"


async def test_the_broker_lends_nobody_its_voice(admin, shop, connect):
    """A reply subject where the publisher may not publish itself gets no ack, and no record."""
    client = await connect(token=shop)
    listener = await connect(token=ADMIN_TOKEN)
    heard = await listener.subscribe("secrets.>")
    await listener.flush(timeout=30)
    await client.publish("orders.x", b"look", reply="secrets.voice")
    # Acked after it: had the broker answered there, it would have been heard before this.
    await client.jetstream().publish("orders.x", b"after", timeout=30)
    await listener.flush(timeout=30)
    with pytest.raises(nats.errors.TimeoutError):
        await heard.next_msg(timeout=0.5)
    stored = await asyncio.to_thread(values, admin, "secrets")
    assert not any(b"seq" in value for value in stored)


async def test_a_rule_that_is_revoked_ends_what_it_allowed(admin, connect):
    """The client is disconnected; after reconnecting it has the new permissions."""
    admin.access.grant("fleet", "publish", "subject", "orders.fleet", "orders.other")
    token = await asyncio.to_thread(admin.access.create_token, "fleet")
    client = await connect(
        token=token, allow_reconnect=True, reconnect_time_wait=0.1, max_reconnect_attempts=-1
    )
    await client.jetstream().publish("orders.fleet", b"before", timeout=30)
    await asyncio.to_thread(admin.access.revoke, "fleet", "publish", "subject", "orders.fleet")
    async with asyncio.timeout(PATIENCE_S):
        await client.gone.wait()
    await until(lambda: client.is_connected)
    await client.publish("orders.fleet", b"after the revocation")
    await client.jetstream().publish("orders.other", b"still", timeout=30)
    found = await asyncio.to_thread(values, admin, "orders")
    assert b"before" in found
    assert b"still" in found
    assert b"after the revocation" not in found


async def test_a_token_that_is_revoked_ends_its_connections(admin, connect):
    """And does not open another one."""
    admin.access.grant("guest", "publish", "subject", "orders.guest")
    token = await asyncio.to_thread(admin.access.create_token, "guest")
    client = await connect(token=token)
    [found] = [t for t in admin.access.tokens() if t.principal == "guest"]
    await asyncio.to_thread(admin.access.revoke_token, found.id)
    async with asyncio.timeout(PATIENCE_S):
        await client.gone.wait()
    await refused(connect, token=token)


async def test_an_answer_that_comes_too_late_takes_no_place(server, admin, connect, monkeypatch):
    """The broker stood still while a client waited: it is not in, and its place is free again."""
    monkeypatch.setattr(door, "CONNECT_MS", 3000.0)
    admin.access.grant("slow", "publish", "subject", "orders.slow")
    token = await asyncio.to_thread(admin.access.create_token, "slow")
    await asyncio.to_thread(partial(admin.quotas.set, "slow", connections=1))
    host, port = server.url.nats_url.removeprefix("nats://").split(":")
    stands, has_given_up = threading.Event(), threading.Event()

    def stand_still():
        stands.set()
        has_given_up.wait(PATIENCE_S)

    server.app.broker.call_soon(stand_still)
    await asyncio.to_thread(stands.wait, PATIENCE_S)
    reading, writing = await asyncio.open_connection(host, int(port))
    writing.write(b'CONNECT {"auth_token":"%b"}\r\nPING\r\n' % token.encode())
    async with asyncio.timeout(PATIENCE_S):
        assert b"-ERR" in await reading.read()
    has_given_up.set()
    writing.close()

    async def come():
        with contextlib.suppress(nats.errors.Error):
            client = await connect(token=token)
            # nats-py takes a server's first PING, sent after two seconds, for a welcome.
            return client if client.is_connected else None

    async with asyncio.timeout(PATIENCE_S):
        while (client := await come()) is None:  # noqa: ASYNC110  the other end changes it
            await asyncio.sleep(0.1)
    # Who did come in is not taken for one of those.
    await asyncio.sleep(2 * door.CONNECT_MS / 1e3)
    assert client.is_connected


def test_nothing_on_the_disk_opens_the_door(server):
    """The server's configuration is for its owner alone, and holds public keys only."""
    [file] = server.url.data_dir.glob("nats/nats-server.conf")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert "auth_callout" in text
    assert "password" not in text
    assert ADMIN_TOKEN not in text


async def test_a_server_that_was_killed_asks_again(server, admin, shop, connect):
    """After a restart of nats-server its door is watched as before."""
    frontend = server.app._nats
    before = frontend.nats_pid
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client = await connect(token=shop)
            ack = await client.jetstream().publish("orders.again", b"again", timeout=5)
        except (nats.errors.Error, OSError):
            assert time.monotonic() < deadline, "it is not back"
        else:
            break
    assert ack.stream == "orders"
    assert frontend.nats_pid != before
    await refused(connect, token="wrong")


async def test_a_certificate_is_enough(tmp_path):
    """With TLS on both sides the name in the certificate is the principal."""
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    files = {}
    for name in ("127.0.0.1", "till", "stranger"):
        issued = authority.issue_cert(name)
        files[name] = (tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        for blob in issued.cert_chain_pems:
            blob.write_to_path(files[name][0], append=True)
        issued.private_key_pem.write_to_path(files[name][1])
    certificate, key = map(str, files["127.0.0.1"])
    tls = {"certificate": certificate, "key": key, "authority": str(ca)}
    auth = {"enabled": True, "admin_token": ADMIN_TOKEN}

    def prepare(url):
        own = {"ca": ca, "certificate": certificate, "key": key}
        with strandline.connect(f"tls://{url.flight}", token=ADMIN_TOKEN, **own) as client:
            client.create_stream("sales", subject="sales.>")
            client.access.grant("till", "publish", "subject", "sales.>")

    def context(name):
        found = ssl.create_default_context(cafile=ca)
        found.load_cert_chain(*files[name])
        return found

    running = Server(nats=True, tls=tls, auth=auth)
    url = await asyncio.to_thread(running.start)
    try:
        await asyncio.to_thread(prepare, url)
        address = url.nats_url.replace("nats://", "tls://")
        options = {"connect_timeout": 10, "allow_reconnect": False, "error_cb": ignore}
        client = await nats.connect(address, tls=context("till"), **options)
        ack = await client.jetstream().publish("sales.1", b"sold", timeout=30)
        assert ack.stream == "sales"
        await client.close()
        with pytest.raises((nats.errors.Error, OSError)):
            await nats.connect(address, tls=context("stranger"), **options)
    finally:
        await asyncio.to_thread(running.stop)


class Pair:
    """Two brokers of a cluster with access checks, whose nats-servers are connected."""

    def __init__(self, directory):
        peers, routes = free_ports(2), free_ports(2)
        secret = directory / "secret"
        secret.write_text(ROUTE_SECRET)
        self.route_port = routes[0]
        self.servers = [
            Server(
                nats=True,
                data_dir=directory / f"broker-{number}",
                auth={"enabled": True, "admin_token": ADMIN_TOKEN},
                cluster={
                    "broker_id": number,
                    "name": "pair",
                    "peer_port": peers[number - 1],
                    "peers": [f"{n}=127.0.0.1:{port}" for n, port in enumerate(peers, 1)],
                    "nats_peers": [f"{n}=127.0.0.1:{port}" for n, port in enumerate(routes, 1)],
                    "nats_secret_file": str(secret),
                },
            )
            for number in (1, 2)
        ]

    def start(self):
        with ThreadPoolExecutor() as together:
            self.urls = list(together.map(Server.start, self.servers))

    def stop(self):
        with ThreadPoolExecutor() as together:
            list(together.map(Server.stop, self.servers))

    def prepare(self):
        """A stream, and a token that may publish to it; waits until the brokers agree."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        with strandline.connect(self.urls[0].flight, token=ADMIN_TOKEN) as client:
            while True:
                try:
                    client.create_stream("orders", subject="orders.>", replicas=2)
                    break
                except StrandlineError as error:
                    if not error.retriable or time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            client.access.grant("shop", "publish", "subject", "orders.>")
            return client.access.create_token("shop")


@pytest.fixture
async def pair(tmp_path):
    made = Pair(tmp_path)
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)


async def test_in_a_cluster_each_server_asks_its_own_broker(pair, connect):
    """At either nats-server a client is let in, or not, and acked wherever the leader is."""
    token = await asyncio.to_thread(pair.prepare)
    for url in pair.urls:
        await until_acked(connect, url.nats_url, token)
        await refused(connect, url=url.nats_url, token="wrong")
    admin = await asyncio.to_thread(strandline.connect, pair.urls[0].flight, token=ADMIN_TOKEN)
    with admin:
        listed = await nats_clients(admin)
    assert listed.keys() == {url.flight for url in pair.urls}
    assert [{name for name, _ in each} for each in listed.values()] == [{"shop"}] * 2
    for secret, expected in (("", "refused"), ("wrong", "refused"), (ROUTE_SECRET, "let in")):
        assert await what_a_route_hears(pair.route_port, secret) == expected


async def until_acked(connect, url, token):
    """Publish until it is acknowledged: rules and routes reach every broker a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client = await connect(url=url, token=token)
            return await client.jetstream().publish("orders.1", b"sold", timeout=2)
        except (nats.errors.Error, OSError):
            assert time.monotonic() < deadline, f"nothing is acknowledged at {url}"
            await asyncio.sleep(0.1)


async def what_a_route_hears(port, secret):
    """Pretend to be a nats-server of the cluster."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await reader.readline()  # INFO
            hello = {"server_id": "N" + "A" * 55, "cluster": "pair", "user": "strandline"}
            info = json.dumps({**hello, "proto": 1, "name": "stranger"}).encode()
            connect = json.dumps({**hello, "pass": secret, "verbose": False}).encode()
            writer.write(b"CONNECT %b\r\nINFO %b\r\nPING\r\n" % (connect, info))
            while line := await reader.readline():
                if b"-ERR" in line and b"uthoriz" in line:
                    return "refused"
                if line.startswith(b"PONG"):
                    return "let in"
            return "refused"
    finally:
        writer.close()
