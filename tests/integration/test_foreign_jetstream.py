"""An external nats-server with JetStream, whose streams cover our subjects."""

import asyncio
import json
import subprocess

import nats
import pytest

import strandline
from strandline.errors import InvalidRequestError
from strandline.process.ports import free_ports
from strandline.servers.nats.embedded_server import find_binary
from strandline.servers.nats.frontend import CONNECTIONS
from strandline.testing import ProcessServer
from tests.kit.clusters import figure, three_brokers

COVERED = "strandline_jetstream_covered_streams"
CONFIGURATION = """\
listen: "127.0.0.1:{port}"
{jetstream}
{more}
"""
MAY_NOT_ASK = """\
authorization {
  users: [ { user: all, password: secret, permissions: { publish: { deny: "$JS.>" } } } ]
}
no_auth_user: all
"""


class Server:
    """A nats-server."""

    def __init__(self, directory, *, jetstream=True, more=""):
        [self._port] = free_ports(1)
        self.url = f"nats://127.0.0.1:{self._port}"
        self._file = directory / "nats.conf"
        place = json.dumps(str(directory / "jetstream"))
        settings = f"jetstream {{ store_dir: {place} }}" if jetstream else ""
        self._file.write_text(CONFIGURATION.format(port=self._port, jetstream=settings, more=more))
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [find_binary(), "-c", self._file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path):
    """With JetStream."""
    made = Server(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def broker(tmp_path, server):
    """A broker that uses it."""
    arguments = ("--nats", server.url)
    with ProcessServer(tmp_path / "broker", arguments=arguments) as started:
        yield started


@pytest.fixture
async def client(server):
    """A stock client."""
    connected = await nats.connect(server.url)
    yield connected
    await connected.close()


async def test_a_stream_that_jetstream_covers_is_rejected(broker, client):
    """The error names JetStream's stream and a remedy; with pub_ack off it is created."""
    jetstream = client.jetstream()
    await jetstream.add_stream(name="theirs", subjects=["orders.>", "single", "parts.1"])
    await jetstream.add_stream(name="silent", subjects=["quiet.*"], no_ack=True)
    with strandline.connect(broker.flight) as admin:
        create = admin.create_stream
        for subject in ("orders.paris", "orders.*", "single"):
            with pytest.raises(InvalidRequestError) as caught:
                await asyncio.to_thread(create, "ours", subject=subject)
            assert "'theirs'" in caught.value.message
            assert f"'{subject}'" in caught.value.message
            assert "pub_ack to false" in caught.value.message
        with pytest.raises(InvalidRequestError, match="'theirs'"):
            create("parts", partitions=2, partition_by="suffix")
        create("parts", subject="parts", partitions=1)
        create("ours", subject="orders.paris", pub_ack=False)
        create("elsewhere", subject="order")
        create("quiet", subject="quiet.a")
    ack = await jetstream.publish("quiet.a", b"x", timeout=10)
    assert ack.stream == "quiet", "who answers is ours"
    assert figure(broker, COVERED) == 0


@pytest.mark.slow
async def test_every_broker_of_a_cluster_rejects_what_jetstream_covers(
    tmp_path, server, client, kit
):
    """Whichever is asked to create the stream."""
    await client.jetstream().add_stream(name="theirs", subjects=["orders.>"])

    def refused(broker):
        with strandline.connect(broker.flight) as admin:
            kit.persist(lambda: all_are_there(admin))
            with pytest.raises(InvalidRequestError, match="'theirs' of JetStream"):
                admin.create_stream("ours", subject="orders.paris")
            assert [info.name for info in admin.list_streams() if info.name == "ours"] == []

    with three_brokers(tmp_path, more=("--nats", server.url)) as brokers:
        for broker in brokers.values():
            await asyncio.to_thread(refused, broker)


def all_are_there(admin):
    """Three brokers are in service, so that a creation is not rejected for another reason."""
    assert len(admin.server_info().brokers) == 3


async def test_a_jetstream_that_comes_later_is_counted_and_logged(broker, server, client, kit):
    """When its stream is created, and after reconnecting; no longer once it is gone."""
    with strandline.connect(broker.flight) as admin:
        for name in ("covered", "free"):
            admin.create_stream(name)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="theirs", subjects=["covered"])

    def counted(streams):
        assert figure(broker, COVERED) == streams

    await asyncio.to_thread(kit.persist, lambda: counted(1))
    found = [line for line in broker.errors if "'theirs' of JetStream covers" in line]
    assert len(found) == 1
    assert "stream covered" in found[0]
    await jetstream.delete_stream("theirs")
    await asyncio.to_thread(kit.persist, lambda: counted(0))
    await jetstream.add_stream(name="later", subjects=["free"])
    await asyncio.to_thread(kit.persist, lambda: counted(1))
    for each in (server, broker):
        each.kill()
        each.start()
    await asyncio.to_thread(kit.persist, lambda: counted(1))
    with (
        strandline.connect(broker.flight) as admin,
        pytest.raises(InvalidRequestError, match="'later'"),
    ):
        await asyncio.to_thread(admin.create_stream, "again", subject="free")


async def test_a_creation_is_checked_over_each_new_connection(broker, server, client, kit):
    """Also where JetStream's stream is older than the connection."""
    await client.jetstream().add_stream(name="theirs", subjects=["covered"])

    def has(connections):
        assert figure(broker, "strandline_nats_connections") == connections

    server.kill()
    await asyncio.to_thread(kit.persist, lambda: has(0))
    server.start()
    await asyncio.to_thread(kit.persist, lambda: has(CONNECTIONS))
    with (
        strandline.connect(broker.flight) as admin,
        pytest.raises(InvalidRequestError, match="'theirs'"),
    ):
        await asyncio.to_thread(admin.create_stream, "covered")


@pytest.mark.parametrize("settings", [{"jetstream": False}, {"more": MAY_NOT_ASK}])
async def test_a_server_without_jetstream_or_the_right_to_ask_holds_nothing_up(tmp_path, settings):
    """Streams are created and acked as usual."""
    plain = Server(tmp_path, **settings)
    plain.start()
    try:
        with (
            ProcessServer(tmp_path / "broker", arguments=("--nats", plain.url)) as broker,
            strandline.connect(broker.flight) as admin,
        ):
            await asyncio.to_thread(admin.create_stream, "orders")
            client = await nats.connect(plain.url)
            ack = await client.jetstream().publish("orders", b"x", timeout=10)
            assert (ack.stream, ack.seq) == ("orders", 1)
            await client.close()
            assert not [line for line in broker.errors if "ERROR" in line or "WARNING" in line]
    finally:
        plain.kill()
