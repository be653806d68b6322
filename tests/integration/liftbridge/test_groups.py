"""Cursors, consumer groups and related calls: on one broker and on three."""

import zlib

import grpc
import pytest

from strandline.servers.grpc._generated import health_pb2
from strandline.servers.grpc._generated import liftbridge_pb2 as pb

TIMEOUT_S = 120
CONSUMER_TIMEOUT_MS = 10_000


# Cursors


def test_a_cursor_is_the_last_position_set(api):
    """-1 without one; any position is taken, also of a stream that does not exist."""
    where = {"stream": "nowhere", "partition": 3, "cursorId": "c"}
    fetch = pb.FetchCursorRequest(**where)
    assert api.FetchCursor(fetch, timeout=TIMEOUT_S).offset == -1
    for offset in (5, 900, 2):
        api.SetCursor(pb.SetCursorRequest(offset=offset, **where), timeout=TIMEOUT_S)
        assert api.FetchCursor(fetch, timeout=TIMEOUT_S).offset == offset
    other = pb.FetchCursorRequest(**{**where, "partition": 4})
    assert api.FetchCursor(other, timeout=TIMEOUT_S).offset == -1


def test_cursors_are_records_with_keys(lift, api):
    """Key ``id,stream,partition`` and a protobuf value, as Liftbridge stores them."""
    request = pb.SetCursorRequest(stream="s", partition=1, cursorId="a,b", offset=7)
    api.SetCursor(request, timeout=TIMEOUT_S)
    reading = lift.subscribe("__cursors", startPosition=pb.LATEST, stopPosition=pb.STOP_LATEST)
    reading.end()
    [message] = reading.messages
    assert message.key == b"a,b,s,1"
    assert pb.Cursor.FromString(message.value).offset == 7
    assert zlib.crc32(message.key) % 1 == message.partition


@pytest.mark.parametrize("kind", ["SetCursor", "FetchCursor"])
def test_cursors_need_names(lift, api, kind):
    """Stream and cursor id are asked for."""
    make = {"SetCursor": pb.SetCursorRequest, "FetchCursor": pb.FetchCursorRequest}[kind]
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert lift.rejection(getattr(api, kind), make(cursorId="c")) == (invalid, "No stream provided")
    assert lift.rejection(getattr(api, kind), make(stream="s")) == (invalid, "No cursorId provided")


# Consumer groups


def test_members_share_the_partitions(lift, api, stream):
    """Timeouts are nanoseconds; every change raises the epoch, and old epochs are rejected."""
    first = lift.join("g", "a", stream)
    assert first.consumerTimeout == CONSUMER_TIMEOUT_MS * 1_000_000
    assert first.coordinatorTimeout == 15_000 * 1_000_000
    assert lift.assigned("g", "a", first.epoch) == {stream: [0, 1]}
    second = lift.join("g", "b", stream)
    assert second.epoch > first.epoch
    stale = pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="a", epoch=first.epoch)
    assert lift.rejection(api.FetchConsumerGroupAssignments, stale) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "client-provided group epoch differs from broker group epoch",
    )
    assert lift.group("g").epoch == second.epoch
    assert lift.assigned("g", "a", second.epoch) == {stream: [0]}
    assert lift.assigned("g", "b", second.epoch) == {stream: [1]}
    again = pb.JoinConsumerGroupRequest(groupId="g", consumerId="a", streams=[stream])
    assert lift.rejection(api.JoinConsumerGroup, again) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "consumer is already a member of the consumer group",
    )
    leave = pb.LeaveConsumerGroupRequest(groupId="g", consumerId="a")
    api.LeaveConsumerGroup(leave, timeout=TIMEOUT_S)
    assert lift.rejection(api.LeaveConsumerGroup, leave)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert lift.assigned("g", "b", lift.group("g").epoch) == {stream: [0, 1]}
    api.LeaveConsumerGroup(
        pb.LeaveConsumerGroupRequest(groupId="g", consumerId="b"), timeout=TIMEOUT_S
    )
    assert lift.rejection(api.LeaveConsumerGroup, leave)[0] is grpc.StatusCode.NOT_FOUND


