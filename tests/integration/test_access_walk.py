"""Every entry point of a broker, tried with missing and wrong credentials and permissions.

What there is to try is taken from the code's own registries, so that a method that is added without
a check, or without a request to try it with, fails here. *The weak* may do everything with what is
called ``other…`` and nothing with ``mine``; *the stranger* has a good token, and no rule names it.
"""

import base64
import json
import socket
import urllib.error
import urllib.request

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import strandline
from strandline.api.commands import COMMANDS
from strandline.api.put import PutRequest
from strandline.api.status import from_flight
from strandline.api.tickets import ReadRequest
from strandline.api.wire import encode
from strandline.errors import NotAllowedError, StrandlineError, UnauthenticatedError
from strandline.servers.flight.server import FlightServer
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc._generated import logspec_pb2 as beam
from strandline.servers.http.app import OPEN_PATHS, build_app
from strandline.testing import Server
from tests.kit.admin_requests import BODIES, MINE

ADMIN = "an-administrators-token-made-for-this-test"
TIMEOUT_S = 60
HEALTH = "/grpc.health.v1.Health/"
DENIED = "The client is not authorized to call"


class Door:
    """A broker with access checks, and the tokens of the callers."""

    def __init__(self, server):
        self.app, self.url = server.app, server.url
        with strandline.connect(self.url, token=ADMIN) as admin:
            admin.create_stream("other")  # Beam's listener has made the other
            for name in (MINE, "other"):
                admin.append(name, b"a record of " + name.encode())
            for operation in ("read", "publish", "admin"):
                admin.access.grant("weak", operation, "stream", "other*")
            for operation in ("group", "admin"):
                admin.access.grant("weak", operation, "group", "other*")
            for operation in ("read", "publish"):
                admin.access.grant("weak", operation, "subject", "other", "other.>")
            self.weak = admin.access.create_token("weak")
            self.stranger = admin.access.create_token("stranger")
            revoked = admin.access.create_token("weak")
            admin.access.revoke_token(revoked.split("_")[1])
        self.liars = ["", "wrong", revoked, self.weak[:-1], "Bearer"]


@pytest.fixture(scope="module")
def door():
    server = Server(
        nats=True,
        http_port=0,
        grpc={"port": 0, "beam_port": 0, "beam_stream": MINE},
        auth={"enabled": True, "admin_token": ADMIN},
    )
    server.start()
    yield Door(server)
    server.stop()


def put(client, options):
    """Append to the stream, and wait for the outcome."""
    descriptor = fl.FlightDescriptor.for_command(encode(PutRequest(stream=MINE)))
    schema = pa.schema([("value", pa.binary())])
    writer, acks = client.do_put(descriptor, schema, options)
    try:
        writer.write_batch(pa.record_batch([pa.array([b"v"])], schema=schema))
        writer.done_writing()
        acks.read()
    finally:
        writer.close()


def path():
    return fl.FlightDescriptor.for_path(MINE)


FLIGHT_CALLS = {
    "do_get": lambda c, o: c.do_get(fl.Ticket(encode(ReadRequest(stream=MINE))), o).read_all(),
    "do_put": put,
    "do_action": lambda c, o: list(c.do_action(fl.Action("stream_info", BODIES["stream_info"]), o)),
    "list_actions": lambda c, o: c.list_actions(o),
    "get_flight_info": lambda c, o: c.get_flight_info(path(), o),
    "get_schema": lambda c, o: c.get_schema(path(), o),
    "list_flights": lambda c, o: list(c.list_flights(options=o)),
}


def outcome(call, *args):
    """The class of our error that a Flight call ends with; None: it was done."""
    try:
        call(*args)
    except (fl.FlightError, pa.ArrowException) as error:
        return type(from_flight(error, address="here"))
    except OSError as error:  # what pyarrow's client makes of it where it is asked for a schema
        return StrandlineError if "Unauthenticated" in str(error) else OSError
    return None


