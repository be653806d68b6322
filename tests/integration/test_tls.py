"""TLS towards clients on every listener: admitted and rejected ones, and nothing in clear text."""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import nats
import pytest
import trustme

import strandline
from strandline.config import TlsConfig
from strandline.errors import DisconnectedError, InvalidConfigError, StrandlineError
from strandline.process.ports import free_ports
from strandline.servers.grpc import listener as grpc_listener
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.nats import connection, server_link
from strandline.servers.nats.embedded_server import EmbeddedNatsServer
from strandline.testing import ProcessServer, Server
from tests.kit.waiting import until as wait_until


class Papers:
    """An authority, and PEM files of the certificates it has issued."""

    def __init__(self, directory, name):
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / f"{name}-ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)
        self.name = name
        self._issued = 0

    def issue(self, *names):
        """A certificate for names; its file and that of its key."""
        issued = self._authority.issue_cert(*names)
        self._issued += 1
        stem = f"{self.name}-{self._issued}"
        files = [self._directory / f"{stem}.{kind}" for kind in ("pem", "key")]
        for blob in issued.cert_chain_pems:
            blob.write_to_path(files[0], append=True)
        issued.private_key_pem.write_to_path(files[1])
        return files

    def context(self, *own):
        """For stock clients."""
        context = ssl.create_default_context(cafile=self.ca)
        if own:
            context.load_cert_chain(*own)
        return context


@pytest.fixture
def papers(tmp_path):
    return Papers(tmp_path, "ours")


@pytest.fixture
def strangers(tmp_path):
    return Papers(tmp_path, "theirs")


@pytest.fixture
def server(papers):
    """A broker with TLS that admits all clients."""
    certificate, key = papers.issue("127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key)}
    with Server(nats=True, http_port=0, tls=tls) as url:
        yield url


@pytest.fixture
def closed(papers):
    """A broker with TLS that asks clients for certificates."""
    certificate, key = papers.issue("127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key), "authority": str(papers.ca)}
    with Server(nats=True, http_port=0, tls=tls) as url:
        yield url


def connect(url, **options):
    return strandline.connect(f"tls://{url.flight}", timeout_s=5, **options)


async def publish(url, context, subject, payload, *, message_id=None):
    """Publish with stock nats-py and wait for the ack."""
    url = url.replace("nats://", "tls://")
    client = await nats.connect(url, tls=context, connect_timeout=5, allow_reconnect=False)
    try:
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        return await client.jetstream().publish(subject, payload, timeout=5, headers=headers)
    finally:
        await client.close()


async def test_every_listener_speaks_tls(server, papers):
    """Records published through nats-server, the ingest port and Flight are read back; the page."""

    def create():
        with connect(server, ca=papers.ca) as client:
            client.create_stream("orders")
            client.append("orders", b"by Flight")

    await asyncio.to_thread(create)
    await publish(server.nats_url, papers.context(), "orders", b"by nats-server")
    await publish(server.ingest_url, papers.context(), "orders", b"by ingest")

    def read():
        with connect(server, ca=papers.ca) as client:
            return client.read("orders").read_all()["value"].to_pylist()

    assert await asyncio.to_thread(read) == [b"by Flight", b"by nats-server", b"by ingest"]
    page = server.http_url.replace("http:", "https:") + "/health/ready"
    with await asyncio.to_thread(urllib.request.urlopen, page, context=papers.context()) as answer:
        assert answer.read() == b"ready\n"


async def test_many_publishers_shake_hands_at_once(server, papers):
    """Whatever comes right behind a handshake is neither lost nor answered in clear text."""

    def create():
        with connect(server, ca=papers.ca) as client:
            client.create_stream("orders")

    await asyncio.to_thread(create)
    context = papers.context()
    acks = await asyncio.gather(
        *(publish(server.ingest_url, context, "orders", b"%d" % number) for number in range(30))
    )
    assert sorted(ack.seq for ack in acks) == list(range(1, 31))


def test_the_grpc_ports_speak_tls(papers, strangers):
    """Liftbridge's API and Beam's: stock gRPC with a certificate is served, without one is not."""
    certificate, key = papers.issue("127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key), "authority": str(papers.ca)}
    own, others = papers.issue("client"), strangers.issue("client")
    server = Server(tls=tls, grpc={"port": 0, "beam_port": 0})
    with server:
        ready = server.app.ready_line()
        for port in (ready["grpc_port"], ready["beam_port"]):
            assert check_health(port, papers.ca, own) == b"\x08\x01", "serving"
            for files in (None, others):
                with pytest.raises(grpc.RpcError):
                    check_health(port, papers.ca, files)


def check_health(port, ca, own):
    """Return the answer of gRPC's health service on a port."""
    key, certificate = (own[1].read_bytes(), own[0].read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)


def test_a_cluster_is_reached_with_tls(papers, tmp_path, grpc_stub):
    """From any broker to the leader, with the same certificates; brokers use theirs.

    So they do for what they hand on: gRPC takes a publish at every broker, whoever leads, and so
    does its nats-server, which hands it to the others over TLS.
    """
    own = papers.issue("client")
    servers, routes = members_of_a_cluster(papers, tmp_path)
    options = {"ca": papers.ca, "certificate": own[0], "key": own[1]}
    with ThreadPoolExecutor() as together:
        try:
            list(together.map(ProcessServer.start, servers))
            with connect(servers[1], **options) as client:
                create_patiently(client)
            with connect(servers[1], **options) as client:
                client.create_stream("led-by-one", subject="one", replicas=1)
                for partition in range(3):
                    client.append("orders", b"%d" % partition, partition=partition)
                values = client.read("orders").read_all()["value"].to_pylist()
            assert sorted(values) == [b"0", b"1", b"2"]
            for server in servers:
                publish_to_all_partitions(server.ready["grpc_port"], grpc_stub, papers.ca, own)
            check_routes(routes, papers, own)
            for number, server in enumerate(servers, 1):
                ack = publish_until_heard(server.nats_url, papers.context(*own), b"%d" % number)
                assert (ack.stream, ack.seq) == ("led-by-one", number)
        finally:
            for server in servers:
                server.kill()
                print(*server.errors, sep="\n")  # noqa: T201  if it fails


def members_of_a_cluster(papers, directory):
    """Three brokers that speak TLS to clients and to each other."""
    free = free_ports(6)
    ports, routes = free[:3], free[3:]
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(ports, 1))
    meeting = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(routes, 1))
    servers = []
    for number, port in enumerate(ports, 1):
        certificate, key = papers.issue("127.0.0.1", f"broker-{number}")
        files = {"CERTIFICATE": certificate, "KEY": key, "AUTHORITY": papers.ca}
        environment = {f"STRANDLINE_TLS__{name}": str(file) for name, file in files.items()}
        environment |= {
            f"STRANDLINE_CLUSTER__TLS_{name}": str(file) for name, file in files.items()
        }
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(port), "--grpc-port", "0", "--http-port", "-1")
        arguments += ("--nats-peers", meeting)
        servers.append(
            ProcessServer(
                directory / f"broker-{number}", arguments=arguments, environment=environment
            )
        )
    return servers, routes


