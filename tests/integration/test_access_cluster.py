"""Rules on three real brokers: given at one, kept by all, checked where a request arrives."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import strandline
from strandline.api.status import from_flight
from strandline.api.tickets import ReadRequest
from strandline.api.wire import encode
from strandline.errors import (
    NotAllowedError,
    StrandlineError,
    UnauthenticatedError,
    UnavailableError,
)
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import ProcessServer
from tests.kit.waiting import until as wait_until

ADMIN = "an-administrators-token-made-for-this-test"
AUTH = {"STRANDLINE_AUTH__ENABLED": "true", "STRANDLINE_AUTH__ADMIN_TOKEN": ADMIN}
IDS = (1, 2, 3)
PATIENCE_S = 90
TIMEOUT_S = 40
SILENCE_S = 7
"""Longer than a client waits for the ack of a leader before it looks for another."""
LEASE_BOUND_S = 5
"""As docs/security.md says."""
DENIED = pb.PublishAsyncError.PERMISSION_DENIED
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Cluster:
    """Three broker processes with access checks, and clients of each."""

    def __init__(self, directory, grpc_stub):
        ports = free_ports(3)
        peers = ",".join(f"{n}=127.0.0.1:{ports[n - 1]}" for n in IDS)
        self._stub = grpc_stub
        self._channels = {}
        self.servers = {}
        for number in IDS:
            arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
            arguments += ("--peer-port", str(ports[number - 1]), "--grpc-port", "0")
            directory_of = directory / f"broker-{number}"
            self.servers[number] = ProcessServer(
                directory_of, arguments=arguments, environment=AUTH
            )

    def start(self):
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, self.servers.values()))
        for number, server in self.servers.items():
            address = f"127.0.0.1:{server.ready['grpc_port']}"
            self._channels[number] = grpc.insecure_channel(address)

    def stop(self):
        for channel in self._channels.values():
            channel.close()
        for number, server in self.servers.items():
            server.kill()
            print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails

    def api(self, number):
        """Liftbridge's API at one broker."""
        return self.stub(self._channels[number])

    def stub(self, channel):
        return self._stub(channel, pb.DESCRIPTOR.services_by_name["API"])

    def client(self, number, token):
        return strandline.connect(self.servers[number].flight, token=token, timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, grpc_stub):
    made = Cluster(tmp_path_factory.mktemp("cluster"), grpc_stub)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def bearing(token):
    """Arguments of a gRPC call that shows a token."""
    return {"timeout": TIMEOUT_S, "metadata": [("authorization", f"Bearer {token}")]}


until = partial(wait_until, seconds=PATIENCE_S, retried=(grpc.RpcError, StrandlineError))


def publish(api, value, token):
    """Publish once: "stored", the code of the rejection, or "unknown" without an answer in time."""
    request = pb.PublishRequest(stream="shared", value=value, correlationId="c", ackPolicy=pb.ALL)
    for response in api.PublishAsync(iter([request]), **bearing(token)):
        return response.asyncError.code if response.HasField("asyncError") else "stored"
    return "unknown"


@pytest.fixture(scope="module")
def tokens(cluster):
    """A stream, and the tokens of a publisher and of a reader; by broker 1."""
    with cluster.client(1, ADMIN) as admin:
        until(lambda: len(admin.server_info().brokers) == 3)

        def create():
            admin.create_stream("shared", replicas=3, min_isr=2)
            return True

        until(create)
        admin.access.grant("writer", "publish", "stream", "shared")
        admin.access.grant("reader", "read", "stream", "shared")
        return {name: admin.access.create_token(name) for name in ("writer", "reader", "nobody")}


def test_a_publish_is_allowed_or_rejected_wherever_it_arrives(cluster, tokens):
    """At the leader and at the two that hand it on: by the asker's rules, not by the broker's."""
    for number in IDS:
        value = b"through %d" % number
        until(lambda n=number, v=value: publish(cluster.api(n), v, tokens["writer"]) == "stored")
        denied = publish(cluster.api(number), b"refused", tokens["reader"])
        assert denied == DENIED
        with pytest.raises(grpc.RpcError) as caught:
            publish(cluster.api(number), b"refused", tokens["nobody"])
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as caught:
            publish(cluster.api(number), b"refused", "wrong")
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with cluster.client(2, tokens["reader"]) as reader:
        values = set(reader.read("shared", columns=["value"]).read_all()["value"].to_pylist())
    assert values == {b"through %d" % number for number in IDS}


