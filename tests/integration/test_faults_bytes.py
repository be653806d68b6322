"""Hostile bytes on every listener of a real broker affect their sender only.

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
from strandline.broker.peers.frame import HEAD, encode_frame
from strandline.broker.peers.handshake import PeerIdentity, encode_hello
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from strandline.types import BrokerId

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("BYTES_SEED", "1"))
ROUNDS = int(os.environ.get("BYTES_ROUNDS", "400"))
GROWTH_BYTES_MAX = 80 << 20


def h2(kind, payload=b"", *, flags=0, stream=0, length=None):
    """A frame of HTTP/2, which may lie about its length."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2(4)
GRPC = [
    PREFACE, h2(4, flags=1), h2(4, b"\0\4\xff\xff\xff\xff"), h2(6, bytes(8)),
    h2(1, b"\x83\x86\x84" + b"\x40\x01a" + b"\xff" * 9, flags=4, stream=1), h2(0, b"x", stream=1),
    h2(1, b"\x83", stream=3), h2(9, b"\x82" * 5000, stream=3), h2(3, bytes(4), stream=1),
    h2(8, b"\x7f\xff\xff\xff"), h2(0, b"\0\xff\xff\xff\xff", stream=1),
    h2(0, length=0xFFFFFF, stream=1), h2(7, bytes(8)),
    PREFACE + h2(1, b"\x83\x86\x04\x12/proto.API/Publish", flags=4, stream=1), h2(200, bytes(99)),
]  # fmt: skip
STRANGER = PeerIdentity(cluster_id="bytes", broker_id=BrokerId(2), incarnation="x")
HELLO = b"".join(encode_hello(STRANGER, BrokerId(1)))
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
    "grpc_port": GRPC,
    "beam_port": GRPC,
    "peer_port": [
        HELLO, *encode_frame(1, b"\x80"), *encode_frame(3, b"\xc1"), HEAD.pack(9, 0, 0, 0, 0),
        HEAD.pack(0xFFFFFFFF, 0, 1, 0xFFFFFFFF, 0xFFFFFFFF), HEAD.pack(60 << 20, 0, 0, 10, 3),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One broker for all of it, with every listener there is: it must outlive every test."""
    [port] = free_ports(1)
    arguments = ("--grpc-port", "0", "--beam-port", "0", "--broker-id", "1")
    arguments += ("--cluster-id", "bytes", "--peers", f"1=127.0.0.1:{port}")
    arguments += ("--peer-port", str(port))
    data = tmp_path_factory.mktemp("bytes") / "data"
    with ProcessServer(data, arguments=arguments) as server:
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
    """Return the memory of the process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def send(port, data, *, wait_s=0.05):
    """Send bytes and read until the other end closes, or a timeout."""
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


@pytest.mark.parametrize("port_name", GRAINS)
def test_noise_on_every_port(server, port_name):
    """Random bytes, and shuffled, truncated and corrupt words of the port's protocol."""
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


ANNOUNCED = {
    "ingest_port": b'CONNECT {"verbose":false}\r\nPUB s 1048000\r\n' + bytes(10_000),
    "http_port": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
    + bytes(10_000),
    "grpc_port": PREFACE + h2(0, bytes(10_000), stream=1, length=0xFFFFFF),
    "peer_port": HEAD.pack(60 << 20, 0, 0, 10, 0) + bytes(10_000),
}


@pytest.mark.parametrize("port_name", ANNOUNCED)
def test_lengths_are_not_believed(server, port_name):
    """A hundred clients that announce 100 MB to 100 GB cost no more than the 1 MB they send."""
    before = memory_bytes(server.pid)
    sockets = []
    for _ in range(100):
        connection = socket.create_connection(("127.0.0.1", server.ready[port_name]), timeout=5)
        with contextlib.suppress(ConnectionError):  # it may have been refused already
            connection.sendall(ANNOUNCED[port_name])
        sockets.append(connection)
    with strandline.connect(server.flight) as client:
        client.append("s", b"behind them: they were read")
    growth = memory_bytes(server.pid) - before
    for connection in sockets:
        connection.close()
    assert growth < 10 << 20


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 3 << 20])
def test_oversized_records_name_the_limit(server, size):
    """A record at the limit is stored; one over it is rejected with the limit's name."""
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
    """Hundreds of silent connections on every port leave room for active ones."""
    sockets = [
        socket.create_connection(("127.0.0.1", server.ready[name]), timeout=5)
        for name in GRAINS
        for _ in range(100)
    ]
    with strandline.connect(server.flight) as client:
        client.append("s", b"between them")
    for connection in sockets:
        connection.close()
