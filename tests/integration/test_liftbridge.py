"""Liftbridge's API through a stock gRPC client: every rpc, on one real broker."""

import re
import threading
import time
import zlib

import grpc
import pytest

from strandline.frontends.grpc._generated import health_pb2
from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import Server

TIMEOUT_S = 30
CONSUMER_TIMEOUT_MS = 1500


@pytest.fixture(scope="module")
def server():
    options = {"port": 0, "activity": True, "consumer_timeout_ms": CONSUMER_TIMEOUT_MS}
    running = Server(grpc=options)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.app.ready_line()['grpc_port']}") as opened:
        yield opened


@pytest.fixture
def api(channel, grpc_stub):
    return grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])


@pytest.fixture
def stream(api, request):
    """A stream of two partitions, named after the test."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
    api.CreateStream(pb.CreateStreamRequest(name=name, subject=name, partitions=2), timeout=5)
    return name


def publish(api, stream, *values, **fields):
    """Publish and wait for each ack; the offsets."""
    offsets = []
    for value in values:
        request = pb.PublishRequest(stream=stream, value=value, **fields)
        offsets.append(api.Publish(request, timeout=TIMEOUT_S).ack.offset)
    return offsets


class Subscription:
    """A subscription, read on a thread; the handshake is checked and left out."""

    def __init__(self, api, stream, **fields):
        request = pb.SubscribeRequest(stream=stream, **fields)
        self.messages = []
        self.status = None
        self.text = None
        self._call = api.Subscribe(request, timeout=TIMEOUT_S)
        self._stands = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for message in self._call:
                if not self._stands.is_set():
                    assert message == pb.Message()
                    self._stands.set()
                    continue
                self.messages.append(message)
            self.status = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.status, self.text = error.code(), error.details()
        self._stands.set()

    def stand(self):
        """Wait for the handshake."""
        assert self._stands.wait(TIMEOUT_S)
        return self

    def wait(self, count):
        """Wait until so many messages came; their values."""
        assert wait_until(lambda: len(self.messages) >= count or self.status is not None)
        return [message.value for message in self.messages]

    def end(self):
        """Wait for the end; values, status and text."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return [message.value for message in self.messages], self.status, self.text

    def cancel(self):
        self._call.cancel()
        self._thread.join(TIMEOUT_S)


def wait_until(condition):
    """Poll for a condition; whether it came true in time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def refusal(call, request):
    """The code and text that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=TIMEOUT_S)
    return caught.value.code(), caught.value.details()


def partition_of(api, stream, number=0):
    request = pb.FetchPartitionMetadataRequest(stream=stream, partition=number)
    return api.FetchPartitionMetadata(request, timeout=TIMEOUT_S).metadata


# Streams


def test_every_setting_of_a_stream_is_taken(api, server):
    """What a client asks for is what the stream is; unset and zero differ."""
    request = pb.CreateStreamRequest(name="settings", subject="settings.*", group="g", partitions=3)
    request.retentionMaxBytes.value = 1 << 20
    request.retentionMaxMessages.value = 7
    request.retentionMaxAge.value = 60_000
    request.cleanerInterval.value = 1000
    request.segmentMaxBytes.value = 1 << 17
    request.segmentMaxAge.value = 5000
    request.compactMaxGoroutines.value = 3
    request.compactEnabled.value = True
    request.autoPauseTime.value = 86_400_000
    request.autoPauseDisableIfSubscribers.value = True
    request.minIsr.value = 1
    request.optimisticConcurrencyControl.value = True
    request.encryption.value = False
    api.CreateStream(request, timeout=TIMEOUT_S)
    config = server.app.broker.stream("settings").config
    assert (config.subject, config.queue_group, config.partitions) == ("settings.*", "g", 3)
    assert (config.retention_bytes, config.retention_records) == (1 << 20, 7)
    assert (config.retention_age_ms, config.segment_age_ms) == (60_000, 5000)
    assert (config.segment_bytes, config.compact, config.min_isr) == (1 << 17, True, 1)
    assert (config.auto_pause_ms, config.auto_pause_if_read) == (86_400_000, False)
    assert config.optimistic_concurrency
    assert not config.pub_ack


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"name": ""}, "INVALID_ARGUMENT", "Name cannot be empty"),
        ({"subject": ""}, "INVALID_ARGUMENT", "Subject is invalid"),
        ({"subject": "a b"}, "INVALID_ARGUMENT", "Subject is invalid"),
        ({"subject": "a..b"}, "INVALID_ARGUMENT", "Subject is invalid"),
        ({"name": "__cursors"}, "INVALID_ARGUMENT", "Stream is reserved"),
        ({"name": "__groups"}, "INVALID_ARGUMENT", "Stream is reserved"),
        ({"name": "a/../b"}, "INVALID_ARGUMENT", "stream name"),
        ({"partitions": -1}, "INVALID_ARGUMENT", "no partitions provided"),
        ({"replicationFactor": -2}, "INVALID_ARGUMENT", "Invalid replicationFactor -2"),
        ({"replicationFactor": 2}, "INVALID_ARGUMENT", "cluster size 1"),
        ({"subject": "f.>", "partitions": 2}, "INVALID_ARGUMENT", "partition_by"),
        (
            {"encryption": pb.NullableBool(value=True)},
            "FAILED_PRECONDITION",
            "invalid AES key size",
        ),
    ],
)
def test_impossible_streams_are_refused(api, fields, code, text):
    """Each with Liftbridge's code, and never at the broker's cost."""
    request = pb.CreateStreamRequest(**{"name": "bad", "subject": "bad", **fields})
    found, details = refusal(api.CreateStream, request)
    assert (found.name, text in details) == (code, True), details


