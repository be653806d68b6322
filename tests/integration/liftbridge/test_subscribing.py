"""Subscriptions from beginning to end, pauses and readonly: on one broker and on three."""

import random

import grpc
import pytest

import strandline
from strandline.servers.grpc._generated import liftbridge_pb2 as pb

TIMEOUT_S = 120


# Subscribing


def test_a_message_has_everything_that_was_published(lift, stream):
    """Key, value, headers with subject and reply, time and offset."""
    lift.publish(stream, b"v", key=b"k", headers={"h": b"1", "subject": b"x"}, partition=1)
    reading = lift.subscribe(stream, partition=1, startPosition=pb.EARLIEST)
    reading.wait(1)
    reading.cancel()
    [message] = reading.messages
    assert (message.offset, message.key, message.value) == (0, b"k", b"v")
    assert (message.stream, message.partition, message.subject) == (stream, 1, f"{stream}.1")
    assert dict(message.headers) == {"h": b"1", "subject": f"{stream}.1".encode(), "reply": b""}
    assert message.timestamp > 10**18
    assert (message.replySubject, message.ackInbox, message.correlationId) == ("", "", "")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"startPosition": pb.NEW_ONLY}, [b"5"]),
        ({"startPosition": pb.OFFSET, "startOffset": 3}, [b"3", b"4", b"5"]),
        ({"startPosition": pb.OFFSET, "startOffset": -5}, [b"0", b"1", b"2", b"3", b"4", b"5"]),
        ({"startPosition": pb.OFFSET, "startOffset": 100}, [b"5"]),
        ({"startPosition": pb.EARLIEST}, [b"0", b"1", b"2", b"3", b"4", b"5"]),
        ({"startPosition": pb.LATEST}, [b"4", b"5"]),
        ({"startPosition": pb.EARLIEST, "startTimestamp": -(1 << 62)}, [b"0", b"1"]),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": 1 << 62}, [b"5"]),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": -(1 << 62)}, [b"0", b"1"]),
    ],
)
def test_every_start_position(lift, stream, fields, expected):
    """Five records, a subscription, a sixth record: the first message of each start."""
    lift.publish(stream, *(b"%d" % n for n in range(5)))
    reading = lift.subscribe(stream, **fields).stand()
    lift.publish(stream, b"5")
    assert reading.wait(len(expected))[: len(expected)] == expected
    reading.cancel()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [4, 3, 2, 1, 0]),
        ({"startPosition": pb.LATEST}, [4, 3, 2, 1, 0]),
        ({"startPosition": pb.EARLIEST}, [0]),
        ({"startPosition": pb.OFFSET, "startOffset": 2}, [2, 1, 0]),
        ({"startPosition": pb.OFFSET, "startOffset": 100}, [4, 3, 2, 1, 0]),
        ({"stopPosition": pb.STOP_OFFSET, "stopOffset": 3}, [4, 3]),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": 1 << 62}, [4, 3, 2, 1, 0]),
        ({"stopPosition": pb.STOP_TIMESTAMP, "stopTimestamp": 1}, [4, 3, 2, 1, 0]),
    ],
)
def test_a_subscription_in_reverse(lift, stream, fields, expected):
    """Newest first, back to where it stops; then it ends, as one that reaches its stop does."""
    lift.publish(stream, *(b"%d" % n for n in range(5)))
    reading = lift.subscribe(stream, reverse=True, **fields)
    found, status, text = reading.end()
    assert found == [b"%d" % n for n in expected]
    assert [message.offset for message in reading.messages] == expected
    assert (status, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"stopPosition": pb.STOP_LATEST}, "INVALID_ARGUMENT", "cannot stop at the latest"),
        (
            {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_OFFSET, "stopOffset": 1},
            "INVALID_ARGUMENT",
            "Stop offset is after start offset: 1 > 0",
        ),
        ({"partition": 1}, "RESOURCE_EXHAUSTED", "Stream is empty"),
    ],
)
def test_impossible_subscriptions_in_reverse(lift, stream, fields, code, text):
    """A stop is older than the start; of an empty partition there is nothing."""
    lift.publish(stream, b"0", b"1")
    _, status, details = lift.subscribe(stream, reverse=True, **fields).end()
    assert (status.name, text in details) == (code, True), details