def check_routes(ports, papers, own):
    """Other nats-servers are greeted over TLS, if the authority has signed for them."""
    for port in ports:
        told = greeting(port, papers.context(*own))
        assert (told["tls_required"], told["tls_verify"]) == (True, True)
        with pytest.raises(OSError, match=r"certificate required|bad certificate|EOF|reset"):
            greeting(port, papers.context())


def greeting(port, context):
    """Return the INFO that a nats-server sends on a TLS port."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return json.loads(recv_line(secured).removeprefix(b"INFO "))


def publish_until_heard(url, context, value):
    """Publish at one nats-server, once they are connected; return the leader's ack."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return asyncio.run(publish(url, context, "one", value, message_id=value.decode()))
        except (nats.errors.Error, OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def publish_to_all_partitions(port, grpc_stub, ca, own):
    """With stock gRPC at one broker; each is acknowledged with the next offset."""
    credentials = grpc.ssl_channel_credentials(
        ca.read_bytes(), own[1].read_bytes(), own[0].read_bytes()
    )
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        api = grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])
        for partition in range(3):
            request = pb.PublishRequest(
                stream="orders", partition=partition, value=b"handed on", ackPolicy=pb.ALL
            )
            assert api.Publish(request, timeout=60).ack.offset >= 1


def test_certificates_are_renewed_without_a_restart(papers, tmp_path):
    """After SIGHUP every listener but Flight's presents the new one; open connections stay."""
    files = papers.issue("127.0.0.1")
    environment = {
        "STRANDLINE_TLS__CERTIFICATE": str(files[0]),
        "STRANDLINE_TLS__KEY": str(files[1]),
        "STRANDLINE_GRPC__PORT": "0",
        "STRANDLINE_GRPC__BEAM_PORT": "0",
    }
    context = papers.context()
    with ProcessServer(tmp_path / "data", environment=environment) as server:
        before = shown_everywhere(server, context)
        assert len(before) == 1
        greeted = socket.create_connection(("127.0.0.1", server.ready["ingest_port"]), timeout=30)
        recv_line(greeted)
        with context.wrap_socket(greeted, server_hostname="127.0.0.1") as connected:
            connected.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            assert recv_line(connected) == b"PONG\r\n"
            for old, new in zip(files, papers.issue("127.0.0.1"), strict=True):
                new.replace(old)
            wanted = {ssl.PEM_cert_to_DER_cert(files[0].read_text())}
            assert wanted != before
            server.signal(signal.SIGHUP)
            until(lambda: shown_everywhere(server, context) == wanted, "the new one is shown")
            connected.sendall(b"PING\r\n")
            assert recv_line(connected) == b"PONG\r\n"
        assert server.stop() == 0


