"""Producer ids and group members work only for the principal that they belong to.

Two principals may publish to the same stream and use the same group; one of them knows every id of
the other. Whatever it sends under them is refused, and nothing of the victim is swallowed.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import strandline
from strandline.api.status import from_flight
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import ProcessServer
from tests.kit.waiting import until as wait_until

ADMIN = "an-administrators-token-made-for-this-test"
AUTH = {"STRANDLINE_AUTH__ENABLED": "true", "STRANDLINE_AUTH__ADMIN_TOKEN": ADMIN}
SCHEMA = pa.schema([("value", pa.binary())])
TIMEOUT_S = 40
PATIENCE_S = 90
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


until = partial(wait_until, seconds=PATIENCE_S, retried=StrandlineError)


class Intruder:
    """A principal that sends whatever it likes, with a plain Flight client."""

    def __init__(self, address, token):
        self._client = fl.connect(f"grpc+tcp://{address}")
        headers = [(b"authorization", f"Bearer {token}".encode())]
        self._options = fl.FlightCallOptions(timeout=TIMEOUT_S, headers=headers)

    def close(self):
        self._client.close()

    def put(self, numbers, *values, transactional=False):
        """Append under a producer's sequence; return the ack as the client gets it."""
        request = json.dumps({"stream": "pay", "transactional": transactional}).encode()
        descriptor = fl.FlightDescriptor.for_command(request)
        writer, acks = self._client.do_put(descriptor, SCHEMA, self._options)
        with writer:
            tag = {"sequence": 0, "partition": 0, "producer": numbers}
            batch = pa.record_batch([pa.array(values)], schema=SCHEMA)
            writer.write_with_metadata(batch, json.dumps(tag).encode())
            writer.done_writing()
            return json.loads(acks.read().to_pybytes())

    def act(self, name, **body):
        """The answers to an action, or the code of its error."""
        action = fl.Action(name, json.dumps(body).encode() if body else b"")
        try:
            found = list(self._client.do_action(action, self._options))
        except (fl.FlightError, pa.ArrowException) as error:
            return from_flight(error, address="here").code
        return [json.loads(each.body.to_pybytes()) for each in found]


@pytest.fixture(scope="module", params=[1, 3])
def servers(request, tmp_path_factory):
    """One broker, and three."""
    directory, ports = tmp_path_factory.mktemp("producers"), free_ports(request.param)
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(ports, 1))
    made = []
    for number, port in enumerate(ports, 1):
        arguments = ("--grpc-port", "0")
        if request.param > 1:
            arguments += ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
            arguments += ("--peer-port", str(port))
        made.append(ProcessServer(directory / str(number), arguments=arguments, environment=AUTH))
    try:
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, made))
        yield made
    finally:
        for server in made:
            server.kill()


@pytest.fixture(scope="module")
def tokens(servers):
    """Both principals may do the same; the stream has copies on all brokers."""
    with strandline.connect(servers[0].flight, token=ADMIN, timeout_s=TIMEOUT_S) as admin:
        if len(servers) > 1:
            until(lambda: len(admin.server_info().brokers) == len(servers))
        until(lambda: admin.create_stream("pay", replicas=len(servers)))
        for name in ("victim", "intruder"):
            admin.access.grant(name, "publish", "stream", "pay")
            admin.access.grant(name, "read", "stream", "pay")
            admin.access.grant(name, "group", "group", "g", "tx")
        return {name: admin.access.create_token(name) for name in ("victim", "intruder")}


@pytest.fixture
def victim(servers, tokens):
    addresses = ",".join(server.flight for server in servers)
    with strandline.connect(addresses, token=tokens["victim"], timeout_s=TIMEOUT_S) as client:
        until(lambda: client.stream_info("pay"))
        yield client


@pytest.fixture
def intruder(servers, tokens, victim):
    """At the broker that leads the stream, which is also asked for everything else."""
    [led] = victim.stream_info("pay").partitions
    address = led.leader or servers[0].flight
    made = Intruder(address, tokens["intruder"])
    yield made
    made.close()


def values(client):
    """Return the stream's records."""
    return client.read("pay").read_all()["value"].to_pylist()


def test_nobody_writes_under_the_producer_id_of_another(victim, intruder):
    """Neither an id that was given to another principal, nor one that was never given out."""
    before = len(values(victim))
    producer = victim.producer("pay")
    producer.append(b"0").result()
    [theirs] = producer._delivery._producer_ids  # the id cannot be seen otherwise
    [own] = intruder.act("new_producer")
    numbers = (1, 8, own["producer_id"] + 1, own["producer_id"] ^ (1 << 43), theirs, theirs + 1)
    is_own = {own["producer_id"] + 1: True}
    for number in numbers:
        ack = intruder.put([number, 0, 1], b"junk", b"junk")
        code = ack["error"]["code"]
        # Of its own ids it may use any: that one simply begins at 0.
        assert code == ("out_of_order_sequence" if number in is_own else "not_allowed"), number
    assert [producer.append(b"%d" % n).result().offset for n in (1, 2, 3)] == [
        before + n for n in (1, 2, 3)
    ]
    assert values(victim)[before:] == [b"0", b"1", b"2", b"3"]
    assert "error" not in intruder.put([own["producer_id"], 0, 0], b"mine")
    producer.close()