def test_all_brokers_means_this_one(api):
    """A replication factor of -1 is as many copies as there are brokers."""
    request = pb.CreateStreamRequest(name="all", subject="all", replicationFactor=-1)
    api.CreateStream(request, timeout=TIMEOUT_S)
    response = api.FetchMetadata(pb.FetchMetadataRequest(streams=["all"]), timeout=TIMEOUT_S)
    assert response.streamMetadata[0].partitions[0].replicas == ["0"]


def test_names_are_unique_and_deletion_is_not_idempotent(api, stream):
    """A second creation is ALREADY_EXISTS, a second deletion NOT_FOUND; a new one is empty."""
    publish(api, stream, b"a")
    again = pb.CreateStreamRequest(name=stream, subject="other")
    assert refusal(api.CreateStream, again)[0] is grpc.StatusCode.ALREADY_EXISTS
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    gone = refusal(api.DeleteStream, pb.DeleteStreamRequest(name=stream))
    assert gone == (grpc.StatusCode.NOT_FOUND, "stream does not exist")
    api.CreateStream(again, timeout=TIMEOUT_S)
    assert publish(api, stream, b"b") == [0]
    reserved = refusal(api.DeleteStream, pb.DeleteStreamRequest(name="__cursors"))
    assert reserved == (grpc.StatusCode.INVALID_ARGUMENT, "Stream is reserved")


# What there is


def test_metadata_says_what_there_is_and_what_is_not(api, server, stream):
    """One broker that can be dialled; unknown streams and groups are entries, not errors."""
    publish(api, stream, b"a", b"b", partition=1)
    request = pb.FetchMetadataRequest(streams=[stream, "no"], groups=["none"])
    response = api.FetchMetadata(request, timeout=TIMEOUT_S)
    [broker] = response.brokers
    assert (broker.host, broker.port) == ("127.0.0.1", server.app.ready_line()["grpc_port"])
    assert broker.leaderCount == broker.partitionCount > 1
    known, unknown = response.streamMetadata
    assert (known.name, known.subject, known.error) == (stream, stream, pb.StreamMetadata.OK)
    assert known.creationTimestamp > 10**18
    assert {n: p.highWatermark for n, p in known.partitions.items()} == {0: -1, 1: 1}
    assert known.partitions[1].leader == broker.id
    assert known.partitions[1].isr == known.partitions[1].replicas == [broker.id]
    assert (unknown.name, unknown.error) == ("no", pb.StreamMetadata.UNKNOWN_STREAM)
    [group] = response.groupMetadata
    assert (group.groupId, group.error) == ("none", pb.ConsumerGroupMetadata.UNKNOWN_GROUP)
    everything = api.FetchMetadata(pb.FetchMetadataRequest(), timeout=TIMEOUT_S)
    assert {stream, "__cursors", "__activity"} <= {s.name for s in everything.streamMetadata}


def test_a_partition_tells_when_things_happened(api, stream):
    """First and latest record, pause and readonly; 0 is never."""
    before = partition_of(api, stream)
    assert (before.newestOffset, before.messagesReceivedTimestamps.firstTimestamp) == (-1, 0)
    publish(api, stream, b"a")
    publish(api, stream, b"b")
    name = pb.PauseStreamRequest(name=stream, partitions=[0])
    api.PauseStream(name, timeout=TIMEOUT_S)
    found = partition_of(api, stream)
    times = found.messagesReceivedTimestamps
    assert 0 < times.firstTimestamp < times.latestTimestamp
    assert found.pauseTimestamps.firstTimestamp == found.pauseTimestamps.latestTimestamp > 0
    assert found.readonlyTimestamps.firstTimestamp == 0
    assert (found.paused, found.readonly, found.highWatermark, found.newestOffset) == (
        True,
        False,
        1,
        1,
    )
    absent = pb.FetchPartitionMetadataRequest(stream=stream, partition=9)
    assert refusal(api.FetchPartitionMetadata, absent) == (
        grpc.StatusCode.NOT_FOUND,
        "partition not found",
    )