def test_names_of_groups_and_members_are_short(lift, api, stream):
    """Metadata stores them permanently on every broker; longer ones are rejected."""
    for names in (("g" * 401, "a"), ("g", "a" * 401), ("é" * 201, "a")):
        request = pb.JoinConsumerGroupRequest(
            groupId=names[0], consumerId=names[1], streams=[stream]
        )
        assert lift.rejection(api.JoinConsumerGroup, request) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "groupId and consumerId have at most 400 bytes",
        )


@pytest.fixture(params=["one", "three"])
def quick(request, begin):
    """A client of brokers with short member timeouts."""
    if request.param == "one":
        with begin(consumer_timeout_ms=1500) as lift:
            yield lift
    else:
        yield request.getfixturevalue("three")


def test_a_silent_member_is_removed(quick):
    """A member that does not fetch its assignment in time loses its partitions."""
    lift, api, stream = quick, quick.api, quick.create("silent", partitions=2)
    lift.join("silence", "quiet", stream)
    lift.join("silence", "loud", stream)

    def is_alone():
        epoch = lift.group("silence").epoch
        try:
            return lift.assigned("silence", "loud", epoch) == {stream: [0, 1]}
        except grpc.RpcError as error:  # the epoch moved meanwhile
            if error.details().startswith("consumer "):
                lift.join("silence", "loud", stream)  # it was too slow itself
            return False

    lift.until(is_alone)
    epoch = lift.group("silence").epoch
    quiet = pb.FetchConsumerGroupAssignmentsRequest(
        groupId="silence", consumerId="quiet", epoch=epoch
    )
    assert lift.rejection(api.FetchConsumerGroupAssignments, quiet)[1] == (
        "consumer is not a member of the consumer group"
    )


def test_a_deleted_stream_moves_the_epoch(lift, api, stream):
    """Members must ask again when one of their streams is deleted."""
    before = lift.join("deletion", "a", stream).epoch
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    after = lift.group("deletion").epoch
    assert after > before
    assert lift.assigned("deletion", "a", after) == {}


def test_a_partition_has_one_reader_of_a_group(lift, stream):
    """A newer epoch takes over, and the old reader ends without an error; an older is rejected."""

    def consumer(member, epoch):
        return pb.Consumer(groupId="fence", consumerId=member, groupEpoch=epoch)

    first = lift.subscribe(stream, consumer=consumer("a", 5)).stand()
    second = lift.subscribe(stream, consumer=consumer("b", 5)).stand()
    assert first.end()[1] is grpc.StatusCode.OK
    stale = lift.subscribe(stream, consumer=consumer("a", 4)).end()
    assert stale[1:] == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "Consumer is not currently assigned this partition",
    )
    lift.publish(stream, b"x")
    assert second.wait(1) == [b"x"]
    second.cancel()


@pytest.mark.parametrize(
    ("kind", "fields", "code", "text"),
    [
        ("Join", {"consumerId": "a"}, "INVALID_ARGUMENT", "No groupId provided"),
        ("Join", {"groupId": "g"}, "INVALID_ARGUMENT", "No consumerId provided"),
        ("Join", {"groupId": "g", "consumerId": "a"}, "INVALID_ARGUMENT", "No streams provided"),
        (
            "Join",
            {"groupId": "g", "consumerId": "a", "streams": ["none"]},
            "FAILED_PRECONDITION",
            "stream does not exist",
        ),
        ("Leave", {"groupId": "x", "consumerId": "a"}, "NOT_FOUND", "does not exist"),
        ("Fetch", {"groupId": "x", "consumerId": "a"}, "NOT_FOUND", "does not exist"),
        ("Report", {"groupId": "x"}, "INVALID_ARGUMENT", "No consumerId provided"),
        (
            "Report",
            {"groupId": "x", "consumerId": "a"},
            "INVALID_ARGUMENT",
            "No coordinator provided",
        ),
        (
            "Report",
            {"groupId": "x", "consumerId": "a", "coordinator": "0"},
            "FAILED_PRECONDITION",
            "No such consumer group x",
        ),
    ],
)
def test_wrong_group_calls_are_rejected(lift, api, kind, fields, code, text):
    """With Liftbridge's codes."""
    call, make = {
        "Join": (api.JoinConsumerGroup, pb.JoinConsumerGroupRequest),
        "Leave": (api.LeaveConsumerGroup, pb.LeaveConsumerGroupRequest),
        "Fetch": (api.FetchConsumerGroupAssignments, pb.FetchConsumerGroupAssignmentsRequest),
        "Report": (api.ReportConsumerGroupCoordinator, pb.ReportConsumerGroupCoordinatorRequest),
    }[kind]
    found, details = lift.rejection(call, make(**fields))
    assert (found.name, text in details) == (code, True), details