def shown_everywhere(server, context):
    """Return the certificates that listeners present to new connections."""
    found = set()
    for name in ("http", "grpc", "beam", "nats", "ingest"):
        port = server.ready[f"{name}_port"]
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        if name in ("nats", "ingest"):
            recv_line(plain)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            found.add(secured.getpeercert(binary_form=True))
    return found


def create_patiently(client):
    """Create a stream as soon as the brokers know each other."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.create_stream("orders", partitions=3, replicas=3, min_isr=2)
        except StrandlineError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(0.1)


def test_a_client_checks_the_broker(server, papers, strangers):
    """Another authority or another name: no connection."""
    with pytest.raises(DisconnectedError):
        connect(server, ca=strangers.ca)
    port = server.flight.rpartition(":")[2]
    with pytest.raises(DisconnectedError):
        strandline.connect(f"tls://localhost:{port}", ca=papers.ca, timeout_s=5)


def test_without_tls_there_is_no_connection(papers):
    """Clear text on a TLS port is no way in, whichever listener has it."""
    certificate, key = papers.issue("127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key)}
    server = Server(nats=True, http_port=0, grpc={"port": 0, "beam_port": 0}, tls=tls)
    with server as url:
        with pytest.raises(StrandlineError):
            strandline.connect(url.flight, timeout_s=5)
        ready = server.app.ready_line()
        for port in (ready["grpc_port"], ready["beam_port"]):
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                with pytest.raises(grpc.RpcError):
                    check(b"", timeout=5)
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{url.http_url.replace('https:', 'http:')}/health/ready")
        for listener_url in (url.nats_url, url.ingest_url):
            assert said_in_clear_text(listener_url, b"CONNECT {}\r\nPING\r\n").count(b"PONG") == 0


def said_in_clear_text(url, text):
    """Return the answer of a NATS listener before it closes the connection."""
    host, _, port = url.rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        plain.sendall(text)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := plain.recv(4096):
                answer += piece
    return answer


async def test_clients_without_a_certificate_are_kept_out(closed, papers, strangers):
    """None, or one that a stranger signed; with one of the authority's everything works."""
    own, others = papers.issue("client"), strangers.issue("client")

    def attempt(**options):
        with connect(closed, ca=papers.ca, **options) as client:
            client.create_stream("orders")

    for options in ({}, {"certificate": others[0], "key": others[1]}):
        with pytest.raises(DisconnectedError):
            await asyncio.to_thread(attempt, **options)
    await asyncio.to_thread(attempt, certificate=own[0], key=own[1])
    for url in (closed.nats_url, closed.ingest_url):
        for context in (papers.context(), papers.context(*others)):
            with pytest.raises((nats.errors.Error, OSError, TimeoutError)):
                await publish(url, context, "orders", b"x")
        assert (await publish(url, papers.context(*own), "orders", b"x")).seq
    page = closed.http_url.replace("http:", "https:") + "/health/ready"
    with await asyncio.to_thread(urllib.request.urlopen, page, context=papers.context()) as answer:
        assert answer.read() == b"ready\n", "probes have no certificate"


def recv_line(sock):
    data = b""
    while not data.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            raise OSError("EOF")
        data += byte
    return data


def test_quick_clients_shake_hands(server, papers):
    """A client that answers the greeting at once is not taken for one without TLS."""
    host, _, port = server.ingest_url.removeprefix("nats://").partition(":")
    for _ in range(30):
        plain = socket.create_connection((host, int(port)), timeout=30)
        recv_line(plain)
        with papers.context().wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            secured.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            assert recv_line(secured) == b"PONG\r\n"


def test_nothing_said_in_clear_text_counts(server, papers):
    """Commands smuggled in before the handshake are never carried out, with or without one."""
    with connect(server, ca=papers.ca) as client:
        client.create_stream("orders")
        host, _, port = server.ingest_url.removeprefix("nats://").partition(":")
        smuggled = b'CONNECT {"verbose":false}\r\nPUB orders 1\r\nx\r\nPING\r\n'
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            assert b'"tls_required":true' in recv_line(plain)
            plain.sendall(smuggled)
            answer = b""
            while piece := plain.recv(4096):
                answer += piece
            assert b"PONG" not in answer
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            recv_line(plain)
            plain.sendall(smuggled)
            with pytest.raises(OSError):
                papers.context().wrap_socket(plain, server_hostname="127.0.0.1")
        client.append("orders", b"mine")
        assert client.read("orders").read_all()["value"].to_pylist() == [b"mine"]
    until(lambda: ingest_connections(server, papers) == 0, "connections that failed are forgotten")


