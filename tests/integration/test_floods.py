"""Unauthenticated clients that send as much as they can starve nobody and fence no broker.

Judged are a publisher through nats-server and a client of the very listener that is flooded.
"""

import asyncio
import contextlib
import functools
import socket
import struct
import threading
import time
import urllib.request

import grpc
import hpack
import nats
import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import ProcessServer
from tests.kit.clusters import WITH_HTTP, leader_of, status, three_brokers

SECONDS = 1.5
PAIRS_MAX = 3
SHARE = 0.3
"""Of the rate without an attack, which others keep at least."""
WAIT_S_MAX = 2.0
"""A publisher behind the messages that nats-server queues for one connection waits longer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"


def frame(kind, stream_id, payload=b"", flags=0):
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


def call(stream_id, path=b"/proto.API/PublishAsync", more=()):
    """HEADERS that begin a call."""
    return frame(1, stream_id, header_block(path, more), flags=4)


@functools.cache
def header_block(path, more):
    """The headers of a call, encoded."""
    names = (b":method", b":scheme", b":path", b":authority", b"content-type", b"te")
    values = (b"POST", b"http", path, b"x", b"application/grpc", b"trailers")
    return hpack.Encoder().encode([*zip(names, values, strict=True), *more])


HELLO = GREETING + frame(4, 0)
TINY = b"".join(frame(0, 1, b"%c" % byte) for byte in b"\0\0\0\0\2\x10\1" * 500)
MORE = tuple((b"h%d" % k, b"v") for k in range(900))
MANY_HEADERS = b"".join(call(2 * n + 1, more=MORE) for n in range(100))
DO_ACTION = b"/arrow.flight.protocol.FlightService/DoAction"
EMPTY_ACTIONS = b"".join(
    call(2 * n + 1, DO_ACTION) + frame(0, 2 * n + 1, bytes(5), flags=1) for n in range(100)
)
CONNECT = b'CONNECT {"verbose":false}\r\n'
ATTACKS = {  # name → port, first bytes, and the bytes that are sent over and over
    "chunks to HTTP": (
        "http_port",
        GET[:-2] % b"/health/live" + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\nz\r\n" * 5000,
    ),
    "pipelined probes": ("http_port", b"", GET % b"/health/live" * 500),
    "pipelined metrics": ("http_port", b"", GET % b"/metrics" * 500),
    "PING": ("grpc_port", HELLO, frame(6, 0, bytes(8)) * 1000),
    "PRIORITY": ("grpc_port", HELLO, frame(2, 3, bytes(5)) * 1000),
    "WINDOW_UPDATE": ("grpc_port", HELLO, frame(8, 0, b"\0\0\0\1") * 1000),
    "unknown frames": ("grpc_port", HELLO, frame(0x55, 0, b"z") * 1000),
    "empty DATA": ("grpc_port", HELLO + call(1), frame(0, 1) * 3000),
    "tiny DATA": ("grpc_port", HELLO + call(1), TINY),
    "calls with many headers": ("grpc_port", HELLO, MANY_HEADERS),
    "PING to Flight": ("flight_port", HELLO, frame(6, 0, bytes(8)) * 1000),
    "calls to Flight": ("flight_port", HELLO, EMPTY_ACTIONS),
    "PING to Beam": ("beam_port", HELLO, frame(6, 0, bytes(8)) * 1000),
    "PING of NATS": ("ingest_port", CONNECT, b"PING\r\n" * 5000),
    "CONNECT of NATS": ("ingest_port", b"", CONNECT * 2000),
    "empty messages to nobody": ("ingest_port", CONNECT, b"PUB nobody 0\r\n\r\n" * 4000),
    "empty messages": ("ingest_port", CONNECT, b"PUB flooded 0\r\n\r\n" * 4000),
}
THROUGH_NATS = {"empty messages": ("nats_port", CONNECT, b"PUB flooded 0\r\n\r\n" * 4000)}


@contextlib.contextmanager
def attack(ready, name, attacks=ATTACKS):
    """One connection that sends as much as it can, and reconnects when it is closed."""
    port, hello, piece = attacks[name]
    stop, sent = threading.Event(), []

    def run():
        while not stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", ready[port]), timeout=2) as client:
                    client.settimeout(0.5)
                    threading.Thread(target=drain, args=(client,), daemon=True).start()
                    client.sendall(hello)
                    while not stop.is_set():
                        client.sendall(piece)
                        sent.append(len(piece))
            except OSError:
                stop.wait(0.05)

    attacker = threading.Thread(target=run)
    attacker.start()
    try:
        yield
    finally:
        stop.set()
        attacker.join()
    assert sent, "it was never let in"


def drain(client):
    """Read the answers."""
    try:
        while client.recv(1 << 16):
            pass
    except OSError:
        pass  # it was cut off


@contextlib.asynccontextmanager
async def publisher(url):
    """Publish and wait for the ack, through nats-server or at the ingest listener."""
    async with await nats.connect(url) as client:
        yield lambda: client.jetstream().publish("orders", b"x" * 200, timeout=2)


@contextlib.asynccontextmanager
async def appender(server):
    """Append over Arrow Flight and wait for the ack."""
    with strandline.connect(server.flight) as client:
        yield lambda: asyncio.to_thread(client.append, "orders", b"x" * 200, timeout_s=2)


@contextlib.asynccontextmanager
async def liftbridge_publisher(server, grpc_stub):
    """Publish and wait for the ack with Liftbridge's API."""
    with grpc.insecure_channel(f"127.0.0.1:{server.ready['grpc_port']}") as channel:
        api = grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])
        request = pb.PublishRequest(stream="orders", value=b"x" * 200, ackPolicy=pb.ALL)
        yield lambda: asyncio.to_thread(api.Publish, request, timeout=2)