def test_one_broker_cannot_hand_a_group_over(one):
    """A report about the only coordinator there can be finds no candidate."""
    joined = one.join("reported", "a", one.create("reported"))
    request = pb.ReportConsumerGroupCoordinatorRequest(
        groupId="reported", consumerId="a", coordinator=joined.coordinator, epoch=joined.epoch
    )
    assert one.rejection(one.api.ReportConsumerGroupCoordinator, request) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "No group coordinator candidates",
    )
    request.epoch += 1
    assert one.rejection(one.api.ReportConsumerGroupCoordinator, request)[0] is (
        grpc.StatusCode.FAILED_PRECONDITION
    )


# Beside


def test_the_activity_stream_tells_what_happened(lift, api, stream):
    """In order, with growing ids, beginning with the stream itself."""
    api.PauseStream(pb.PauseStreamRequest(name=stream, partitions=[1]), timeout=TIMEOUT_S)
    lift.publish(stream, b"a", partition=1)
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name=stream, readonly=True), timeout=TIMEOUT_S
    )
    lift.join("active", "a", stream)
    leave = pb.LeaveConsumerGroupRequest(groupId="active", consumerId="a")
    api.LeaveConsumerGroup(leave, timeout=TIMEOUT_S)
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    reading = lift.subscribe("__activity", startPosition=pb.EARLIEST)

    def events():
        return [pb.ActivityStreamEvent.FromString(m.value) for m in reading.messages]

    gone = pb.DeleteStreamOp(stream=stream)
    lift.until(lambda: any(e.deleteStreamOp == gone for e in events()))
    reading.cancel()
    found = events()
    assert found[0].createStreamOp == pb.CreateStreamOp(stream="__activity", partitions=[0])
    assert [event.id for event in found] == sorted({event.id for event in found})
    ours = [event for event in found if stream in str(event) or "active" in str(event)]
    assert [pb.ActivityStreamOp.Name(event.op) for event in ours] == [
        "CREATE_STREAM",
        "PAUSE_STREAM",
        "RESUME_STREAM",
        "SET_STREAM_READONLY",
        "JOIN_CONSUMER_GROUP",
        "LEAVE_CONSUMER_GROUP",
        "DELETE_STREAM",
    ]
    assert ours[1].pauseStreamOp == pb.PauseStreamOp(stream=stream, partitions=[1])


def test_health_is_reported(lift, grpc_stub):
    """SERVING for the server and for the API; NOT_FOUND for unknown services."""
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    for channel in lift.channels.values():
        health = grpc_stub(channel, health_pb2.DESCRIPTOR.services_by_name["Health"])
        for name in ("", "proto.API"):
            request = health_pb2.HealthCheckRequest(service=name)
            assert health.Check(request, timeout=TIMEOUT_S) == serving
        watching = health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert next(watching) == serving
        watching.cancel()
        unknown = lift.rejection(health.Check, health_pb2.HealthCheckRequest(service="x"))
        assert unknown[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("path", "data", "code"),
    [
        ("/proto.API/Nothing", b"", "UNIMPLEMENTED"),
        ("/proto.API/Publish", b"\xff\xff", "INVALID_ARGUMENT"),
    ],
)
def test_unknown_methods_and_broken_messages(lift, path, data, code):
    """UNIMPLEMENTED for an unknown method, INVALID_ARGUMENT for malformed bytes."""
    for channel in lift.channels.values():
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(data, timeout=TIMEOUT_S)
        assert caught.value.code().name == code


def test_without_cursors_their_rpcs_say_so(bare):
    """INTERNAL, with Liftbridge's text, where no partitions were asked for."""
    for stub in bare.stubs.values():
        for call, kind in (
            (stub.SetCursor, pb.SetCursorRequest),
            (stub.FetchCursor, pb.FetchCursorRequest),
        ):
            assert bare.rejection(call, kind(stream="s", cursorId="c")) == (
                grpc.StatusCode.INTERNAL,
                "Cursors stream does not exist",
            )


