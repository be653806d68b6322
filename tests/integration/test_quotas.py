"""Quotas at a real broker: traffic above a rate waits or is rejected, on every listener.

Times are compared with what a rate makes impossible, never with what a machine should manage.
"""

import asyncio
import contextlib
import gc
import itertools
import threading
import time
from functools import partial
from itertools import islice
from types import SimpleNamespace

import grpc
import nats
import nats.errors
import pytest
from nats.js.errors import APIError
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.errors import QuotaExceededError, StrandlineError
from strandline.security import quota
from strandline.servers.flight import lifecycle as life
from strandline.servers.grpc import calls
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc._generated import logspec_pb2
from strandline.servers.nats import connection
from strandline.testing.server import Server
from tests.kit.waiting import until as wait_until

ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"
RATE = 200_000
VALUE = b"x" * 10_000
PATIENCE_S = 30.0
NUMBERS = itertools.count()
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("forgiving"),
]


@pytest.fixture(scope="module")
def server():
    """A broker that checks access."""
    auth = {"enabled": True, "admin_token": ADMIN_TOKEN}
    running = Server(nats=True, auth=auth, grpc={"port": 0, "beam_port": 0})
    with running as url:
        yield SimpleNamespace(
            flight=url.flight,
            nats_url=url.nats_url,
            ingest_url=url.ingest_url,
            grpc_port=running.app.ready_line()["grpc_port"],
            beam_port=running.app.ready_line()["beam_port"],
            rejections=lambda: running.app.broker.telemetry.quota_rejections,
        )
    gc.collect()  # what nats-py leaves open, once its loops are closed


@pytest.fixture(scope="module")
def admin(server):
    """The administrator, and a stream."""
    with strandline.connect(server.flight, token=ADMIN_TOKEN) as client:
        client.create_stream("orders")
        yield client


@pytest.fixture
def shop(admin, server):
    """A client of the principal shop, which may publish and read; its quota ends with the test."""
    for operation in ("publish", "read"):
        admin.access.grant("shop", operation, "stream", "orders")
    token = admin.access.create_token("shop")
    with strandline.connect(server.flight, token=token) as client:
        yield client
    if any(quota.principal == "shop" for quota in admin.quotas.list()):
        admin.quotas.remove("shop")