def shown(token):
    """Call options that show a token."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return fl.FlightCallOptions(timeout=TIMEOUT_S, headers=headers)


@pytest.fixture
def flight(door):
    with fl.connect(f"grpc+tcp://{door.url}") as client:
        yield client


def test_every_method_of_flight_is_tried():
    """Those that pyarrow knows: served ones are tried here, others are not served."""
    rpcs = {name for name in vars(fl.FlightServerBase) if name.startswith(("do_", "get_", "list_"))}
    assert rpcs & set(vars(FlightServer)) == set(FLIGHT_CALLS)
    assert rpcs - set(FLIGHT_CALLS) == {"do_exchange"}


@pytest.mark.parametrize("name", sorted(FLIGHT_CALLS))
def test_no_method_of_flight_is_for_those_who_may_not(door, flight, name):
    """Unknown callers are unauthenticated, those without rules denied, administrators served."""
    call = FLIGHT_CALLS[name]
    # Of a schema pyarrow's client tells no more than that there was an error.
    unknown, denied = UnauthenticatedError, NotAllowedError
    if name == "get_schema":
        unknown = denied = StrandlineError
    for token in (None, *door.liars):
        assert outcome(call, flight, shown(token)) is unknown, token
    assert outcome(call, flight, shown(door.stranger)) is denied
    if name == "list_flights":
        infos = call(flight, shown(door.weak))
        assert [info.descriptor.path for info in infos] == [[b"other"]]
    elif name != "list_actions":
        assert outcome(call, flight, shown(door.weak)) is denied
    assert outcome(call, flight, shown(ADMIN)) is None


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Basic " + base64.b64encode(b"a:" + ADMIN.encode()), ADMIN.encode()]
)
def test_a_header_that_is_no_bearer_token_is_wrong_and_not_missing(flight, header):
    """Also the right token, shown in another way, opens nothing here."""
    options = fl.FlightCallOptions(timeout=TIMEOUT_S, headers=[(b"authorization", header)])
    assert outcome(FLIGHT_CALLS["list_flights"], flight, options) is UnauthenticatedError


def exchange(client, token):
    """Begin an exchange and wait for an answer."""
    writer, reader = client.do_exchange(path(), shown(token))
    writer.begin(pa.schema([]))
    reader.read_chunk()


def test_what_is_not_served_does_nothing_for_anybody(door, flight):
    """An exchange, and the handshake of another kind of authentication, end with an error."""
    for token in (None, door.weak, ADMIN):
        with pytest.raises((fl.FlightError, pa.ArrowNotImplementedError)):
            exchange(flight, token)
    with pytest.raises((fl.FlightError, pa.ArrowNotImplementedError)):
        flight.authenticate_basic_token("admin", ADMIN)


def test_every_action_has_a_body_to_try_it_with():
    """The list is the broker's own."""
    assert set(BODIES) == set(COMMANDS)


def needs_of(name):
    command = COMMANDS[name]
    return list(command.needs(command.decode_request(BODIES[name])))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_action_is_for_those_who_may_not(door, flight, name):
    """Each with a body that would affect the stream ``mine``."""

    def run(token):
        return [r.body.to_pybytes() for r in flight.do_action(action, shown(token))]

    action = fl.Action(name, BODIES[name])
    for token in (None, *door.liars):
        assert outcome(run, token) is UnauthenticatedError, token
    assert outcome(run, door.stranger) is NotAllowedError
    if needs_of(name):
        assert outcome(run, door.weak) is NotAllowedError
    else:
        assert MINE.encode() not in b"".join(run(door.weak))


# gRPC

