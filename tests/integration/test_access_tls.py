"""Identity by certificate: the same name on every listener, and its permissions by the rules."""

import socket
import ssl
from types import SimpleNamespace

import grpc
import pytest
import trustme

import strandline
from strandline.errors import NotAllowedError, UnauthenticatedError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import Server

ADMIN = "an-administrators-token-made-for-this-test"
TIMEOUT_S = 60
PEOPLE = {
    # who: (subject alternative names, common name)
    "root.example": (("root.example",), "somebody else"),
    "app.example": (("app.example", "second.example"), None),
    "Alice Smith": ((), "Alice Smith"),
}


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """An authority, the broker's certificate, and one for each of the people."""
    directory, authority = tmp_path_factory.mktemp("papers"), trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")

    def issue(stem, names, common_name):
        issued = authority.issue_cert(*names, common_name=common_name)
        files = directory / f"{stem}.pem", directory / f"{stem}.key"
        for blob in issued.cert_chain_pems:
            blob.write_to_path(files[0], append=True)
        issued.private_key_pem.write_to_path(files[1])
        return files

    people = {
        who: issue(f"person-{number}", names, common)
        for number, (who, (names, common)) in enumerate(PEOPLE.items())
    }
    broker = issue("broker", ("127.0.0.1",), None)
    return SimpleNamespace(ca=directory / "ca.pem", broker=broker, people=people)


@pytest.fixture(scope="module")
def server(papers):
    """A broker that requires certificates and checks permissions."""
    certificate, key = map(str, papers.broker)
    running = Server(
        nats=True,
        grpc={"port": 0},
        tls={"certificate": certificate, "key": key, "authority": str(papers.ca)},
        auth={"enabled": True, "admin_token": ADMIN, "admins": ["root.example"]},
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture
def connect(server, papers):
    """Makes clients of people, with a token or without."""
    opened = []

    def connect(who, *, token=None):
        certificate, key = papers.people[who]
        files = {"ca": papers.ca, "certificate": certificate, "key": key}
        opened.append(strandline.connect(f"tls://{server.flight}", token=token, **files))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def rpc_status(server, papers, who):
    """Return the status of listing streams through Liftbridge's API; None for success."""
    key, chain = papers.people[who][1].read_bytes(), papers.people[who][0].read_bytes()
    secrets = grpc.ssl_channel_credentials(papers.ca.read_bytes(), key, chain)
    address = f"127.0.0.1:{server.app.ready_line()['grpc_port']}"
    with grpc.secure_channel(address, secrets) as channel:
        call = channel.unary_unary("/proto.API/Publish")
        request = pb.PublishRequest(stream="certified", value=b"v").SerializeToString()
        try:
            call(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code()
    return None


def ingest(server, papers, who, subject):
    """Return the ingest listener's answer to a publish: its ack, or an error."""
    context = ssl.create_default_context(cafile=papers.ca)
    context.load_cert_chain(*papers.people[who])
    address = ("127.0.0.1", server.app.ingest_port)
    with socket.create_connection(address, timeout=TIMEOUT_S) as plain:
        while plain.recv(1) != b"\n":  # the greeting, in clear text; not a byte of TLS
            pass
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            publish = f"SUB _INBOX.a 1\r\nPUB {subject} _INBOX.a 1\r\nv\r\n"
            secured.sendall(b'CONNECT {"verbose":false}\r\n' + publish.encode())
            with secured.makefile("rb") as lines:
                return next(line for line in lines if line.startswith((b"{", b"-ERR")))


def test_a_certificate_names_its_principal_on_every_listener(server, papers, connect):
    """The first subject alternative name, or else the common name: the same everywhere."""
    root = connect("root.example")
    root.create_stream("certified")
    for who in ("app.example", "Alice Smith"):
        with pytest.raises(NotAllowedError):
            connect(who)
        assert rpc_status(server, papers, who) is grpc.StatusCode.PERMISSION_DENIED
        assert b"Authorization Violation" in ingest(server, papers, who, "certified")
        root.access.grant(who, "publish", "stream", "certified")
        root.access.grant(who, "publish", "subject", "certified")
        connect(who).append("certified", b"v")
        assert rpc_status(server, papers, who) is None
        assert b'"seq"' in ingest(server, papers, who, "certified")
        with pytest.raises(NotAllowedError):
            connect(who).delete_stream("certified")
    assert {rule.principal for rule in root.access.rules()} == {"app.example", "Alice Smith"}
    root.delete_stream("certified")


def test_another_name_in_the_certificate_is_nobody(server, connect):
    """Rules for a second name, or for a common name beside others, admit nobody."""
    root = connect("root.example")
    root.create_stream("named")
    root.access.grant("second.example", "publish", "stream", "named")
    root.access.grant("somebody else", "publish", "stream", "named")
    with pytest.raises(NotAllowedError):
        connect("app.example").append("named", b"v")
    root.delete_stream("named")


def test_a_token_counts_before_the_certificate(connect):
    """A valid one determines the principal; a wrong one is an error."""
    root = connect("root.example")
    root.access.grant("token", "read", "stream", "*")
    token = root.access.create_token("token")
    client = connect("root.example", token=token)
    with pytest.raises(NotAllowedError):
        client.access.rules()
    with pytest.raises(UnauthenticatedError):
        connect("root.example", token="wrong")