def test_nobody_writes_into_the_transaction_of_another(victim, intruder):
    """Not records, nor positions of groups, nor its end; a transaction of one's own takes over."""
    transaction = victim.transaction("tx")
    transaction.append("pay", b"first")
    transaction.flush()
    producer_id, epoch = map(int, transaction.staged_id.split("."))
    for sequence in (0, 1):
        ack = intruder.put([producer_id, epoch, sequence], b"injected", transactional=True)
        assert ack["error"]["code"] == "not_allowed"
    who = [producer_id, epoch]
    positions = {"pay": {"0": 7}}
    for name, body in {
        "add_to_transaction": {"id": "tx", "producer": who, "partitions": [["pay", 0]]},
        "prepare_transaction": {"id": "tx", "producer": who},
        "end_transaction": {"id": "tx", "producer": who, "commit": False},
        "begin_transaction": {"id": "tx", "nonce": "12345678", "timeout_ms": 9, "after": who},
        "commit_offsets": {"group": "g", "positions": positions, "transaction": who},
    }.items():
        assert intruder.act(name, **body) in ("not_allowed", "not_leader"), name
    transaction.append("pay", b"second")
    transaction.commit()
    found = values(victim)
    assert found[-2:] == [b"first", b"second"]
    assert b"injected" not in found


def test_nobody_speaks_for_the_group_member_of_another(servers, tokens, victim):
    """No commits, heartbeats or leaving; a principal joins as its own member."""
    at = [Intruder(server.flight, tokens["intruder"]) for server in servers]

    def act(name, **body):
        """Ask the broker that coordinates groups."""
        answers = [each.act(name, **body) for each in at]
        return next(answer for answer in answers if answer != "not_leader")

    with victim.consumer("g", "pay", instance="one") as consumer:
        until(lambda: consumer.poll(timeout_s=1) is not None)
        [info] = act("group_info", group="g")
        [member] = info["members"]
        name, epoch = member["member"], member["epoch"]
        positions = {"pay": {"0": 1}}
        tried = {
            "commit_offsets": {"positions": positions, "epoch": epoch, "number": 1},
            "group_heartbeat": {"epoch": epoch},
            "leave_group": {},
            "join_group": {"streams": ["pay"], "session_ms": 9000},
        }
        for action, body in tried.items():
            assert act(action, group="g", member=name, **body) == "not_allowed", action
        join = {"streams": ["pay"], "session_ms": 9000, "instance": "one"}
        assert act("join_group", group="g", member="own", **join) == "not_allowed"
        consumer.commit()
        assert victim.groups.info("g").positions["pay"][0] >= len(values(victim))
    for each in at:
        each.close()


def bearing(token):
    """Arguments of a gRPC call that shows a token."""
    return {"timeout": TIMEOUT_S, "metadata": [("authorization", f"Bearer {token}")]}


def test_nobody_speaks_for_a_liftbridge_member_of_another(servers, tokens, victim, grpc_stub):
    """Nor excludes it from its partition with a future epoch."""
    where = {"groupId": "g", "consumerId": "c"}
    mine, theirs = bearing(tokens["victim"]), bearing(tokens["intruder"])
    denied = {grpc.StatusCode.PERMISSION_DENIED}
    channels = [grpc.insecure_channel(f"127.0.0.1:{s.ready['grpc_port']}") for s in servers]
    apis = [grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"]) for channel in channels]
    joined = apis[0].JoinConsumerGroup(
        pb.JoinConsumerGroupRequest(**where, streams=["pay"]), **mine
    )
    fetch = pb.FetchConsumerGroupAssignmentsRequest(**where, epoch=joined.epoch)
    report = pb.ReportConsumerGroupCoordinatorRequest(
        **where, epoch=joined.epoch, coordinator=joined.coordinator
    )
    tried = [("LeaveConsumerGroup", pb.LeaveConsumerGroupRequest(**where))]
    tried += [("FetchConsumerGroupAssignments", fetch), ("ReportConsumerGroupCoordinator", report)]

    def codes(name, request, shown):
        found = set()
        for api in apis:
            try:
                result = getattr(api, name)(request, **shown)
                next(iter(result), None) if name == "Subscribe" else None
                found.add(None)
            except grpc.RpcError as error:
                found.add(error.code())
        return found

    other = {grpc.StatusCode.FAILED_PRECONDITION} if len(servers) > 1 else set()
    for name, request in tried:
        assert codes(name, request, theirs) - other == denied, name
    for epoch, token, expected in (
        (joined.epoch, theirs, denied),
        (joined.epoch + 99, mine, {grpc.StatusCode.FAILED_PRECONDITION}),
        (joined.epoch, mine, {None}),
    ):
        consumer = pb.Consumer(**where, groupEpoch=epoch)
        request = pb.SubscribeRequest(stream="pay", consumer=consumer)
        found = codes("Subscribe", request, token)
        assert found - (other - expected) == expected, (epoch, found)
    assert None in codes("FetchConsumerGroupAssignments", fetch, mine)
    apis[0].LeaveConsumerGroup(pb.LeaveConsumerGroupRequest(**where), **mine)
    for channel in channels:
        channel.close()


def test_an_owner_is_known_after_a_failover(servers, tokens, victim):
    """After a kill or a new leader, only the owner continues."""
    producer = victim.producer("pay")
    first = producer.append(b"before").result().offset
    [theirs] = producer._delivery._producer_ids
    [led] = victim.stream_info("pay").partitions
    gone = next(s for s in servers if s.flight == led.leader or len(servers) == 1)
    gone.kill()
    if len(servers) == 1:
        gone.start()
    assert producer.append(b"after").result().offset == first + 1
    left = [server for server in servers if server is not gone or len(servers) == 1]
    for server in left:
        intruder = Intruder(server.flight, tokens["intruder"])
        code = intruder.put([theirs, 0, 2], b"junk")["error"]["code"]
        assert code in ("not_allowed", "not_leader")
        intruder.close()
    assert producer.append(b"last").result().offset == first + 2
    producer.close()