GROUP = {"groupId": MINE, "consumerId": "c"}
LIFTBRIDGE = {
    "CreateStream": pb.CreateStreamRequest(name="mine-2", subject="mine-2"),
    "DeleteStream": pb.DeleteStreamRequest(name=MINE),
    "PauseStream": pb.PauseStreamRequest(name=MINE),
    "SetStreamReadonly": pb.SetStreamReadonlyRequest(name=MINE, readonly=True),
    "Subscribe": pb.SubscribeRequest(stream=MINE, startPosition=pb.EARLIEST),
    "FetchMetadata": pb.FetchMetadataRequest(streams=[MINE], groups=[MINE]),
    "FetchPartitionMetadata": pb.FetchPartitionMetadataRequest(stream=MINE),
    "Publish": pb.PublishRequest(stream=MINE, value=b"v"),
    "PublishAsync": pb.PublishRequest(stream=MINE, value=b"v", correlationId="c"),
    "PublishToSubject": pb.PublishToSubjectRequest(subject=MINE, value=b"v"),
    "SetCursor": pb.SetCursorRequest(stream=MINE, cursorId=MINE, offset=1),
    "FetchCursor": pb.FetchCursorRequest(stream=MINE, cursorId=MINE),
    "JoinConsumerGroup": pb.JoinConsumerGroupRequest(**GROUP, streams=[MINE]),
    "LeaveConsumerGroup": pb.LeaveConsumerGroupRequest(**GROUP),
    "FetchConsumerGroupAssignments": pb.FetchConsumerGroupAssignmentsRequest(**GROUP),
    "ReportConsumerGroupCoordinator": pb.ReportConsumerGroupCoordinatorRequest(
        **GROUP, coordinator="0"
    ),
}
BEAM = {
    "Append": beam.AppendRequest(sequence=1, proposals=[b"v"]),
    "Discard": beam.DiscardRequest(firstIndex=2),
    "Read": beam.ReadRequest(nextIndex=1),
    "Info": beam.InfoRequest(),
    "InfoStream": beam.InfoRequest(),
}
REQUESTS = {
    **{f"/proto.API/{name}": request for name, request in LIFTBRIDGE.items()},
    **{f"/logspec.Log/{name}": request for name, request in BEAM.items()},
}
IN_BAND = {"/proto.API/PublishAsync", "/proto.API/FetchMetadata"}
"""What the weak may call: they are told message by message, or see nothing."""


def grpc_paths(door):
    """Every rpc of both listeners, with the port that serves it."""
    front_end = door.app._grpc
    return {
        path.decode(): service.port
        for service in (front_end._liftbridge, front_end._beam)
        for path in service._listener.shared.server.methods
    }


def rpc(port, path, token):
    """Make a call; None and the first answer as bytes, or the status it ended with and its text."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    request = REQUESTS[path].SerializeToString() if path in REQUESTS else b""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(path)(iter([request]), timeout=TIMEOUT_S, metadata=metadata)
        try:
            answer = next(iter(call), b"")
        except grpc.RpcError as error:
            return error.code(), error.details()
        call.cancel()
        return None, answer


def test_every_rpc_has_a_request_to_try_it_with(door):
    """The list is that of the listeners; health is for everybody, and says nothing else."""
    assert {path for path in grpc_paths(door) if not path.startswith(HEALTH)} == set(REQUESTS)


@pytest.mark.parametrize("path", sorted(REQUESTS))
def test_no_rpc_is_for_those_who_may_not(door, path):
    """With statuses that name the missing permission, and Liftbridge's text."""
    port = grpc_paths(door)[path]
    for token in (None, *filter(None, door.liars)):  # HTTP/2 knows no header that ends in a space
        status, text = rpc(port, path, token)
        assert status is grpc.StatusCode.UNAUTHENTICATED, (token, status, text)
    status, _ = rpc(port, path, door.stranger)
    assert status is grpc.StatusCode.PERMISSION_DENIED
    status, answer = rpc(port, path, door.weak)
    if path not in IN_BAND:
        assert status is grpc.StatusCode.PERMISSION_DENIED, (status, answer)
        method = path.rpartition("/")[2]
        if path.startswith("/proto.API/"):
            assert answer.startswith(f"{DENIED} {method} on resource")
    else:
        assert status is None


def test_a_stream_of_publishes_is_told_message_by_message(door):
    """Forbidden publishes are rejected in band; allowed ones continue."""
    path = "/proto.API/PublishAsync"
    _, answer = rpc(grpc_paths(door)[path], path, door.weak)
    response = pb.PublishResponse.FromString(answer)
    assert response.correlationId == "c"
    assert response.asyncError.code == pb.PublishAsyncError.PERMISSION_DENIED
    assert response.asyncError.message == f"{DENIED} Publish on resource mine"