# Publishing


def test_an_ack_tells_where_the_record_is(api, stream):
    """Offset, subjects, policy and times; the response has neither error nor correlation id."""
    request = pb.PublishRequest(
        stream=stream,
        partition=1,
        value=b"v",
        key=b"k",
        headers={"h": b"1"},
        correlationId="c",
        ackInbox="inbox",
        ackPolicy=pb.ALL,
    )
    response = api.Publish(request, timeout=TIMEOUT_S)
    ack = response.ack
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == (stream, stream, f"{stream}.1")
    assert (ack.offset, ack.correlationId, ack.ackInbox) == (0, "c", "inbox")
    assert (ack.ackPolicy, ack.ackError) == (pb.ALL, pb.Ack.OK)
    assert 0 < ack.receptionTimestamp <= ack.commitTimestamp
    assert not response.HasField("asyncError")
    assert response.correlationId == ""


def test_nobody_waits_without_a_deadline_or_a_policy(api, stream):
    """Policy NONE, and a call without a deadline, return at once and without an ack."""
    none = pb.PublishRequest(stream=stream, value=b"a", ackPolicy=pb.NONE)
    assert not api.Publish(none, timeout=TIMEOUT_S).HasField("ack")
    assert not api.Publish(pb.PublishRequest(stream=stream, value=b"b")).HasField("ack")
    reading = Subscription(api, stream, startPosition=pb.EARLIEST)
    assert reading.wait(2) == [b"a", b"b"]
    reading.cancel()


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"stream": ""}, "INVALID_ARGUMENT", "no stream provided"),
        ({"stream": "none"}, "NOT_FOUND", "no such stream: none"),
        ({"partition": 2}, "NOT_FOUND", "no such partition: 2"),
        ({"partition": -1}, "NOT_FOUND", "no such partition: -1"),
        ({"value": bytes((1 << 20) + 1)}, "INVALID_ARGUMENT", "exceeds max replication size"),
        ({"headers": {"x" * 2000: b""}}, "INVALID_ARGUMENT", "a header's name"),
    ],
)
def test_wrong_publishes_cost_their_sender_an_error(api, stream, fields, code, text):
    """With Liftbridge's codes; the broker goes on."""
    found, details = refusal(api.Publish, pb.PublishRequest(**{"stream": stream, **fields}))
    assert (found.name, text in details) == (code, True), details
    assert publish(api, stream, b"fine") == [0]


def test_a_message_id_makes_a_retry_the_same_record(api, stream):
    """A repeated Nats-Msg-Id is acknowledged with the first offset."""
    headers = {"Nats-Msg-Id": b"1"}
    assert publish(api, stream, b"a", b"a", headers=headers) == [0, 0]


class Asynchronous:
    """A stream of publishes that stays open."""

    def __init__(self, api):
        self._requests = []
        self._more = threading.Condition()
        self._is_over = False
        self.responses = api.PublishAsync(self._feed(), timeout=TIMEOUT_S)

    def _feed(self):
        while True:
            with self._more:
                self._more.wait_for(lambda: self._requests or self._is_over)
                if not self._requests:
                    return
                request = self._requests.pop(0)
            yield request

    def send(self, **fields):
        with self._more:
            self._requests.append(pb.PublishRequest(**fields))
            self._more.notify()

    def close(self):
        with self._more:
            self._is_over = True
            self._more.notify()


def test_a_stream_of_publishes_answers_in_band_and_goes_on(api, stream):
    """Refusals come as responses with an empty ack; the stream ends only when the client does."""
    publishing = Asynchronous(api)
    publishing.send(stream="none", correlationId="1")
    first = next(publishing.responses)
    assert first.correlationId == "1"
    assert first.asyncError.code == pb.PublishAsyncError.NOT_FOUND
    assert first.asyncError.message == "no such stream: none"
    assert first.HasField("ack")
    assert first.ack == pb.Ack()
    publishing.send(stream=stream, partition=7, correlationId="2")
    assert next(publishing.responses).asyncError.message == "no such partition: 7"
    publishing.send(stream=stream, value=b"n", ackPolicy=pb.NONE, correlationId="none")
    for policy in (pb.LEADER, pb.ALL):
        publishing.send(stream=stream, value=b"v", ackPolicy=policy, correlationId="same")
    answers = [next(publishing.responses) for _ in range(2)]
    assert [(a.correlationId, a.ack.offset) for a in answers] == [("same", 1), ("same", 2)]
    assert not any(a.HasField("asyncError") for a in answers)
    publishing.send(stream=stream, value=bytes((1 << 20) + 1), correlationId="large")
    large = next(publishing.responses)
    assert (large.correlationId, large.asyncError.code) == (
        "large",
        pb.PublishAsyncError.BAD_REQUEST,
    )
    publishing.close()
    assert list(publishing.responses) == []
    assert publishing.responses.code() is grpc.StatusCode.OK