def test_timestamps_find_their_records(lift, stream):
    """A start is the first record at or after a time, a stop the last at or before it."""
    for value in (b"0", b"1", b"2"):
        lift.publish(stream, value)
    everything = lift.subscribe(stream, startPosition=pb.EARLIEST)
    everything.wait(3)
    everything.cancel()
    times = [message.timestamp for message in everything.messages]
    after = lift.subscribe(
        stream,
        startPosition=pb.TIMESTAMP,
        startTimestamp=times[1],
        stopPosition=pb.STOP_TIMESTAMP,
        stopTimestamp=times[1],
    )
    assert after.end() == ([b"1"], grpc.StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
    early = lift.subscribe(
        stream,
        startPosition=pb.EARLIEST,
        stopPosition=pb.STOP_TIMESTAMP,
        stopTimestamp=times[0] - 1,
    )
    assert early.end()[1] is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stopPosition": pb.STOP_OFFSET, "stopOffset": 1}, [b"0", b"1"]),
        ({"stopPosition": pb.STOP_LATEST}, [b"0", b"1", b"2"]),
        ({"stopPosition": pb.STOP_TIMESTAMP, "stopTimestamp": 1 << 61}, [b"0", b"1", b"2"]),
    ],
)
def test_every_stop_position(lift, stream, fields, expected):
    """The stop is inclusive, and its end says so."""
    lift.publish(stream, b"0", b"1", b"2")
    reading = lift.subscribe(stream, startPosition=pb.EARLIEST, **fields)
    assert reading.end() == (
        expected,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Stop offset reached",
    )


def test_a_stop_beyond_the_end_waits_for_it(lift, stream):
    """A subscription continues until its stop was published."""
    reading = lift.subscribe(
        stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_OFFSET, stopOffset=1
    ).stand()
    lift.publish(stream, b"0", b"1", b"2")
    assert reading.end()[0] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"stream": "none"}, "NOT_FOUND", "No such partition"),
        ({"partition": 5}, "NOT_FOUND", "No such partition"),
        ({"startPosition": 9}, "INVALID_ARGUMENT", "Unknown StartPosition"),
        ({"stopPosition": 9}, "INVALID_ARGUMENT", "Unknown StopPosition"),
        ({"stopPosition": pb.STOP_LATEST}, "RESOURCE_EXHAUSTED", "Stream is empty"),
        (
            {"consumer": pb.Consumer(groupId="g")},
            "INVALID_ARGUMENT",
            "Consumer id cannot be empty when group id is provided",
        ),
    ],
)
def test_wrong_subscriptions_are_rejected(api, stream, fields, code, text):
    """Before anything is sent, with Liftbridge's codes and texts."""
    call = api.Subscribe(pb.SubscribeRequest(**{"stream": stream, **fields}), timeout=TIMEOUT_S)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert (caught.value.code().name, text in caught.value.details()) == (code, True)


def test_a_stop_before_the_start_is_rejected(lift, api, stream):
    """With the two offsets in the text."""
    lift.publish(stream, b"0", b"1", b"2")
    call = api.Subscribe(
        pb.SubscribeRequest(
            stream=stream,
            startPosition=pb.OFFSET,
            startOffset=2,
            stopPosition=pb.STOP_OFFSET,
            stopOffset=1,
        ),
        timeout=TIMEOUT_S,
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "Stop offset is before start offset: 1 < 2"


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"startPosition": pb.OFFSET, "startOffset": -LARGEST - 1}, [b"0", b"1", b"2"]),
        ({"startPosition": pb.OFFSET, "startOffset": LARGEST}, [b"2"]),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": LARGEST}, [b"2"]),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": -LARGEST - 1}, [b"0", b"1", b"2"]),
        (
            {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_OFFSET, "stopOffset": LARGEST},
            [b"0", b"1", b"2"],
        ),
        (
            {
                "startPosition": pb.EARLIEST,
                "stopPosition": pb.STOP_TIMESTAMP,
                "stopTimestamp": LARGEST,
            },
            [b"0", b"1"],
        ),
    ],
)
def test_positions_at_the_end_of_what_numbers_can_say(lift, stream, fields, expected):
    """The smallest and largest offsets and times mean the beginning and the end."""
    lift.publish(stream, b"0", b"1")
    reading = lift.subscribe(stream, **fields).stand()
    lift.publish(stream, b"2")
    assert reading.wait(len(expected)) == expected
    reading.cancel()