def test_without_a_key_no_stream_is_encrypted(bare):
    """FAILED_PRECONDITION, as Go's client expects it, and there is no such stream."""
    request = pb.CreateStreamRequest(name="hidden", subject="hidden")
    request.encryption.value = True
    for stub in bare.stubs.values():
        code, text = bare.rejection(stub.CreateStream, request)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "Failed on preconditions for stream's encryption handler" in text
    assert bare.metadata("hidden").error == pb.StreamMetadata.UNKNOWN_STREAM


def test_a_restart_of_all_brokers_changes_nothing(three):
    """Stored, paused and read-only state survives a restart; open calls end UNAVAILABLE.

    One broker is stopped, the others are killed.
    """
    name = three.create("kept", partitions=3)
    three.publish(name, b"a")
    three.api.PauseStream(pb.PauseStreamRequest(name=name, partitions=[1]), timeout=TIMEOUT_S)
    readonly = pb.SetStreamReadonlyRequest(name=name, partitions=[0], readonly=True)
    three.api.SetStreamReadonly(readonly, timeout=TIMEOUT_S)
    where = {"stream": name, "partition": 0, "cursorId": "c"}
    three.api.SetCursor(pb.SetCursorRequest(offset=41, **where), timeout=TIMEOUT_S)
    before = [three.partition(name, number) for number in range(3)]
    reading = three.subscribe(name, partition=2).stand()
    three.servers[int(three.leader(name, 2))].stop()
    assert reading.end()[1] is grpc.StatusCode.UNAVAILABLE
    three.hang_up()
    for server in three.servers.values():
        server.kill()
    three.start()
    three.until(lambda: all(p.leader for p in three.metadata(name).partitions.values()))
    after = [three.partition(name, number) for number in range(3)]
    for old, new in zip(before, after, strict=True):
        assert (new.paused, new.readonly, new.newestOffset) == (
            old.paused,
            old.readonly,
            old.newestOffset,
        )
        assert new.pauseTimestamps == old.pauseTimestamps
        assert new.readonlyTimestamps == old.readonlyTimestamps
    assert three.subscribe(name, startPosition=pb.EARLIEST).end()[:2] == (
        [b"a"],
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    fetched = three.api.FetchCursor(pb.FetchCursorRequest(**where), timeout=TIMEOUT_S)
    assert fetched.offset == 41
    assert three.publish(name, b"b", partition=1) == [0]


def test_everything_survives_a_restart(begin, tmp_path):
    """Records, readonly, pauses, cursors and members are there; open calls end UNAVAILABLE."""
    with begin(tmp_path) as lift:
        lift.create("s")
        lift.create("p", partitions=2)
        lift.publish("s", b"a", headers={"h": b"1"})
        request = pb.SetCursorRequest(stream="s", cursorId="c", offset=4)
        lift.api.SetCursor(request, timeout=TIMEOUT_S)
        readonly = pb.SetStreamReadonlyRequest(name="s", readonly=True)
        lift.api.SetStreamReadonly(readonly, timeout=TIMEOUT_S)
        pause = pb.PauseStreamRequest(name="p", resumeAll=True)
        lift.api.PauseStream(pause, timeout=TIMEOUT_S)
        paused = lift.partition("p", 1)
        epoch = lift.join("g", "a", "s").epoch
        publishing = lift.publishing()
        publishing.send(stream="none")
        next(publishing.responses)
        lift.servers[0].stop()
        with pytest.raises(grpc.RpcError) as caught:
            next(publishing.responses)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        publishing.close()
    with begin(tmp_path) as lift:
        reading = lift.subscribe("s", startPosition=pb.EARLIEST)
        assert reading.end()[:2] == ([b"a"], grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert reading.messages[0].headers["h"] == b"1"
        fetch = pb.FetchCursorRequest(stream="s", cursorId="c")
        assert lift.api.FetchCursor(fetch, timeout=TIMEOUT_S).offset == 4
        assert lift.assigned("g", "a", epoch) == {"s": [0]}
        assert lift.partition("p", 1) == paused
        assert lift.publish("p", b"wakes both") == [0]
        assert not lift.partition("p", 1).paused