def test_thousands_of_publishes_are_acknowledged_in_order(api, stream):
    """Pipelined publishes of one partition keep their order, and each gets its ack."""
    requests = (
        pb.PublishRequest(stream=stream, value=b"%d" % n, correlationId=str(n)) for n in range(2000)
    )
    acks = [(r.correlationId, r.ack.offset) for r in api.PublishAsync(requests, timeout=60)]
    assert acks == [(str(n), n) for n in range(2000)]


def test_a_subject_reaches_every_stream_that_records_it(api, stream):
    """PublishToSubject knows wildcards; a subject nobody records gets no ack."""
    name = f"{stream}-wild"
    api.CreateStream(pb.CreateStreamRequest(name=name, subject=f"{stream}.*.x"), timeout=TIMEOUT_S)
    request = pb.PublishToSubjectRequest(subject=f"{stream}.a.x", value=b"v", key=b"k")
    ack = api.PublishToSubject(request, timeout=TIMEOUT_S).ack
    assert (ack.stream, ack.offset) == (name, 0)
    assert (ack.partitionSubject, ack.msgSubject) == (f"{stream}.*.x", f"{stream}.a.x")
    reading = Subscription(api, name, startPosition=pb.EARLIEST)
    assert reading.wait(1) == [b"v"]
    message = reading.messages[0]
    assert (message.subject, message.headers["subject"]) == (
        f"{stream}.a.x",
        request.subject.encode(),
    )
    reading.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        api.PublishToSubject(pb.PublishToSubjectRequest(subject="nobody"), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    empty = refusal(api.PublishToSubject, pb.PublishToSubjectRequest(subject=""))
    assert empty == (grpc.StatusCode.UNKNOWN, "nats: invalid subject")


def test_optimistic_concurrency_stores_only_what_is_expected(api):
    """An expected offset that is not the next is refused; -1 checks nothing; NONE may not be."""
    request = pb.CreateStreamRequest(name="occ", subject="occ")
    request.optimisticConcurrencyControl.value = True
    api.CreateStream(request, timeout=TIMEOUT_S)
    assert publish(api, "occ", b"a", expectedOffset=0) == [0]
    stale = refusal(api.Publish, pb.PublishRequest(stream="occ", value=b"b", expectedOffset=0))
    assert stale == (grpc.StatusCode.UNKNOWN, "incorrect expected offset")
    assert publish(api, "occ", b"c", expectedOffset=1) == [1]
    assert publish(api, "occ", b"d", expectedOffset=-1) == [2]
    none = pb.PublishRequest(stream="occ", value=b"e", expectedOffset=3, ackPolicy=pb.NONE)
    assert refusal(api.Publish, none) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "stream with concurrency control must have AckPolicy set",
    )
    publishing = Asynchronous(api)
    publishing.send(stream="occ", value=b"f", expectedOffset=0)
    error = next(publishing.responses).asyncError
    assert (error.code, error.message) == (
        pb.PublishAsyncError.INCORRECT_OFFSET,
        "incorrect expected offset",
    )
    publishing.close()


# Subscribing


def test_a_message_has_everything_that_was_published(api, stream):
    """Key, value, headers with subject and reply beside them, time, place."""
    publish(api, stream, b"v", key=b"k", headers={"h": b"1", "subject": b"x"}, partition=1)
    reading = Subscription(api, stream, partition=1, startPosition=pb.EARLIEST)
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
def test_every_start_position(api, stream, fields, expected):
    """Five records, a subscription, a sixth record: what it sees first."""
    publish(api, stream, *(b"%d" % n for n in range(5)))
    reading = Subscription(api, stream, **fields).stand()
    publish(api, stream, b"5")
    assert reading.wait(len(expected))[: len(expected)] == expected
    reading.cancel()