def test_an_order_is_checked_before_it_is_handed_to_the_controller(cluster, tokens):
    """At whichever broker a change of the metadata is requested."""
    for number in IDS:
        with cluster.client(number, tokens["writer"]) as writer:
            for order in (
                lambda c=writer: c.create_stream("taken"),
                lambda c=writer: c.delete_stream("shared"),
                lambda c=writer: c.access.grant("writer", "admin", "cluster", "*"),
                lambda c=writer: c.consumer("group", "shared"),
            ):
                with pytest.raises(NotAllowedError):
                    order()
        request = pb.JoinConsumerGroupRequest(groupId="g", consumerId="c", streams=["shared"])
        with pytest.raises(grpc.RpcError) as caught:
            cluster.api(number).JoinConsumerGroup(request, **bearing(tokens["writer"]))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_what_is_granted_and_revoked_at_one_broker_counts_at_all(cluster, tokens):
    """Rules and tokens travel with the metadata, in moments."""
    with cluster.client(2, ADMIN) as admin:
        admin.access.grant("reader", "publish", "stream", "shared")
        for number in IDS:
            until(
                lambda n=number: publish(cluster.api(n), b"granted", tokens["reader"]) == "stored"
            )
        admin.access.revoke("reader", "publish", "stream", "shared")
        for number in IDS:
            until(lambda n=number: publish(cluster.api(n), b"revoked", tokens["reader"]) == DENIED)
        short = admin.access.create_token("reader")
        clients = [cluster.client(2, short)]
        admin.access.revoke_token(short.split("_")[1])

    def is_refused(number):
        try:
            cluster.client(number, short).close()
        except UnauthenticatedError:
            return True
        return False

    for number in IDS:
        until(lambda n=number: is_refused(n))
    with pytest.raises(UnauthenticatedError):
        clients[0].list_streams()
    clients[0].close()