def test_metadata_of_what_may_not_be_seen_looks_like_none(door):
    """A stream and a group that are there are unknown to the weak."""
    path = "/proto.API/FetchMetadata"
    _, answer = rpc(grpc_paths(door)[path], path, door.weak)
    response = pb.FetchMetadataResponse.FromString(answer)
    assert [s.error for s in response.streamMetadata] == [pb.StreamMetadata.UNKNOWN_STREAM]
    assert [g.error for g in response.groupMetadata] == [pb.ConsumerGroupMetadata.UNKNOWN_GROUP]


@pytest.mark.parametrize(
    ("path", "kind"), [("/proto.API/Subscribe", pb.Message), ("/logspec.Log/Read", beam.ReadReply)]
)
def test_revoking_ends_a_stream_of_records(door, path, kind):
    """Records after the revocation are not delivered, and the reader gets the reason."""
    with (
        strandline.connect(door.url, token=ADMIN) as admin,
        grpc.insecure_channel(f"127.0.0.1:{grpc_paths(door)[path]}") as channel,
    ):
        admin.access.grant("weak", "read", "stream", MINE)
        metadata = [("authorization", f"Bearer {door.weak}")]
        request = REQUESTS[path].SerializeToString()
        call = channel.stream_stream(path)(iter([request]), timeout=TIMEOUT_S, metadata=metadata)
        assert kind.FromString(next(call)) is not None
        admin.access.revoke("weak", "read", "stream", MINE)
        admin.append(MINE, b"v")
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_health_is_for_everybody(door):
    """Probes have no credentials."""
    for path, port in grpc_paths(door).items():
        if path.startswith(HEALTH):
            status, answer = rpc(port, path, None)
            assert status is None
            assert answer == b"\x08\x01"


# HTTP


def http_paths(door):
    """Every route, with a name filled in."""
    routes = build_app(door.app.broker, lambda *_: None).routes
    # The console's are tried in test_console.py.
    return {route.path: route.path.replace("{name}", MINE) for route in routes}


def get(door, path, authorization):
    """Return a request's status and answer; 401 has the authentication scheme."""
    request = urllib.request.Request(f"{door.url.http_url}{path}")
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        challenge = error.headers["WWW-Authenticate"] or ""
        return error.code if challenge.startswith("Basic ") is (error.code == 401) else 0, b""


def basic(token):
    """Return the credentials as browsers send them."""
    return "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()


def test_no_route_is_for_those_who_may_not(door):
    """401 for unknown callers, 403 for unpermitted ones, and no stream is named."""
    paths = http_paths(door)
    assert set(paths) > OPEN_PATHS
    for route in set(paths) - OPEN_PATHS:
        path = paths[route]
        wrong = [None, "", "Basic", "Basic !", "Digest x", ADMIN, basic(""), basic("wrong")]
        wrong += [f"Bearer {token}" for token in door.liars]
        for authorization in wrong:
            status, _ = get(door, path, authorization)
            assert (path, authorization, status) == (path, authorization, 401)
        for token in (door.stranger, door.weak):
            assert get(door, path, f"Bearer {token}")[0] == 403
            assert get(door, path, basic(token))[0] == 403
        assert get(door, path, f"Bearer {ADMIN}")[0] == 200
        assert get(door, path, basic(ADMIN))[0] == 200


def test_probes_need_no_credentials(door):
    """They learn only whether the broker is healthy."""
    for path in OPEN_PATHS:
        status, body = get(door, path, None)
        assert status == 200
        assert body in (b"live\n", b"ready\n")


# The NATS protocol