def test_timestamps_find_their_records(api, stream):
    """A start is the first record at or after a time, a stop the last at or before it."""
    for value in (b"0", b"1", b"2"):
        publish(api, stream, value)
    everything = Subscription(api, stream, startPosition=pb.EARLIEST)
    everything.wait(3)
    everything.cancel()
    times = [message.timestamp for message in everything.messages]
    after = Subscription(
        api,
        stream,
        startPosition=pb.TIMESTAMP,
        startTimestamp=times[1],
        stopPosition=pb.STOP_TIMESTAMP,
        stopTimestamp=times[1],
    )
    assert after.end() == ([b"1"], grpc.StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
    early = Subscription(
        api,
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
def test_every_stop_position(api, stream, fields, expected):
    """The stop is inclusive, and its end says so."""
    publish(api, stream, b"0", b"1", b"2")
    reading = Subscription(api, stream, startPosition=pb.EARLIEST, **fields)
    assert reading.end() == (
        expected,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Stop offset reached",
    )


def test_a_stop_beyond_the_end_waits_for_it(api, stream):
    """A subscription goes on until its stop has been published."""
    reading = Subscription(
        api, stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_OFFSET, stopOffset=1
    ).stand()
    publish(api, stream, b"0", b"1", b"2")
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
def test_wrong_subscriptions_are_refused(api, stream, fields, code, text):
    """Before anything is sent, with Liftbridge's codes and texts."""
    call = api.Subscribe(pb.SubscribeRequest(**{"stream": stream, **fields}), timeout=TIMEOUT_S)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert (caught.value.code().name, text in caught.value.details()) == (code, True)


def test_a_stop_before_the_start_is_refused(api, stream):
    """With the two offsets in the text."""
    publish(api, stream, b"0", b"1", b"2")
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


def test_a_deleted_stream_ends_its_subscriptions(api, stream):
    """With NOT_FOUND, which clients report as a deleted stream."""
    reading = Subscription(api, stream).stand()
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    assert reading.end()[1] is grpc.StatusCode.NOT_FOUND


def test_a_long_subscription_gets_every_record_in_order(api, stream):
    """Many records with and without headers, over several portions and HTTP/2 windows."""

    def requests():
        for n in range(8_000):
            headers = {"n": b"%d" % n} if n % 7 == 0 else {}
            key = b"k%d" % n if n % 5 == 0 else b""
            yield pb.PublishRequest(stream=stream, value=b"%d" % n * 20, headers=headers, key=key)

    assert sum(1 for _ in api.PublishAsync(requests(), timeout=120)) == 8_000
    reading = Subscription(api, stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
    values, status, _ = reading.end()
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert values == [b"%d" % n * 20 for n in range(8_000)]
    assert [m.offset for m in reading.messages] == list(range(8_000))
    assert all(("n" in m.headers) == (m.offset % 7 == 0) for m in reading.messages)
    assert all((m.key != b"") == (m.offset % 5 == 0) for m in reading.messages)


def test_hundreds_of_subscriptions_on_one_connection(api, stream):
    """Each waits without cost, and gets what is published."""
    request = pb.SubscribeRequest(stream=stream)
    calls = [api.Subscribe(request, timeout=TIMEOUT_S) for _ in range(300)]
    assert all(next(call) == pb.Message() for call in calls)
    publish(api, stream, b"for all")
    assert all(next(call).value == b"for all" for call in calls)
    for call in calls:
        call.cancel()


# Pause and readonly


def test_a_paused_partition_rests_until_somebody_publishes(api, stream):
    """Subscriptions end with FAILED_PRECONDITION; a publish wakes it; pausing twice is fine."""
    publish(api, stream, b"a")
    reading = Subscription(api, stream, startPosition=pb.EARLIEST)
    reading.wait(1)
    for _ in range(2):
        api.PauseStream(pb.PauseStreamRequest(name=stream, partitions=[0]), timeout=TIMEOUT_S)
    assert reading.end()[1] is grpc.StatusCode.FAILED_PRECONDITION
    assert (partition_of(api, stream, 0).paused, partition_of(api, stream, 1).paused) == (
        True,
        False,
    )
    assert publish(api, stream, b"b") == [1]
    assert not partition_of(api, stream).paused


def test_a_subscription_may_wake_a_partition(api, stream):
    """With resume it goes on; without it ends behind the handshake."""
    api.PauseStream(pb.PauseStreamRequest(name=stream), timeout=TIMEOUT_S)
    assert Subscription(api, stream).end()[1] is grpc.StatusCode.FAILED_PRECONDITION
    reading = Subscription(api, stream, resume=True).stand()
    assert not partition_of(api, stream).paused
    publish(api, stream, b"a")
    assert reading.wait(1) == [b"a"]
    reading.cancel()


def test_the_first_to_wake_may_wake_all(api, stream):
    """resumeAll: a publish to one partition wakes every one of the stream."""
    api.PauseStream(pb.PauseStreamRequest(name=stream, resumeAll=True), timeout=TIMEOUT_S)
    assert partition_of(api, stream, 1).paused
    publish(api, stream, b"a")
    assert not partition_of(api, stream, 1).paused


def test_an_idle_partition_pauses_itself(api):
    """After autoPauseTime without records; a subscriber may keep it awake."""
    for name, keeps_awake in (("idle", False), ("idle-read", True)):
        request = pb.CreateStreamRequest(name=name, subject=name)
        request.autoPauseTime.value = 50
        request.autoPauseDisableIfSubscribers.value = keeps_awake
        api.CreateStream(request, timeout=TIMEOUT_S)
    publish(api, "idle-read", b"wakes it if it was quick to sleep")
    reading = Subscription(api, "idle-read", resume=True).stand()
    assert wait_until(lambda: partition_of(api, "idle").paused)
    assert reading.status is None
    assert publish(api, "idle", b"a") == [0]
    reading.cancel()
    assert wait_until(lambda: partition_of(api, "idle-read").paused)


def test_a_readonly_partition_refuses_records_and_ends_its_readers(api, stream):
    """Publishes are refused, readers get what there is and then the end; it can be undone."""
    publish(api, stream, b"a", b"b")
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name=stream, partitions=[0], readonly=True), timeout=TIMEOUT_S
    )
    refused = refusal(api.Publish, pb.PublishRequest(stream=stream, value=b"c"))
    assert refused == (grpc.StatusCode.FAILED_PRECONDITION, "readonly partition: 0")
    assert publish(api, stream, b"c", partition=1) == [0]
    reading = Subscription(api, stream, startPosition=pb.EARLIEST)
    assert reading.end() == (
        [b"a", b"b"],
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "End of readonly partition",
    )
    assert Subscription(api, stream).end()[1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert partition_of(api, stream).readonly
    api.SetStreamReadonly(pb.SetStreamReadonlyRequest(name=stream), timeout=TIMEOUT_S)
    assert publish(api, stream, b"d") == [2]


def test_a_reader_that_waits_hears_of_readonly(api, stream):
    """A subscription at the end of a partition ends when it becomes readonly."""
    reading = Subscription(api, stream).stand()
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name=stream, readonly=True), timeout=TIMEOUT_S
    )
    assert reading.end()[1:] == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "End of readonly partition",
    )