@contextlib.asynccontextmanager
async def prober(server):
    """Ask whether the broker lives."""

    def ask():
        with urllib.request.urlopen(f"{server.http_url}/health/live", timeout=2) as answer:
            answer.read()

    yield lambda: asyncio.to_thread(ask)


def neighbour(server, port, grpc_stub):
    """A well-behaved client of a listener."""
    match port:
        case "grpc_port" | "beam_port":  # calls of both are served by one loop
            return liftbridge_publisher(server, grpc_stub)
        case "http_port":
            return prober(server)
        case "flight_port":
            return appender(server)
        case "ingest_port":
            return publisher(server.ingest_url)
    raise AssertionError(port)


REFUSALS = (nats.errors.Error, StrandlineError, grpc.RpcError, OSError)
"""A call that is not answered does not count."""


async def rate_of(call, seconds):
    """Answers per second to a client each of whose calls waits for the one before."""
    end_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        with contextlib.suppress(*REFUSALS):
            await call()
            count += 1
        await asyncio.sleep(0.01)
    return count / seconds


async def check_share(calls, ready, name, attacks=ATTACKS):
    """Fail if an attack takes more from one of these clients than it may.

    Other work on the machine disturbs single measurements; a flood that slows others down does so
    in each of them.
    """
    found = []

    async def rates():
        return await asyncio.gather(*(rate_of(call, SECONDS) for call in calls))

    for _ in range(PAIRS_MAX):
        before = await rates()
        with attack(ready, name, attacks):
            during = await rates()
        if all(now >= SHARE * then > 0 for then, now in zip(before, during, strict=True)):
            return
        found.append(f"{before} → {during}")
    pytest.fail(f"{name}: {', '.join(found)} calls/s")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A broker with every listener."""
    grpc_port, beam_port = free_ports(2)
    arguments = ("--grpc-port", str(grpc_port), "--beam-port", str(beam_port))
    with ProcessServer(tmp_path_factory.mktemp("floods"), arguments=arguments) as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("orders")
            client.create_stream("flooded")
            client.create_stream("other")  # by another connection of the broker to nats-server
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_others_go_on_while_a_stranger_floods_a_listener(server, name, grpc_stub):
    """One connection without credentials costs others less than 0.7 of their rate.

    Others are a publisher at another listener and a client of the same one.
    """
    port = ATTACKS[name][0]
    async with publisher(server.nats_url) as publish, neighbour(server, port, grpc_stub) as call:
        await check_share([publish, call], server.ready, name)


@pytest.mark.slow
async def test_empty_messages_from_nats_starve_nobody(server):
    """The API answers, other publishers continue, and nats-server stays connected."""
    async with publisher(server.ingest_url) as publish:
        await check_share([publish], server.ready, "empty messages", THROUGH_NATS)
        with (
            attack(server.ready, "empty messages", THROUGH_NATS),
            strandline.connect(server.flight, timeout_s=5) as api,
        ):
            began_s = time.monotonic()
            await asyncio.to_thread(api.list_streams)
            assert time.monotonic() - began_s < 2.0
    assert not [line for line in server.errors if "lost the connection" in line]


@pytest.mark.slow
async def test_a_flood_on_a_nats_server_does_not_hold_up_streams_of_other_connections(server):
    """A publish does not wait until the messages before it are taken."""
    client = await nats.connect(server.nats_url)
    jetstream = client.jetstream()
    waited_s = []
    with attack(server.ready, "empty messages", THROUGH_NATS):
        end_s = time.monotonic() + 2 * SECONDS
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            await jetstream.publish("other", b"x", timeout=10)
            waited_s.append(time.monotonic() - began_s)
    await client.close()
    assert max(waited_s) < WAIT_S_MAX


@pytest.mark.slow
async def test_nobody_is_fenced_while_a_stranger_floods_the_leader(tmp_path, kit):
    """In a cluster, the leader keeps its partition and every broker stays in service."""
    with three_brokers(tmp_path, more=("--grpc-port", "0", *WITH_HTTP)) as cluster:
        addresses = ",".join(server.flight for server in cluster.values())
        with strandline.connect(addresses, timeout_s=60) as client:
            client.create_stream("orders", replicas=3, min_isr=2, acks="replicated")
        leader = kit.persist(lambda: leader_of(cluster))
        epoch = status(cluster[2]).leader_epoch
        async with publisher(cluster[leader].nats_url) as publish:
            for name in ("chunks to HTTP", "tiny DATA"):
                await check_share([publish], cluster[leader].ready, name)
                found = status(cluster[2])
                assert (found.leader, found.leader_epoch) == (leader, epoch)
                assert len(found.isr) == 3
