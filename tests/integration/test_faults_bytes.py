"""Hostile bytes on every listener of a real broker: they cost their sender, never the broker.

``BYTES_SEED`` and ``BYTES_ROUNDS`` choose and repeat what is sent.
"""

import contextlib
import os
import random
import socket
import struct
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.testing import ProcessServer

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("BYTES_SEED", "1"))
ROUNDS = int(os.environ.get("BYTES_ROUNDS", "400"))
PORTS = ("ingest_port", "flight_port", "http_port", "nats_port")
GROWTH_BYTES_MAX = 150 << 20
GRAINS = {
    "ingest_port": [
        b"CONNECT {}\r\n", b"CONNECT {\r\n", b"PING\r\n", b"PONG\r\n", b"SUB _INBOX.1 1\r\n",
        b"PUB s 5\r\nhello\r\n", b"PUB s _INBOX.1 99999999999\r\n", b"PUB s -1\r\n", b"PUB\r\n",
        b"HPUB s _INBOX.1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n", b"HPUB s 99 5\r\n", b"\r\n" * 50,
        b"PUB " + b"x" * 5000, b"MSG s 1 5\r\nhello\r\n", b"\x00" * 64, b"PUB s 1048577\r\n",
        b"HPUB s 22 22\r\nNATS/1.0\r\nNats-Msg-Id\r\n\r\n", b"SUB " + b"a." * 3000 + b"> 1\r\n",
    ],
    "flight_port": [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        struct.pack(">I", 0xFFFFFF00) + b"\x01" * 5, b"GET / HTTP/1.1\r\n\r\n",
    ],
    "http_port": [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /" + b"a" * 70_000, b"POST / HTTP/1.1\r\n",
        b"Content-Length: 99999999999999\r\n\r\n", b"X: " + b"y" * 100_000 + b"\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n",
        b"GET /api/streams/%00%ff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    "nats_port": [b"CONNECT {}\r\n", b"PUB s 5\r\nhello\r\n", b"PUB s 99999999999\r\n"],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One broker for all of it: it must outlive every test."""
    with ProcessServer(tmp_path_factory.mktemp("bytes") / "data") as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s")
            client.append("s", b"before")
        yield server


@pytest.fixture(autouse=True)
def still_serves(server):
    """After each attack it is the same process, no bigger, and honest clients are served."""
    before = memory_bytes(server.pid)
    yield
    assert server.is_running
    assert "Traceback" not in "".join(server.errors), "no bug was met on the way"
    with strandline.connect(server.flight) as client:
        client.append("s", b"after")
        assert next(client.read("s", records_max=1)).num_rows == 1
    with urllib.request.urlopen(f"{server.http_url}/health/ready", timeout=10) as answer:
        assert answer.status == 200
    assert memory_bytes(server.pid) < before + GROWTH_BYTES_MAX


def memory_bytes(pid):
    """What the process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def send(port, data, *, wait_s=0.05):
    """Send bytes and take what comes back, until the other end or our patience ends."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
    ):
        connection.settimeout(wait_s)
        connection.sendall(data)
        while connection.recv(65_536):
            pass


def attack(choice, port_name):
    """Something between noise and the port's own language."""
    grains = GRAINS[port_name]
    parts = []
    for _ in range(choice.randint(1, 6)):
        part = bytearray(choice.choice(grains))
        if choice.random() < 0.3:
            part = bytearray(choice.randbytes(choice.randint(1, 2000)))
        for _ in range(choice.choice((0, 0, 1, 3))):
            part[choice.randrange(len(part))] = choice.randrange(256)
        parts.append(bytes(part[: choice.randint(1, len(part))] if choice.random() < 0.2 else part))
    return b"".join(parts)


@pytest.mark.parametrize("port_name", PORTS)
def test_noise_on_every_port(server, port_name):
    """Random bytes, and words of the port's protocol shuffled, cut and damaged."""
    choice = random.Random(f"{SEED} {port_name}")
    attacks = [attack(choice, port_name) for _ in range(ROUNDS)]

    def work(share):
        for data in share:
            send(server.ready[port_name], data, wait_s=0.01)

    threads = [threading.Thread(target=work, args=(attacks[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_lengths_are_not_believed(server):
    """A hundred publishers that announce a gigabyte and send nothing cost no memory."""
    sockets = []
    for _ in range(100):
        connection = socket.create_connection(("127.0.0.1", server.ready["ingest_port"]), timeout=5)
        connection.sendall(b'CONNECT {"verbose":false}\r\nPUB s 1048000\r\n' + bytes(10_000))
        sockets.append(connection)
    assert memory_bytes(server.pid) < 500 << 20
    for connection in sockets:
        connection.close()


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 3 << 20])
def test_oversized_records_name_the_limit(server, size):
    """A record at the limit is stored; one over it is refused with the limit's name."""
    with strandline.connect(server.flight) as client:
        if size <= 1 << 20:
            client.append("s", bytes(size))
            return
        with pytest.raises(StrandlineError, match=r"limits\.record_bytes|1048576") as caught:
            client.append("s", bytes(size))
        assert caught.value.code == "record_too_large"


def test_pages_that_are_not_there(server):
    """Odd paths and methods get a plain HTTP error."""
    for path in ("/nothing", "/api/streams/nothing", "/api/streams/%2e%2e%2fetc", "/%ff"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(server.http_url + path, timeout=10)
        assert caught.value.code in (400, 404)
        caught.value.close()
    request = urllib.request.Request(server.http_url + "/api/streams", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 405
    caught.value.close()


def test_connections_that_only_hang_around(server):
    """Hundreds of silent connections on every port leave room for those who speak."""
    sockets = [
        socket.create_connection(("127.0.0.1", server.ready[name]), timeout=5)
        for name in PORTS
        for _ in range(100)
    ]
    with strandline.connect(server.flight) as client:
        client.append("s", b"between them")
    for connection in sockets:
        connection.close()