@pytest.mark.parametrize("kind", ["PauseStream", "SetStreamReadonly"])
def test_pausing_what_is_not_there(api, stream, kind):
    """Unknown streams and partitions are NOT_FOUND."""
    request = {
        "PauseStream": pb.PauseStreamRequest,
        "SetStreamReadonly": pb.SetStreamReadonlyRequest,
    }
    call, make = getattr(api, kind), request[kind]
    not_found = grpc.StatusCode.NOT_FOUND
    assert refusal(call, make(name="none")) == (not_found, "stream not found")
    assert refusal(call, make(name="none", partitions=[0])) == (not_found, "stream does not exist")
    assert refusal(call, make(name=stream, partitions=[3])) == (
        not_found,
        "partition does not exist",
    )


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


def test_cursors_are_records_with_keys(api):
    """Key ``id,stream,partition`` and a protobuf value, as Liftbridge stores them."""
    request = pb.SetCursorRequest(stream="s", partition=1, cursorId="a,b", offset=7)
    api.SetCursor(request, timeout=TIMEOUT_S)
    reading = Subscription(api, "__cursors", startPosition=pb.LATEST, stopPosition=pb.STOP_LATEST)
    reading.end()
    [message] = reading.messages
    assert message.key == b"a,b,s,1"
    assert pb.Cursor.FromString(message.value).offset == 7
    assert zlib.crc32(message.key) % 1 == message.partition


@pytest.mark.parametrize("kind", ["SetCursor", "FetchCursor"])
def test_cursors_need_names(api, kind):
    """Stream and cursor id are asked for."""
    make = {"SetCursor": pb.SetCursorRequest, "FetchCursor": pb.FetchCursorRequest}[kind]
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(getattr(api, kind), make(cursorId="c")) == (invalid, "No stream provided")
    assert refusal(getattr(api, kind), make(stream="s")) == (invalid, "No cursorId provided")


# Consumer groups


def join(api, group, member, *streams):
    request = pb.JoinConsumerGroupRequest(groupId=group, consumerId=member, streams=streams)
    return api.JoinConsumerGroup(request, timeout=TIMEOUT_S)