def publish(client, bytes_total):
    """Append about this many bytes; return when all were acknowledged."""
    with client.producer("orders") as producer:
        for _ in range(bytes_total // len(VALUE)):
            producer.append(VALUE)


until = partial(wait_until, seconds=PATIENCE_S)


def test_publishing_through_flight_is_held_up(admin, shop):
    """Two seconds' worth overdraws the quota, and the next producer waits."""
    admin.quotas.set("shop", publish_bytes_per_s=RATE)
    began = time.monotonic()
    publish(shop, 2 * RATE)
    publish(shop, len(VALUE))
    assert time.monotonic() - began > 0.9
    assert [quota.publish_bytes_per_s for quota in admin.quotas.list()] == [RATE]


def test_reading_through_flight_is_held_up(admin, shop):
    """Records are delivered no faster than the quota allows, and completely."""
    first = admin.offsets("orders")[0]
    publish(shop, 3 * RATE)
    admin.quotas.set("shop", read_bytes_per_s=RATE)
    began = time.monotonic()
    stream = shop.read("orders", start=first, batch_bytes=RATE // 4)
    rows = sum(batch.num_rows for batch in stream)
    assert rows == 3 * RATE // len(VALUE)
    assert time.monotonic() - began > 1.0


def test_a_request_too_many_is_rejected_and_told_when_to_come(admin, shop):
    """A typed error that says how long to wait; after that it is served."""
    admin.quotas.set("shop", requests_per_s=2)

    with pytest.raises(QuotaExceededError) as caught:
        ask_often(shop)
    error = caught.value
    assert error.retriable
    assert 0 < error.wait_ms <= 1000
    assert "requests_per_s" in error.message
    until(lambda: _served(shop))


def ask_often(client):
    for _ in range(50):
        client.server_info()


def _served(client):
    try:
        client.server_info()
    except QuotaExceededError:
        return False
    return True


def test_connections_are_counted(admin, shop):
    """With a quota of two, a third following read is rejected until another ends."""
    admin.quotas.set("shop", connections=2)
    publish(shop, len(VALUE))
    stop = threading.Event()
    begun = threading.Semaphore(0)

    def follow():
        with shop.read("orders", follow=True) as stream:
            stream.read_next_batch()
            begun.release()
            stop.wait(PATIENCE_S)

    threads = [threading.Thread(target=follow, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=PATIENCE_S)
    with pytest.raises(QuotaExceededError, match="connections"):
        shop.read("orders", records_max=1).read_all()
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    until(lambda: _readable(shop))


def test_a_producer_waits_for_its_turn(server, admin, shop):
    """Publishes rejected for a quota are sent again automatically, and stored once."""
    publish(shop, len(VALUE))
    admin.quotas.set("shop", connections=1)
    before = server.rejections()["shop"]
    with shop.producer("orders") as producer:
        reading = shop.open_read("orders", follow=True)
        batches = reading.reader()  # kept: dropping it ends the read
        batches.read_next_batch()
        waiting = producer.append(VALUE)
        until(lambda: server.rejections()["shop"] > before)
        assert not waiting.done()
        reading.cancel()
        del batches
        assert waiting.result(PATIENCE_S).offset > 0


def _readable(client):
    try:
        client.read("orders", records_max=1).read_all()
    except QuotaExceededError:
        return False
    return True


LARGE = b"x" * (3 * RATE)
"""More than the second's worth that a quota lets through at once: a debt of two seconds."""


@pytest.fixture
def impatient(monkeypatch):
    """Limit the longest requested wait to a fraction of these tests' overdraft."""
    monkeypatch.setattr(quota, "WAIT_MS_MAX", 300.0)
    for module in (life, connection, calls):
        monkeypatch.setattr(module, "WAIT_S_MAX", 0.3)


@pytest.mark.usefixtures("impatient")
def test_a_debt_is_paid_however_long_it_takes(admin, shop):
    """Large rare transfers are not exempt."""
    admin.quotas.set("shop", publish_bytes_per_s=RATE)
    began = time.monotonic()
    at = shop.append("orders", LARGE).offset
    shop.append("orders", b"next")
    assert time.monotonic() - began > 1.8
    admin.quotas.set("shop", read_bytes_per_s=RATE)
    began = time.monotonic()
    shop.read("orders", start=at, records_max=1).read_all()
    assert time.monotonic() - began > 1.8


@pytest.mark.usefixtures("impatient")
async def test_a_debt_at_the_ingest_listener_is_paid_too(server, admin, till, flushed):
    """Nothing without a reply subject is read until then, and nothing behind it."""
    await asyncio.to_thread(partial(admin.quotas.set, till.name, publish_bytes_per_s=RATE))
    before = await asyncio.to_thread(admin.offsets, "orders")
    async with publisher(server.ingest_url, till.token) as client:
        began = time.monotonic()
        for value in (LARGE, LARGE):
            await client.publish("orders", value)
        await flushed(client)
        await client.publish("orders", b"last")
        while (await asyncio.to_thread(admin.offsets, "orders"))[0] < before[0] + 3:
            assert time.monotonic() < began + PATIENCE_S
            await asyncio.sleep(0.05)
    assert time.monotonic() - began > 3.0


@pytest.mark.parametrize(
    ("limits", "first"),
    [({"publish_bytes_per_s": RATE}, [bytes(5 * RATE)]), ({"requests_per_s": 1}, [b"x"] * 5)],
)
async def test_a_publisher_far_over_its_quota_is_told(server, admin, till, limits, first, flushed):
    """At once and with the time to retry, on any connection; rejected publishes cost nothing."""
    await asyncio.to_thread(partial(admin.quotas.set, till.name, **limits))
    before = await asyncio.to_thread(admin.offsets, "orders")
    async with publisher(server.ingest_url, till.token) as client:
        began = time.monotonic()
        for value in first:
            await client.publish("orders", value)
        await flushed(client)
        errors = [await rejection(client, bytes(50_000)) for _ in range(20)]
        assert time.monotonic() - began < 1.9, "nobody had to wait"
        async with publisher(server.ingest_url, till.token) as another:
            errors.append(await rejection(another, b"x"))
        assert {(error.code, error.err_code) for error in errors} == {(503, 10008)}
        said = f"{till.name} has used up its quota of {next(iter(limits))} at this broker; retry in"
        assert all(said in error.description for error in errors)
        stored = False
        while not stored:
            assert time.monotonic() < began + PATIENCE_S
            await asyncio.sleep(0.1)
            stored = await rejection(client, b"later") is None
        assert time.monotonic() - began > 1.0, "the debt was paid"
    after = await asyncio.to_thread(admin.offsets, "orders")
    assert after[0] - before[0] == len(first) + 1, "what was refused is not stored"
    assert server.rejections()[till.name] >= len(errors)


async def test_what_cannot_be_rejected_waits_and_keeps_its_place(server, admin, till, flushed):
    """A publish without a reply subject, and those behind it, wait until the debt is paid."""
    await asyncio.to_thread(partial(admin.quotas.set, till.name, publish_bytes_per_s=RATE))
    async with publisher(server.ingest_url, till.token) as client:
        began = time.monotonic()
        await client.publish("orders", bytes(4 * RATE))
        await flushed(client)
        assert await rejection(client, b"refused") is not None
        await client.publish("orders", b"first")
        ack = await client.jetstream().publish("orders", b"second", timeout=PATIENCE_S)
        assert time.monotonic() - began > 2.5
    with strandline.connect(server.flight, token=ADMIN_TOKEN) as reader:
        stored = reader.read("orders", start=ack.seq - 2, stop=ack.seq).read_all()
    assert stored["value"].to_pylist() == [b"first", b"second"]


async def test_a_quota_that_is_lifted_lets_publishers_in(server, admin, till, flushed):
    """At once, and not only when the debt would have been paid."""
    await asyncio.to_thread(partial(admin.quotas.set, till.name, publish_bytes_per_s=1000))
    async with publisher(server.ingest_url, till.token) as client:
        await client.publish("orders", LARGE)  # ten minutes' worth
        await flushed(client)
        assert await rejection(client, b"x") is not None
        await asyncio.to_thread(admin.quotas.remove, till.name)
        began = time.monotonic()
        while await rejection(client, b"x") is not None:
            assert time.monotonic() < began + PATIENCE_S


async def rejection(client, value):
    """Publish with stock nats-py; the error it raises, None if the value is stored."""
    try:
        await client.jetstream().publish("orders", value, timeout=5)
    except APIError as error:
        return error
    return None


@pytest.mark.usefixtures("impatient")
def test_a_debt_of_grpc_is_paid_too(admin, api):
    """By a publisher of a stream of messages, and by a reader."""
    admin.quotas.set("boat", publish_bytes_per_s=RATE)
    at = api.offset()
    request = pb.PublishRequest(stream="orders", value=LARGE, ackPolicy=pb.AckPolicy.ALL)
    began = time.monotonic()
    # The third does not fit into what may be sent before the first is paid for.
    acks = list(islice(api.publish_async(iter([request] * 3)), 3))
    assert len(acks) == 3
    assert time.monotonic() - began > 3.0
    admin.quotas.set("boat", read_bytes_per_s=RATE)
    request = pb.SubscribeRequest(
        stream="orders", startPosition=pb.StartPosition.OFFSET, startOffset=at
    )
    began = time.monotonic()
    messages = api.subscribe(request)
    assert sum(len(each.value) == len(LARGE) for each in islice(messages, 4)) == 3
    assert time.monotonic() - began > 1.8
    messages.cancel()


@pytest.mark.usefixtures("impatient")
def test_a_quota_that_is_lifted_lets_go_who_waits_for_it(admin, shop):
    """Not only when the debt would have been paid."""
    admin.quotas.set("shop", publish_bytes_per_s=1000)
    shop.append("orders", LARGE)  # ten minutes' worth
    waiting = threading.Thread(target=shop.append, args=("orders", b"next"), daemon=True)
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive()
    admin.quotas.remove("shop")
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


async def ignore(_):
    """Rejections are expected here."""


async def publish_nats(url, token, count, value=VALUE):
    """Publish with stock nats-py at the ingest listener; how long it took until the last ack."""
    async with publisher(url, token) as client:
        began = time.monotonic()
        for _ in range(count):
            await client.publish("orders", value)
        await client.jetstream().publish("orders", b"last", timeout=PATIENCE_S)
        return time.monotonic() - began


@contextlib.asynccontextmanager
async def publisher(url, token):
    """A stock client."""
    client = await nats.connect(url, token=token, connect_timeout=10, allow_reconnect=False)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def till(admin):
    """A principal of the test's own, which may publish to the subject, and its token."""
    name = f"till-{next(NUMBERS)}"
    await asyncio.to_thread(admin.access.grant, name, "publish", "subject", "orders")
    return SimpleNamespace(
        name=name, token=await asyncio.to_thread(admin.access.create_token, name)
    )


@pytest.mark.parametrize(
    "limits", [{"publish_bytes_per_s": RATE}, {"requests_per_s": RATE // len(VALUE)}]
)
async def test_publishing_at_the_ingest_listener_is_held_up(server, admin, till, limits):
    """Three seconds' worth, of bytes or messages, take their time; all of it is stored."""
    await asyncio.to_thread(admin.quotas.set, till.name, **limits)
    count = 3 * RATE // len(VALUE)
    before = await asyncio.to_thread(admin.offsets, "orders")
    assert await publish_nats(server.ingest_url, till.token, count) > 0.5
    after = await asyncio.to_thread(admin.offsets, "orders")
    assert after[0] - before[0] == count + 1


async def test_one_connection_too_many_is_turned_away(server, admin, till):
    """At the ingest listener and at nats-server together; a place that is left can be taken."""
    await asyncio.to_thread(admin.quotas.set, till.name, connections=2)
    options = {"token": till.token, "connect_timeout": 10, "allow_reconnect": False}
    options["error_cb"] = ignore  # else nats-py logs, and the log keeps what it leaves open
    first = await nats.connect(server.ingest_url, **options)
    second = await nats.connect(server.nats_url, **options)
    for url in (server.ingest_url, server.nats_url):
        with pytest.raises((nats.errors.Error, OSError)):
            await nats.connect(url, **options)
    await second.close()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                third = await nats.connect(server.nats_url, **options)
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.05)
            else:
                break
    await third.close()
    await first.close()


@pytest.fixture
def api(server, admin, grpc_stub):
    """A stock stub of Liftbridge's API, for the principal boat, which may do anything to orders."""
    for operation in ("publish", "read"):
        admin.access.grant("boat", operation, "stream", "orders")
    metadata = (("authorization", f"Bearer {admin.access.create_token('boat')}"),)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])
        yield SimpleNamespace(
            publish=partial(stub.Publish, metadata=metadata, timeout=PATIENCE_S),
            publish_async=partial(stub.PublishAsync, metadata=metadata, timeout=PATIENCE_S),
            subscribe=partial(stub.Subscribe, metadata=metadata, timeout=PATIENCE_S),
            offset=lambda: admin.offsets("orders")[0],
        )


def test_a_publish_through_grpc_is_rejected_while_there_is_debt(admin, api):
    """Each call is RESOURCE_EXHAUSTED with the time to retry; later it is served."""
    admin.quotas.set("boat", publish_bytes_per_s=RATE)
    request = pb.PublishRequest(stream="orders", value=VALUE, ackPolicy=pb.AckPolicy.ALL)
    with pytest.raises(grpc.RpcError, match="retry in") as caught:
        publish_often(api, request)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    until(lambda: _taken(api, request))


def publish_often(api, request):
    for _ in range(1000):
        api.publish(request)


def _taken(api, request):
    try:
        api.publish(request)
    except grpc.RpcError:
        return False
    return True


def test_a_stream_of_grpc_is_held_up_both_ways(admin, api):
    """Beyond the first window, publishes are taken no faster than the quota allows; reads alike."""
    rate, value, count = 1 << 20, b"x" * (64 << 10), 48
    admin.quotas.set("boat", publish_bytes_per_s=rate, read_bytes_per_s=rate)
    first = api.offset()
    requests = [
        pb.PublishRequest(stream="orders", value=value, ackPolicy=pb.AckPolicy.ALL)
        for _ in range(count)
    ]
    began = time.monotonic()
    acks = list(islice(api.publish_async(iter(requests)), count))
    assert len(acks) == count
    assert time.monotonic() - began > 0.5
    request = pb.SubscribeRequest(
        stream="orders", startPosition=pb.StartPosition.OFFSET, startOffset=first
    )
    began = time.monotonic()
    messages = api.subscribe(request)
    got = sum(len(message.value) == len(value) for message in islice(messages, count))
    assert got >= count - 1  # the first message says that the subscription stands
    assert time.monotonic() - began > 0.5
    messages.cancel()


@pytest.fixture
def dial(server, admin, grpc_stub):
    """Opens TCP connections of their own for the principal ferry; each is asked for a reply."""
    for stream in ("orders", "beam"):
        admin.access.grant("ferry", "read", "stream", stream)
    bearer = (("authorization", f"Bearer {admin.access.create_token('ferry')}"),)
    calls = {
        "liftbridge": ("API", pb, "FetchMetadata", pb.FetchMetadataRequest()),
        "beam": ("Log", logspec_pb2, "Info", logspec_pb2.InfoRequest()),
    }
    ports = {"liftbridge": server.grpc_port, "beam": server.beam_port}
    channels = []

    def open_one(service):
        # Otherwise channels to one address share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(f"127.0.0.1:{ports[service]}", options=options)
        channels.append(channel)
        name, module, rpc, request = calls[service]
        call = getattr(grpc_stub(channel, module.DESCRIPTOR.services_by_name[name]), rpc)
        ask = partial(call, request, metadata=bearer, timeout=PATIENCE_S, wait_for_ready=True)
        return SimpleNamespace(ask=ask, close=channel.close)

    yield open_one
    for channel in channels:
        channel.close()


def _answers(line):
    """Whether a connection is served; every other end than the rejection fails the test."""
    try:
        line.ask()
    except grpc.RpcError as error:
        is_refused = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        if is_refused and "connections here" in error.details():
            return False
        raise
    return True


def test_connections_of_grpc_are_counted(admin, dial):
    """On both listeners together: one too many is rejected, call by call, until another closes."""
    admin.quotas.set("ferry", connections=2)
    first, second = dial("liftbridge"), dial("beam")
    assert all(_answers(line) for line in (first, second, first, second))
    for service in ("liftbridge", "beam"):
        third = dial(service)
        assert not any(_answers(third) for _ in range(2))
    assert _answers(first)  # calls beyond the first cost no other place
    second.close()
    until(lambda: _answers(third))
    assert _answers(first)
    admin.quotas.set("ferry", connections=1)
    assert not _answers(dial("beam"))
    assert _answers(first)  # what was let in stays
    admin.quotas.remove("ferry")
    assert _answers(dial("liftbridge"))


def test_a_quota_is_set_listed_and_removed_at_the_command_line(server, monkeypatch):
    """In sizes as people write them; for programs as JSON."""
    monkeypatch.setenv("STRANDLINE_TOKEN", ADMIN_TOKEN)

    def run(*words):
        done = CliRunner().invoke(app, ["quota", *words, "--server", server.flight])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    run("set", "kiosk", "--publish", "10MiB", "--connections", "3")
    assert "10MiB" in run("list")
    shown = run("list", "--output", "json")
    assert "10485760" in shown
    assert '"connections":3' in shown
    run("remove", "kiosk")
    assert "kiosk" not in run("list")


def test_only_administrators_set_quotas(shop):
    """A principal does not lift its own."""
    with pytest.raises(StrandlineError, match="may not"):
        shop.quotas.set("shop", connections=1000)
    with pytest.raises(StrandlineError, match="may not"):
        shop.quotas.remove("shop")