def test_positions_in_a_compacted_encrypted_stream(lift, api):
    """Every start finds its record, or the next one; a removed stop still stops."""
    name = "compacted"
    request = pb.CreateStreamRequest(name=name, subject=name, replicationFactor=-1)
    request.compactEnabled.value = request.encryption.value = True
    request.segmentMaxBytes.value = 64 << 10
    api.CreateStream(request, timeout=TIMEOUT_S)
    count, keys, rng = 400, 3, random.Random(1)
    requests = [
        pb.PublishRequest(
            stream=name,
            value=b"%d " % n + rng.randbytes(700),  # or they would all fit into one segment
            key=b"%d" % (n % keys),
            ackPolicy=pb.ALL,
        )
        for n in range(count)
    ]
    for first in range(0, count, 25):  # in batches that segments can be rolled between
        lift.publish_all(requests[first : first + 25])

    def messages(**fields):
        reading = lift.subscribe(name, **{"stopPosition": pb.STOP_LATEST, **fields})
        _, status, text = reading.end()
        assert (status, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
        return reading.messages

    lift.until(lambda: len(messages(startPosition=pb.EARLIEST)) < count // 2)
    found = messages(startPosition=pb.EARLIEST)
    kept = [m.offset for m in found]
    assert kept == sorted(set(kept))
    assert kept[-keys:] == list(range(count - keys, count)), "the newest of each key is there"
    assert all(m.value.startswith(b"%d " % m.offset) for m in found)
    gone = next(n for n in range(count) if n not in kept and n + 1 in kept)
    place = kept.index(gone + 1)
    assert messages(startPosition=pb.OFFSET, startOffset=gone)[0].offset >= gone + 1
    assert messages(startPosition=pb.LATEST)[0].offset == count - 1
    at = found[place].timestamp
    assert messages(startPosition=pb.TIMESTAMP, startTimestamp=at)[0].timestamp >= at
    stop = {"stopPosition": pb.STOP_OFFSET, "stopOffset": gone}
    assert all(m.offset < gone for m in messages(startPosition=pb.EARLIEST, **stop))


def test_what_transactions_leave_behind_the_last_record_holds_nobody_up(lift, stream):
    """A stop behind markers and aborted records is reached; times are those of records."""
    with strandline.connect(lift.flight, timeout_s=TIMEOUT_S) as client:
        client.append(stream, b"plain", partition=0)
        for number, ends_well in enumerate((True, False)):
            transaction = client.transaction(f"{stream}-{number}")
            transaction.append(stream, b"%d" % number, partition=0)
            transaction.commit() if ends_well else transaction.abort()
        # Behind it everything is committed, or was never to be.
        lift.until(lambda: client.offsets(stream)[0] == lift.partition(stream).newestOffset + 1)
    for start, expected in ((pb.EARLIEST, [b"plain", b"0"]), (pb.LATEST, [])):
        reading = lift.subscribe(stream, startPosition=start, stopPosition=pb.STOP_LATEST)
        assert reading.end() == (
            expected,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Stop offset reached",
        )
    first, last = (
        message.timestamp
        for message in lift.subscribe(
            stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST
        ).seen()
    )
    times = lift.partition(stream).messagesReceivedTimestamps
    assert (times.firstTimestamp, times.latestTimestamp) == (first, last)


def test_a_deleted_stream_ends_its_subscriptions(lift, api, stream):
    """With NOT_FOUND, which clients report as a deleted stream."""
    reading = lift.subscribe(stream).stand()
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    assert reading.end()[1] is grpc.StatusCode.NOT_FOUND


def test_a_long_subscription_gets_every_record_in_order(lift, stream):
    """Many records with and without headers, over several portions and HTTP/2 windows."""

    def requests():
        for n in range(8_000):
            headers = {"n": b"%d" % n} if n % 7 == 0 else {}
            key = b"k%d" % n if n % 5 == 0 else b""
            yield pb.PublishRequest(stream=stream, value=b"%d" % n * 20, headers=headers, key=key)

    assert len(lift.publish_all(requests())) == 8_000
    reading = lift.subscribe(stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
    values, status, _ = reading.end()
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert values == [b"%d" % n * 20 for n in range(8_000)]
    assert [m.offset for m in reading.messages] == list(range(8_000))
    assert all(("n" in m.headers) == (m.offset % 7 == 0) for m in reading.messages)
    assert all((m.key != b"") == (m.offset % 5 == 0) for m in reading.messages)


def test_hundreds_of_subscriptions_on_one_connection(lift, api, stream):
    """Each waits without cost, and receives new records."""
    request = pb.SubscribeRequest(stream=stream)
    calls = [api.Subscribe(request, timeout=TIMEOUT_S) for _ in range(300)]
    assert all(next(call) == pb.Message() for call in calls)
    lift.publish(stream, b"for all")
    assert all(next(call).value == b"for all" for call in calls)
    for call in calls:
        call.cancel()


def test_who_does_not_lead_sends_clients_away(three):
    """With the codes and texts by which they look for the leader; replicas serve if they may."""
    name, single = three.create("led"), "led-once"
    three.publish(name, b"0", b"1")
    request = pb.CreateStreamRequest(name=single, subject=single)
    three.api.CreateStream(request, timeout=TIMEOUT_S)
    refused, invalid = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
    replicas = three.metadata(single).partitions[0].replicas
    for number, stub in three.stubs.items():

        def subscribe(stream, stub=stub, **fields):
            request = pb.SubscribeRequest(
                stream=stream, startPosition=pb.EARLIEST, readISRReplica=True, **fields
            )
            return three.opened(lambda: stub.Subscribe(request, timeout=TIMEOUT_S))

        copy = subscribe(name, stopPosition=pb.STOP_OFFSET, stopOffset=1)
        assert copy.end()[0] == [b"0", b"1"]
        if str(number) not in replicas:
            kept_elsewhere = subscribe(single).end()
            assert kept_elsewhere[1:] == (refused, "Server not partition leader")
        if three.leader(name) == str(number):
            continue
        subscribed = three.opened(
            lambda s=stub: s.Subscribe(pb.SubscribeRequest(stream=name), timeout=TIMEOUT_S)
        )
        assert subscribed.end()[1:] == (refused, "Server not partition leader")
        member = subscribe(name, consumer=pb.Consumer(groupId="g", consumerId="c"))
        assert member.end()[1:] == (
            invalid,
            "Consumer groups not compatible with ReadISRReplica",
        )
        partition = pb.FetchPartitionMetadataRequest(stream=name)
        assert three.rejection(stub.FetchPartitionMetadata, partition) == (
            refused,
            "The request should be sent to partition leader",
        )


# Pause and readonly


def test_a_paused_partition_rests_until_somebody_publishes(lift, api, stream):
    """Subscriptions end with FAILED_PRECONDITION; a publish wakes it; pausing twice is fine."""
    lift.publish(stream, b"a")
    reading = lift.subscribe(stream, startPosition=pb.EARLIEST)
    reading.wait(1)
    for _ in range(2):
        api.PauseStream(pb.PauseStreamRequest(name=stream, partitions=[0]), timeout=TIMEOUT_S)
    assert reading.end()[1] is grpc.StatusCode.FAILED_PRECONDITION
    assert (lift.partition(stream, 0).paused, lift.partition(stream, 1).paused) == (
        True,
        False,
    )
    assert lift.publish(stream, b"b") == [1]
    assert not lift.partition(stream).paused


def test_whoever_is_published_through_wakes_it(lift, api, stream):
    """Through each broker, at once, and later records keep their order."""
    pause = pb.PauseStreamRequest(name=stream, partitions=[0])
    for round_number in range(2 * lift.size):
        api.PauseStream(pause, timeout=TIMEOUT_S)
        first = 3 * round_number
        requests = [
            pb.PublishRequest(stream=stream, value=b"%d" % (first + n), ackPolicy=pb.ALL)
            for n in range(3)
        ]
        answers = lift.publish_all(requests)
        assert [answer.ack.offset for answer in answers] == [first, first + 1, first + 2]
    reading = lift.subscribe(stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
    assert reading.end()[0] == [b"%d" % n for n in range(6 * lift.size)]


def test_a_subscription_may_wake_a_partition(lift, api, stream):
    """With resume it continues; without it ends after the handshake."""
    api.PauseStream(pb.PauseStreamRequest(name=stream), timeout=TIMEOUT_S)
    assert lift.subscribe(stream).end()[1] is grpc.StatusCode.FAILED_PRECONDITION
    reading = lift.subscribe(stream, resume=True).stand()
    assert not lift.partition(stream).paused
    lift.publish(stream, b"a")
    assert reading.wait(1) == [b"a"]
    reading.cancel()


def test_the_first_to_wake_may_wake_all(lift, api, stream):
    """resumeAll: a publish to one partition wakes every one of the stream."""
    api.PauseStream(pb.PauseStreamRequest(name=stream, resumeAll=True), timeout=TIMEOUT_S)
    assert lift.partition(stream, 1).paused
    lift.publish(stream, b"a")
    lift.until(lambda: not lift.partition(stream, 1).paused)  # its leader may be another broker


def test_an_idle_partition_pauses_itself(lift, api):
    """After autoPauseTime without records; a subscriber may keep it awake."""
    for name, keeps_awake in (("idle", False), ("idle-read", True)):
        request = pb.CreateStreamRequest(name=name, subject=name)
        request.autoPauseTime.value = 50 if lift.size == 1 else 1500
        request.autoPauseDisableIfSubscribers.value = keeps_awake
        api.CreateStream(request, timeout=TIMEOUT_S)

    def wakes(stream):
        """Whether a record gets there before the partition sleeps again."""
        try:
            lift.publish(stream, b"a")
        except grpc.RpcError as error:
            assert "is paused" in error.details()  # noqa: PT017  what else is a failure
            return False
        return True

    lift.until(lambda: wakes("idle-read"))
    reading = lift.subscribe("idle-read", resume=True).stand()
    lift.until(lambda: lift.partition("idle").paused)
    assert reading.status is None
    lift.until(lambda: wakes("idle"))
    reading.cancel()
    lift.until(lambda: lift.partition("idle-read").paused)


def test_a_readonly_partition_rejects_records_and_ends_its_readers(lift, api, stream):
    """Publishes are rejected, readers get the rest and then the end; it can be undone."""
    lift.publish(stream, b"a", b"b")
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name=stream, partitions=[0], readonly=True), timeout=TIMEOUT_S
    )
    refused = lift.rejection(api.Publish, pb.PublishRequest(stream=stream, value=b"c"))
    assert refused == (grpc.StatusCode.FAILED_PRECONDITION, "readonly partition: 0")
    assert lift.publish(stream, b"c", partition=1) == [0]
    reading = lift.subscribe(stream, startPosition=pb.EARLIEST)
    assert reading.end() == (
        [b"a", b"b"],
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "End of readonly partition",
    )
    assert lift.subscribe(stream).end()[1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert lift.partition(stream).readonly
    api.SetStreamReadonly(pb.SetStreamReadonlyRequest(name=stream), timeout=TIMEOUT_S)
    assert lift.publish(stream, b"d") == [2]


def test_a_reader_that_waits_hears_of_readonly(lift, api, stream):
    """A subscription at the end of a partition ends when it becomes readonly."""
    reading = lift.subscribe(stream).stand()
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name=stream, readonly=True), timeout=TIMEOUT_S
    )
    assert reading.end()[1:] == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "End of readonly partition",
    )


@pytest.mark.parametrize("kind", ["PauseStream", "SetStreamReadonly"])
def test_pausing_what_is_not_there(lift, api, stream, kind):
    """Unknown streams and partitions are NOT_FOUND."""
    request = {
        "PauseStream": pb.PauseStreamRequest,
        "SetStreamReadonly": pb.SetStreamReadonlyRequest,
    }
    call, make = getattr(api, kind), request[kind]
    not_found = grpc.StatusCode.NOT_FOUND
    assert lift.rejection(call, make(name="none")) == (not_found, "stream not found")
    assert lift.rejection(call, make(name="none", partitions=[0])) == (
        not_found,
        "stream does not exist",
    )
    assert lift.rejection(call, make(name=stream, partitions=[3])) == (
        not_found,
        "partition does not exist",
    )