def assigned(api, group, member, epoch):
    request = pb.FetchConsumerGroupAssignmentsRequest(groupId=group, consumerId=member, epoch=epoch)
    response = api.FetchConsumerGroupAssignments(request, timeout=TIMEOUT_S)
    return {each.stream: list(each.partitions) for each in response.assignments}


def epoch_of(api, group):
    request = pb.FetchMetadataRequest(groups=[group])
    return api.FetchMetadata(request, timeout=TIMEOUT_S).groupMetadata[0].epoch


def test_members_share_the_partitions(api, stream):
    """Timeouts are nanoseconds; every change moves the epoch, and old epochs are refused."""
    first = join(api, "g", "a", stream)
    assert first.consumerTimeout == CONSUMER_TIMEOUT_MS * 1_000_000
    assert first.coordinatorTimeout == 15_000 * 1_000_000
    assert assigned(api, "g", "a", first.epoch) == {stream: [0, 1]}
    second = join(api, "g", "b", stream)
    assert second.epoch > first.epoch
    stale = pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="a", epoch=first.epoch)
    assert refusal(api.FetchConsumerGroupAssignments, stale) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "client-provided group epoch differs from broker group epoch",
    )
    assert epoch_of(api, "g") == second.epoch
    assert assigned(api, "g", "a", second.epoch) == {stream: [0]}
    assert assigned(api, "g", "b", second.epoch) == {stream: [1]}
    again = pb.JoinConsumerGroupRequest(groupId="g", consumerId="a", streams=[stream])
    assert refusal(api.JoinConsumerGroup, again) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "consumer is already a member of the consumer group",
    )
    leave = pb.LeaveConsumerGroupRequest(groupId="g", consumerId="a")
    api.LeaveConsumerGroup(leave, timeout=TIMEOUT_S)
    assert refusal(api.LeaveConsumerGroup, leave)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert assigned(api, "g", "b", epoch_of(api, "g")) == {stream: [0, 1]}
    api.LeaveConsumerGroup(
        pb.LeaveConsumerGroupRequest(groupId="g", consumerId="b"), timeout=TIMEOUT_S
    )
    assert refusal(api.LeaveConsumerGroup, leave)[0] is grpc.StatusCode.NOT_FOUND


def test_a_silent_member_is_removed(api, stream):
    """Who does not fetch its assignment in time loses its partitions to who does."""
    join(api, "silence", "quiet", stream)
    join(api, "silence", "loud", stream)

    def is_alone():
        epoch = epoch_of(api, "silence")
        try:
            return assigned(api, "silence", "loud", epoch) == {stream: [0, 1]}
        except grpc.RpcError:  # the epoch moved meanwhile
            return False

    assert wait_until(is_alone)
    epoch = epoch_of(api, "silence")
    quiet = pb.FetchConsumerGroupAssignmentsRequest(
        groupId="silence", consumerId="quiet", epoch=epoch
    )
    assert refusal(api.FetchConsumerGroupAssignments, quiet)[1] == (
        "consumer is not a member of the consumer group"
    )


def test_a_deleted_stream_moves_the_epoch(api, stream):
    """Members have to ask anew when a stream of theirs is gone."""
    before = join(api, "deletion", "a", stream).epoch
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    after = epoch_of(api, "deletion")
    assert after > before
    assert assigned(api, "deletion", "a", after) == {}


def test_a_partition_has_one_reader_of_a_group(api, stream):
    """A newer epoch takes over, and who was there ends without an error; an older is refused."""

    def consumer(member, epoch):
        return pb.Consumer(groupId="fence", consumerId=member, groupEpoch=epoch)

    first = Subscription(api, stream, consumer=consumer("a", 5)).stand()
    second = Subscription(api, stream, consumer=consumer("b", 5)).stand()
    assert first.end()[1] is grpc.StatusCode.OK
    stale = Subscription(api, stream, consumer=consumer("a", 4)).end()
    assert stale[1:] == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "Consumer is not currently assigned this partition",
    )
    publish(api, stream, b"x")
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
def test_wrong_group_calls_are_refused(api, kind, fields, code, text):
    """With Liftbridge's codes."""
    call, make = {
        "Join": (api.JoinConsumerGroup, pb.JoinConsumerGroupRequest),
        "Leave": (api.LeaveConsumerGroup, pb.LeaveConsumerGroupRequest),
        "Fetch": (api.FetchConsumerGroupAssignments, pb.FetchConsumerGroupAssignmentsRequest),
        "Report": (api.ReportConsumerGroupCoordinator, pb.ReportConsumerGroupCoordinatorRequest),
    }[kind]
    found, details = refusal(call, make(**fields))
    assert (found.name, text in details) == (code, True), details