class Publisher:
    """A connection to the ingest listener, in its own words."""

    def __init__(self, door, options=None):
        host, port = door.url.ingest_url.removeprefix("nats://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._lines = self._socket.makefile("rb")
        self.info = json.loads(self._lines.readline().removeprefix(b"INFO "))
        if options is not None:
            self.send(b"CONNECT " + json.dumps({"verbose": False, **options}).encode())

    def send(self, *lines):
        self._socket.sendall(b"".join(line + b"\r\n" for line in lines))

    def line(self):
        """The next line; empty when the connection was closed."""
        try:
            return self._lines.readline().strip()
        except ConnectionResetError:
            return b""

    def close(self):
        self._socket.close()


@pytest.fixture
def publisher(door):
    opened = []

    def connect(options=None):
        opened.append(Publisher(door, options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    "line", [b"PING", b"PUB other 1\r\nx", b"SUB > 1", b"UNSUB 1", b"HPUB other 0 1\r\nx", b"PONG"]
)
def test_nothing_is_taken_before_it_is_known_who_is_there(publisher, line):
    """Whatever a client says first, if it is not CONNECT the connection ends."""
    made = publisher()
    assert made.info["auth_required"] is True
    made.send(line)
    assert made.line() == b"-ERR 'Authorization Violation'"
    assert made.line() == b""


def test_who_is_not_known_is_disconnected(door, publisher):
    """No credentials, wrong ones in each field that may carry them, and a stranger."""
    wrong = [{}, {"user": "admin"}, {"auth_token": None}, {"jwt": ADMIN, "user": ADMIN}]
    wrong += [{"auth_token": token} for token in (*door.liars, door.stranger)]
    wrong += [{"user": "weak", "pass": token} for token in (*door.liars, door.stranger)]
    for options in wrong:
        made = publisher(options)
        assert made.line() == b"-ERR 'Authorization Violation'", options
        assert made.line() == b""


@pytest.mark.parametrize("field", ["auth_token", "pass"])
def test_a_publisher_may_publish_to_its_subjects_alone(door, publisher, field):
    """A rejected publish is reported; an allowed one on the same connection is stored."""
    made = publisher({field: door.weak, "user": "anybody"})
    made.send(b"SUB _INBOX.a 1", b"PUB mine _INBOX.a 1", b"x", b"PUB other _INBOX.a 1", b"y")
    said = [made.line() for _ in range(5)]
    assert b"-ERR 'Permissions Violation for Publish to \"mine\"'" in said
    answers = [json.loads(line) for line in said if line.startswith(b"{")]
    seen = [("error" in each, each.get("stream")) for each in answers]
    assert seen == [(True, None), (False, "other")]
    made.send(b"PUB mine 1", b"x", b"PING")
    assert made.line() == b"-ERR 'Permissions Violation for Publish to \"mine\"'"
    assert made.line() == b"PONG"


def test_a_large_payload_is_not_waited_for_before_it_is_known_who_sends_it(publisher):
    """Its announcement ends the connection: unknown clients get no buffer."""
    made = publisher()
    made.send(b"PUB other 1000000")
    assert made.line() == b"-ERR 'Authorization Violation'"


def test_a_revoked_publisher_is_disconnected(door, publisher):
    """With its next bytes; the principal's other connections continue."""
    with strandline.connect(door.url, token=ADMIN) as admin:
        token = admin.access.create_token("weak")
        made, other = publisher({"auth_token": token}), publisher({"auth_token": door.weak})
        for each in (made, other):
            each.send(b"PING")
            assert each.line() == b"PONG"
        admin.access.revoke_token(token.split("_")[1])
    made.send(b"PUB other 1", b"x")
    assert made.line() == b"-ERR 'Authorization Violation'"
    assert made.line() == b""
    other.send(b"PING")
    assert other.line() == b"PONG"


def test_nobody_has_changed_anything(door):
    """The rejected attempts above left the stream and the rules unchanged."""
    with strandline.connect(door.url, token=ADMIN) as admin:
        values = admin.read(MINE, columns=["value"]).read_all().column("value").to_pylist()
        assert set(values) <= {b"a record of mine", b"v"}
        assert values.count(b"v") <= 3, "those of the administrator"
        assert {rule.principal for rule in admin.access.rules()} == {"weak"}
        assert {stream.name for stream in admin.list_streams() if stream.name[0] != "_"} == {
            MINE,
            "other",
        }
