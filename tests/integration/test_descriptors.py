"""A broker with few file descriptors: strangers take none that storage needs, partitions fit."""

import resource
import socket
import sys
import urllib.request

import pytest

import strandline
from strandline.errors import InvalidConfigError
from strandline.testing import ProcessServer

pytestmark = pytest.mark.slow
TOKEN = "a" * 40
FEW = ("prlimit", "--nofile=512", sys.executable, "-m", "strandline.cli", "serve")
AUTH = {"STRANDLINE_AUTH__ENABLED": "true", "STRANDLINE_AUTH__ADMIN_TOKEN": TOKEN}


@pytest.fixture
def many_sockets():
    """Connects to ports and holds the connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    held = []

    def connect(port, count):
        for _ in range(count):
            try:
                held.append(socket.create_connection(("127.0.0.1", port), timeout=2))
            except OSError:
                return

    yield connect
    for each in held:
        each.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def publish(producer):
    """Fill a few segments, and wait for it."""
    acks = [producer.append(bytes(20_000)) for _ in range(50)]
    assert all(ack.result(30).offset >= 0 for ack in acks)


def test_idle_strangers_keep_nobody_from_publishing(tmp_path, many_sockets, kit):
    """Twice as many idle connections as descriptors, at each listener."""
    command = (*FEW, "--output", "json")
    with ProcessServer(tmp_path / "data", command=command, environment=AUTH) as server:
        with (
            strandline.connect(server.flight, token=TOKEN) as client,
            client.producer(client.create_stream("s", segment_bytes=65536).name) as producer,
        ):
            for port in (server.ready["flight_port"], server.ready["ingest_port"]):
                many_sockets(port, 1000)
                publish(producer)

        def another_connects():
            with strandline.connect(server.flight, token=TOKEN, timeout_s=5) as another:
                assert another.append("s", b"v").offset == 100

        # Strangers that Flight took are sent away after a few seconds.
        kit.persist(another_connects)


def test_what_is_loaded_late_is_loaded_beside_idle_strangers(tmp_path, many_sockets, kit):
    """The first append and the first web page find descriptors for the files of their libraries."""
    command = (*FEW, "--output", "json")
    with (
        ProcessServer(tmp_path / "data", command=command, environment=AUTH) as server,
        strandline.connect(server.flight, token=TOKEN) as client,
    ):
        client.create_stream("s")
        for port in (server.ready["flight_port"], server.ready["ingest_port"]):
            many_sockets(port, 1000)
        assert client.append("s", b"v").offset == 0

        def a_probe_is_answered():
            try:
                with urllib.request.urlopen(f"{server.http_url}/health/live", timeout=60) as answer:
                    assert answer.status == 200
            except ConnectionError as error:
                raise AssertionError("a probe was closed") from error

        # While Flight's strangers have all descriptors, uvloop closes what it cannot accept.
        kit.persist(a_probe_is_answered)


def test_partitions_that_would_not_open_again_are_rejected(tmp_path):
    """The error says how many there may be; with just as many written the broker starts again."""
    command = (*FEW, "--output", "json")
    with ProcessServer(tmp_path / "data", command=command) as server:
        with strandline.connect(server.flight, timeout_s=60) as client:
            with pytest.raises(InvalidConfigError, match=r"there is room for \d+.*ulimit -n") as no:
                client.create_stream("big", partitions=3000)
            room = int(str(no.value).split("there is room for ")[1].split(":")[0])
            client.create_stream("fits", partitions=room)
            with client.producer("fits", delivery_timeout_s=60) as producer:
                acks = [producer.append(b"v", partition=number) for number in range(room)]
                assert [ack.result(60).offset for ack in acks] == [0] * room
            with pytest.raises(InvalidConfigError, match="there is room for 0"):
                client.create_stream("another")
        server.kill()
        server.start()
        with strandline.connect(server.flight, timeout_s=60) as client:
            assert client.read("fits").read_all().num_rows == room