def connect(cluster, number, token):
    """A connection of its own to a broker; asks for the metadata, and gives the code of why not."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # others share one connection to an address
    address = f"127.0.0.1:{cluster.servers[number].ready['grpc_port']}"
    channel = grpc.insecure_channel(address, options=options)

    def ask():
        try:
            cluster.stub(channel).FetchMetadata(
                pb.FetchMetadataRequest(), wait_for_ready=True, **bearing(token)
            )
        except grpc.RpcError as error:
            return error.code()
        return None

    return channel, ask


def test_a_quota_set_at_one_broker_holds_at_all(cluster, tokens):
    """Each broker counts for itself; it is set at the first and removed at the third."""
    with cluster.client(1, ADMIN) as admin:
        admin.access.grant("guest", "read", "stream", "shared")
        token = admin.access.create_token("guest")
        admin.quotas.set("guest", connections=1)
    places, refused = {}, grpc.StatusCode.RESOURCE_EXHAUSTED
    try:
        for number in IDS:
            with cluster.client(number, ADMIN) as admin:
                until(lambda a=admin: "guest" in {quota.principal for quota in a.quotas.list()})
            places[number] = [connect(cluster, number, token) for _ in range(2)]
            first, second = (ask for _, ask in places[number])
            until(lambda ask=first: ask() is None)  # the token is known a moment later
            assert second() is refused
            assert first() is None
        with cluster.client(3, ADMIN) as admin:
            admin.quotas.remove("guest")
        for number in IDS:
            until(lambda ask=places[number][1][1]: ask() is None)
    finally:
        for opened in places.values():
            for channel, _ in opened:
                channel.close()


@pytest.fixture
def cut_off(cluster, tokens):
    """Isolates the first broker and revokes a token, which that broker does not know.

    First it stands still while the others decide, then they do while it goes on.
    """
    stopped = set()

    def send(number, what):
        cluster.servers[number].signal(what)
        (stopped.add if what == signal.SIGSTOP else stopped.discard)(number)

    def cut(token):
        send(1, signal.SIGSTOP)
        with cluster.client(2, ADMIN) as admin:
            until(lambda: admin.access.revoke_token(token.split("_")[1]) is None)
        send(2, signal.SIGSTOP)
        send(3, signal.SIGSTOP)
        send(1, signal.SIGCONT)

    yield cut
    for number in sorted(stopped):
        send(number, signal.SIGCONT)
    publish_through_all(cluster, tokens, b"healed")


def follow(address, token, ended):
    """Read a copy without an end, with a plain Flight client; note the error it ends with."""
    headers = [(b"authorization", f"Bearer {token}".encode())]
    ticket = fl.Ticket(encode(ReadRequest(stream="shared", follow=True)))
    with fl.connect(f"grpc+tcp://{address}") as client:
        try:
            client.do_get(ticket, fl.FlightCallOptions(headers=headers)).read_all()
        except (fl.FlightError, pa.ArrowException) as error:
            ended.append(from_flight(error, address=address))


def test_a_broker_that_is_cut_off_acts_on_no_revoked_token_for_long(cluster, tokens, cut_off):
    """Open calls end within the bound of docs/security.md; the administrator's continue."""
    with cluster.client(1, ADMIN) as admin:
        token = admin.access.create_token("reader")
    until(lambda: cluster.client(1, token).close() is None)
    address, ended = cluster.servers[1].flight, []
    reading = threading.Thread(target=follow, args=(address, token, ended))
    reading.start()
    cut_off(token)
    reading.join(LEASE_BOUND_S)
    assert not reading.is_alive(), "a read goes on"
    assert isinstance(ended[0], UnauthenticatedError | UnavailableError)
    time.sleep(LEASE_BOUND_S)  # all of it: until then frames of before the cut may be read
    with pytest.raises((UnauthenticatedError, UnavailableError)):
        cluster.client(1, token)
    with pytest.raises(grpc.RpcError) as caught:
        cluster.api(1).FetchMetadata(pb.FetchMetadataRequest(), **bearing(token))
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
    assert caught.value.code() in refused
    with cluster.client(1, ADMIN) as admin:
        assert admin.server_info()


def revoke_own_tokens(cluster):
    """Revoke the tokens of all brokers that have forwarded a publish, and return their ids."""
    with cluster.client(3, ADMIN) as admin:
        own = [token.id for token in admin.access.tokens() if token.principal == "__broker"]
        for token in own:
            admin.access.revoke_token(token)
    return own


def publish_through_all(cluster, tokens, value):
    """Publish through each broker until it is stored; two of three forward it to the leader."""
    for number in IDS:
        until(lambda n=number: publish(cluster.api(n), value, tokens["writer"]) == "stored")


def test_brokers_tokens_are_no_way_in(cluster, tokens):
    """The brokers' own token belongs to no user principal; a lost one is renewed."""
    publish_through_all(cluster, tokens, b"once")
    own = revoke_own_tokens(cluster)
    assert set(own) <= {f"{number:08x}" for number in IDS}
    assert own, "two of three have forwarded a publish"
    with (
        cluster.client(3, ADMIN) as admin,
        pytest.raises(StrandlineError, match="no name for a principal"),
    ):
        admin.access.create_token("__broker")
    publish_through_all(cluster, tokens, b"again")


def test_a_brokers_token_is_renewed_while_it_looks_for_a_leader(cluster, tokens):
    """A leader stops answering, and others looking for the next one are rejected everywhere."""
    publish_through_all(cluster, tokens, b"once")
    revoke_own_tokens(cluster)
    with cluster.client(3, ADMIN) as admin:
        [leader] = [each.leader for each in admin.stream_info("shared").partitions]
    [stopped] = [n for n, server in cluster.servers.items() if server.flight == leader]
    cluster.servers[stopped].signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as publishing:
            for number in {*IDS} - {stopped}:
                api = cluster.api(number)
                publishing.submit(publish, api, b"unknown", tokens["writer"])
            time.sleep(SILENCE_S)
    finally:
        cluster.servers[stopped].signal(signal.SIGCONT)
    publish_through_all(cluster, tokens, b"again")