until = partial(wait_until, seconds=30)


def ingest_connections(server, papers):
    page = server.http_url.replace("http:", "https:") + "/metrics"
    with urllib.request.urlopen(page, context=papers.context(), timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith('strandline_connections{listener="ingest"}')]
    return float(found[0].split()[1]) if found else None


def test_who_never_shakes_hands_is_let_go(server, papers, monkeypatch):
    """A connection that says nothing after the greeting does not stay."""
    monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT_S", 0.3)
    host, _, port = server.ingest_url.removeprefix("nats://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as silent:
        recv_line(silent)
        assert silent.recv(100) == b""
    until(lambda: ingest_connections(server, papers) == 0, "it is forgotten")


def test_who_never_shakes_hands_is_let_go_by_grpc_too(papers, monkeypatch):
    """Until then it counts for no limit of connections."""
    monkeypatch.setattr(grpc_listener, "HANDSHAKE_TIMEOUT_S", 0.5)
    certificate, key = papers.issue("127.0.0.1")
    running = Server(tls={"certificate": str(certificate), "key": str(key)}, grpc={"port": 0})
    with running:
        address = ("127.0.0.1", running.app.ready_line()["grpc_port"])
        with socket.create_connection(address) as silent:
            silent.settimeout(20)  # far less than the minute of asyncio
            with contextlib.suppress(ConnectionResetError):
                assert silent.recv(1) == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_rejected(server, papers):
    """A client that offers at most TLS 1.1 is disconnected."""
    old = papers.context()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    for port in (server.flight.rpartition(":")[2], server.http_url.rpartition(":")[2]):
        with (
            socket.create_connection(("127.0.0.1", int(port)), timeout=10) as plain,
            pytest.raises(OSError, match=r"alert protocol version|EOF|reset"),
        ):
            old.wrap_socket(plain, server_hostname="127.0.0.1").do_handshake()


def test_a_certificate_that_is_no_use_stops_the_start(papers, tmp_path):
    """A missing file, and a key of another certificate; nothing listens in clear text instead."""
    certificate, _ = papers.issue("127.0.0.1")
    _, other_key = papers.issue("other")
    for key in (tmp_path / "none", other_key):
        server = Server(tls={"certificate": str(certificate), "key": str(key)})
        with pytest.raises(InvalidConfigError, match="cannot use certificate"):
            server.start()


async def test_nats_servers_with_tls_of_ones_own(papers, tmp_path, monkeypatch):
    """The broker connects to an external server over TLS, and verifies it."""
    monkeypatch.setattr(server_link, "FIRST_CONNECTION_TIMEOUT_S", 2.0)
    certificate, key = papers.issue("127.0.0.1")
    tls = TlsConfig(certificate=str(certificate), key=str(key))
    child = EmbeddedNatsServer(
        tmp_path / "nats", host="127.0.0.1", port=0, payload_max=1 << 20,
        on_restart=lambda: None, tls=tls,
    )  # fmt: skip
    await child.start()
    try:
        url = f"tls://127.0.0.1:{child.port}"
        settings = {"servers": [url], "authority": str(papers.ca)}
        server = Server(nats=settings)
        flight = await asyncio.to_thread(server.start)
        try:

            def create():
                with strandline.connect(flight) as client:
                    client.create_stream("orders")

            await asyncio.to_thread(create)
            assert (await publish(url, papers.context(), "orders", b"x")).seq == 1
        finally:
            await asyncio.to_thread(server.stop)
        with pytest.raises(StrandlineError, match="cannot connect to NATS"):
            await asyncio.to_thread(Server(nats={"servers": [url]}).start)
    finally:
        await child.stop()


@pytest.mark.parametrize("has_authority", [False, True])
def test_the_console_is_no_way_around_certificates(papers, has_authority):
    """It works by TLS, and where only certificates keep strangers out, it asks for a login."""
    certificate, key = papers.issue("127.0.0.1")
    tls = {"certificate": str(certificate), "key": str(key)}
    if has_authority:
        tls["authority"] = str(papers.ca)

    def page(url, **headers):
        address = f"{url.http_url.replace('http:', 'https:')}/streams"
        request = urllib.request.Request(address, headers=headers)
        try:
            with urllib.request.urlopen(request, context=papers.context(), timeout=60) as answer:
                return answer.status, answer.headers["set-cookie"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    with Server(http_port=0, tls=tls) as url:
        status, text = page(url)
        assert status == (403 if has_authority else 200)
        assert ("auth.enabled" if has_authority else "Secure") in text
    token = "an-administrators-token-made-for-this-test"
    with Server(http_port=0, tls=tls, auth={"enabled": True, "admin_token": token}) as url:
        assert page(url, Authorization=f"Bearer {token}")[0] == 200
        assert page(url, Authorization="Bearer wrong")[0] == 401