def test_one_broker_cannot_hand_a_group_over(api, stream):
    """A report about the only coordinator there can be finds no candidate."""
    joined = join(api, "reported", "a", stream)
    request = pb.ReportConsumerGroupCoordinatorRequest(
        groupId="reported", consumerId="a", coordinator=joined.coordinator, epoch=joined.epoch
    )
    assert refusal(api.ReportConsumerGroupCoordinator, request) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "No group coordinator candidates",
    )
    request.epoch += 1
    assert refusal(api.ReportConsumerGroupCoordinator, request)[0] is (
        grpc.StatusCode.FAILED_PRECONDITION
    )


# Beside


def test_the_activity_stream_tells_what_happened(api, stream):
    """In order, with growing ids, beginning with the stream itself."""
    api.PauseStream(pb.PauseStreamRequest(name=stream, partitions=[1]), timeout=TIMEOUT_S)
    publish(api, stream, b"a", partition=1)
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name=stream, readonly=True), timeout=TIMEOUT_S
    )
    join(api, "active", "a", stream)
    leave = pb.LeaveConsumerGroupRequest(groupId="active", consumerId="a")
    api.LeaveConsumerGroup(leave, timeout=TIMEOUT_S)
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    reading = Subscription(api, "__activity", startPosition=pb.EARLIEST)

    def events():
        return [pb.ActivityStreamEvent.FromString(m.value) for m in reading.messages]

    gone = pb.DeleteStreamOp(stream=stream)
    assert wait_until(lambda: any(e.deleteStreamOp == gone for e in events()))
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


def test_health_is_reported(channel, grpc_stub):
    """SERVING for the whole and for the API; NOT_FOUND for what is not here."""
    health = grpc_stub(channel, health_pb2.DESCRIPTOR.services_by_name["Health"])
    serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    for name in ("", "proto.API"):
        request = health_pb2.HealthCheckRequest(service=name)
        assert health.Check(request, timeout=TIMEOUT_S) == serving
    watching = health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert next(watching) == serving
    watching.cancel()
    unknown = refusal(health.Check, health_pb2.HealthCheckRequest(service="x"))
    assert unknown[0] is grpc.StatusCode.NOT_FOUND


def test_unknown_methods_and_broken_messages(channel):
    """UNIMPLEMENTED for a method nobody knows, INVALID_ARGUMENT for bytes that are no message."""
    for path, data, code in (
        ("/proto.API/Nothing", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/proto.API/Publish", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(data, timeout=TIMEOUT_S)
        assert caught.value.code() is code


def test_everything_survives_a_restart(tmp_path, grpc_stub):
    """Records, readonly, cursors and group members are there again; open calls end UNAVAILABLE."""
    service = pb.DESCRIPTOR.services_by_name["API"]
    first = Server(data_dir=tmp_path, grpc={"port": 0})
    first.start()
    with grpc.insecure_channel(f"127.0.0.1:{first.app.ready_line()['grpc_port']}") as channel:
        api = grpc_stub(channel, service)
        api.CreateStream(pb.CreateStreamRequest(name="s", subject="s"), timeout=TIMEOUT_S)
        publish(api, "s", b"a", headers={"h": b"1"})
        request = pb.SetCursorRequest(stream="s", cursorId="c", offset=4)
        api.SetCursor(request, timeout=TIMEOUT_S)
        api.SetStreamReadonly(
            pb.SetStreamReadonlyRequest(name="s", readonly=True), timeout=TIMEOUT_S
        )
        epoch = join(api, "g", "a", "s").epoch
        publishing = Asynchronous(api)
        publishing.send(stream="none")
        next(publishing.responses)
        first.stop()
        with pytest.raises(grpc.RpcError) as caught:
            next(publishing.responses)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        publishing.close()
    second = Server(data_dir=tmp_path, grpc={"port": 0})
    second.start()
    with grpc.insecure_channel(f"127.0.0.1:{second.app.ready_line()['grpc_port']}") as channel:
        api = grpc_stub(channel, service)
        reading = Subscription(api, "s", startPosition=pb.EARLIEST)
        assert reading.end()[:2] == ([b"a"], grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert reading.messages[0].headers["h"] == b"1"
        fetch = pb.FetchCursorRequest(stream="s", cursorId="c")
        assert api.FetchCursor(fetch, timeout=TIMEOUT_S).offset == 4
        assert assigned(api, "g", "a", epoch) == {"s": [0]}
    second.stop()
