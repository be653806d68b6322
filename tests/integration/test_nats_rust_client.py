"""Rust's NATS client (async-nats, as natsrpy wraps it) publishes unchanged: both ways in."""

import asyncio

import pytest
from natsrpy import Nats
from natsrpy.exceptions import NatsrpySessionError

import strandline
from strandline.testing.server import Server

ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"


@pytest.fixture(scope="module")
def server():
    """A broker that checks access, with its own nats-server, and a stream ``orders``."""
    with (
        Server(nats=True, auth={"enabled": True, "admin_token": ADMIN_TOKEN}) as url,
        strandline.connect(url.flight, token=ADMIN_TOKEN) as admin,
    ):
        admin.access.grant("shop", "publish", "subject", "*.sold")
        yield url, admin


@pytest.fixture(params=["nats_url", "ingest_url"])
async def js(server, request):
    """JetStream as the client sees it."""
    url, admin = server
    client = Nats([getattr(url, request.param)], token=admin.access.create_token("shop"))
    await client.startup()
    yield await client.jetstream()
    await client.shutdown()


@pytest.fixture
def stream(server, request):
    """The test's own stream, and a function that reads it."""
    _, admin = server
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    admin.create_stream(name, subject=f"{name}.*")
    yield name, lambda: [row for batch in admin.read(name) for row in batch.to_pylist()]
    admin.delete_stream(name)


async def test_many_at_a_time_are_acked_where_they_are(js, stream):
    """Each ack names the stream and the record's sequence, its offset plus one."""
    name, read = stream
    values = [b"%d" % number for number in range(300)]
    acks = await asyncio.gather(*(js.publish(f"{name}.sold", v, wait=True) for v in values))
    assert {(ack.stream, ack.duplicate) for ack in acks} == {(name, False)}
    assert {row["offset"] + 1: row["value"] for row in read()} == dict(
        zip((ack.sequence for ack in acks), values, strict=True)
    )


async def test_a_repeated_message_id_is_stored_once(js, stream):
    """The repeat is acked as a duplicate, with the sequence of the first; headers are kept."""
    name, read = stream
    headers = {"Nats-Msg-Id": "sale-7", "till": "3"}
    acks = [await js.publish(f"{name}.sold", b"tea", headers=headers, wait=True) for _ in range(3)]
    assert [(ack.sequence, ack.duplicate) for ack in acks] == [(1, False), (1, True), (1, True)]
    [row] = read()
    assert dict(row["headers"]) == {"Nats-Msg-Id": b"sale-7", "till": b"3"}


async def test_rejections_are_the_clients_own_errors(js, stream):
    """The client distinguishes a wrong expectation from a subject without a stream."""
    name, read = stream
    expecting = {"Nats-Expected-Last-Sequence": "77"}
    with pytest.raises(NatsrpySessionError, match="wrong last sequence"):
        await js.publish(f"{name}.sold", b"x", headers=expecting, wait=True)
    with pytest.raises(NatsrpySessionError, match="no stream found"):
        await js.publish("nothing.sold", b"x", wait=True)
    assert read() == []


async def test_who_may_not_publish_is_not_stored(js, stream):
    """The client gets no ack for it, and the connection continues."""
    name, read = stream
    with pytest.raises(NatsrpySessionError):
        await asyncio.wait_for(js.publish(f"{name}.stolen", b"x", wait=True), 30)
    ack = await js.publish(f"{name}.sold", b"y", wait=True)
    assert ack.sequence == 1
    assert [row["value"] for row in read()] == [b"y"]
