"""Streams and publishing, by every setting and rejection: on one broker and on three."""

import itertools

import grpc
import pytest

import strandline
from strandline.servers.forward import PENDING_MAX
from strandline.servers.grpc._generated import liftbridge_pb2 as pb

TIMEOUT_S = 120


# Streams


def test_every_setting_of_a_stream_is_taken(lift, api):
    """A stream has the settings that the client requested; unset and zero differ."""
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
    with strandline.connect(lift.flight) as client:
        config = client.stream_info("settings").config
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
        ({"replicationFactor": 4}, "INVALID_ARGUMENT", "cluster size"),
        ({"subject": "f.>", "partitions": 2}, "INVALID_ARGUMENT", "partition_by"),
    ],
)
def test_impossible_streams_are_rejected(lift, api, fields, code, text):
    """Each with Liftbridge's code, and never at the broker's cost."""
    request = pb.CreateStreamRequest(**{"name": "bad", "subject": "bad", **fields})
    found, details = lift.rejection(api.CreateStream, request)
    assert (found.name, text in details) == (code, True), details


def test_a_stream_has_as_many_copies_as_asked_for(lift, api):
    """-1 is as many as there are brokers, and 0 is one."""
    for factor, count in ((-1, lift.size), (0, 1), (1, 1)):
        name = f"copies{factor}"
        request = pb.CreateStreamRequest(name=name, subject=name, replicationFactor=factor)
        api.CreateStream(request, timeout=TIMEOUT_S)
        replicas = lift.metadata(name).partitions[0].replicas
        assert len(replicas) == count
        assert {int(broker) for broker in replicas} <= set(lift.stubs)


@pytest.mark.parametrize(
    ("setting", "limit"),
    [("retentionMaxMessages", 3), ("retentionMaxBytes", 1), ("retentionMaxAge", 1)],
)
def test_retention_deletes_what_is_old(lift, api, setting, limit):
    """By records, bytes and age; offsets continue, and earliest is after the deleted records."""
    request = pb.CreateStreamRequest(name=setting, subject=setting, replicationFactor=-1)
    getattr(request, setting).value = limit
    request.segmentMaxBytes.value = 1 << 16
    api.CreateStream(request, timeout=TIMEOUT_S)
    for _ in range(4):
        lift.publish(setting, bytes(40_000))

    def first_kept():
        reading = lift.subscribe(setting, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        return min((message.offset for message in reading.seen()), default=4)

    lift.until(lambda: first_kept() > 0)
    assert lift.publish(setting, b"next") == [4]


def test_names_are_unique_and_deletion_is_not_idempotent(lift, api, stream):
    """A second creation is ALREADY_EXISTS, a second deletion NOT_FOUND; a new one is empty."""
    lift.publish(stream, b"a")
    again = pb.CreateStreamRequest(name=stream, subject="other")
    assert lift.rejection(api.CreateStream, again)[0] is grpc.StatusCode.ALREADY_EXISTS
    api.DeleteStream(pb.DeleteStreamRequest(name=stream), timeout=TIMEOUT_S)
    gone = lift.rejection(api.DeleteStream, pb.DeleteStreamRequest(name=stream))
    assert gone == (grpc.StatusCode.NOT_FOUND, "stream does not exist")
    api.CreateStream(again, timeout=TIMEOUT_S)
    assert lift.publish(stream, b"b") == [0]
    reserved = lift.rejection(api.DeleteStream, pb.DeleteStreamRequest(name="__cursors"))
    assert reserved == (grpc.StatusCode.INVALID_ARGUMENT, "Stream is reserved")


@pytest.mark.parametrize("change", ["PauseStream", "SetStreamReadonly"])
def test_what_is_not_there_is_neither_paused_nor_closed(lift, api, stream, change):
    """An unknown stream or partition, and those of the broker itself; nothing is changed."""
    call, request = getattr(api, change), getattr(pb, f"{change}Request")
    for fields, rejection in (
        ({"name": "none"}, ("NOT_FOUND", "stream not found")),
        ({"name": "none", "partitions": [0]}, ("NOT_FOUND", "stream does not exist")),
        ({"name": stream, "partitions": [0, 9]}, ("NOT_FOUND", "partition does not exist")),
        ({"name": stream, "partitions": [-1]}, ("NOT_FOUND", "partition does not exist")),
        ({"name": "__cursors"}, ("INVALID_ARGUMENT", "Stream is reserved")),
    ):
        code, text = lift.rejection(call, request(**fields))
        assert (code.name, text) == rejection
    found = lift.partition(stream)
    assert (found.paused, found.readonly) == (False, False)


# What there is


def test_metadata_of_a_stream_that_is_named_often_is_told_once(lift, api, stream):
    """A short request gets no answer that grows with how often it names a large stream."""
    request = pb.FetchMetadataRequest(streams=[stream, "no"] * 10_000, groups=["none"] * 10_000)
    response = api.FetchMetadata(request, timeout=TIMEOUT_S)
    assert [each.name for each in response.streamMetadata] == [stream, "no"]
    assert [each.groupId for each in response.groupMetadata] == ["none"]


def test_metadata_says_what_there_is_and_what_is_not(lift, api, stream):
    """The brokers that can be dialled; unknown streams and groups are entries, not errors."""
    lift.publish(stream, b"a", b"b", partition=1)
    request = pb.FetchMetadataRequest(streams=[stream, "no"], groups=["none"])
    response = api.FetchMetadata(request, timeout=TIMEOUT_S)
    assert [int(broker.id) for broker in response.brokers] == list(lift.stubs)
    for broker in response.brokers:  # what it says of where to dial them is true
        with grpc.insecure_channel(f"{broker.host}:{broker.port}") as channel:
            grpc.channel_ready_future(channel).result(TIMEOUT_S)
    assert all(broker.partitionCount >= max(2, broker.leaderCount) for broker in response.brokers)
    known, unknown = response.streamMetadata
    assert (known.name, known.subject, known.error) == (stream, stream, pb.StreamMetadata.OK)
    assert known.creationTimestamp > 10**18
    assert known.partitions[0].highWatermark == -1
    assert lift.partition(stream, 1).highWatermark == 1  # of which other brokers hear later
    ids = [broker.id for broker in response.brokers]
    assert known.partitions[1].leader in ids
    assert sorted(known.partitions[1].replicas) == sorted(known.partitions[1].isr) == ids
    assert (unknown.name, unknown.error) == ("no", pb.StreamMetadata.UNKNOWN_STREAM)
    [group] = response.groupMetadata
    assert (group.groupId, group.error) == ("none", pb.ConsumerGroupMetadata.UNKNOWN_GROUP)
    everything = api.FetchMetadata(pb.FetchMetadataRequest(), timeout=TIMEOUT_S)
    assert {stream, "__cursors", "__activity"} <= {s.name for s in everything.streamMetadata}


def test_a_partition_tells_when_things_happened(lift, api, stream):
    """First and latest record, pause and readonly; 0 is never."""
    before = lift.partition(stream)
    assert (before.newestOffset, before.messagesReceivedTimestamps.firstTimestamp) == (-1, 0)
    lift.publish(stream, b"a")
    lift.publish(stream, b"b")
    name = pb.PauseStreamRequest(name=stream, partitions=[0])
    api.PauseStream(name, timeout=TIMEOUT_S)
    found = lift.partition(stream)
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
    lift.subscribe(stream, resume=True).stand().cancel()
    again = lift.partition(stream).pauseTimestamps
    assert again.firstTimestamp == found.pauseTimestamps.firstTimestamp < again.latestTimestamp
    absent = pb.FetchPartitionMetadataRequest(stream=stream, partition=9)
    assert lift.rejection(api.FetchPartitionMetadata, absent) == (
        grpc.StatusCode.NOT_FOUND,
        "partition not found",
    )


def test_a_paused_partition_counts_for_no_broker(lift, api, stream):
    """A broker's load is what it stores and leads at the moment."""

    def counts():
        brokers = api.FetchMetadata(pb.FetchMetadataRequest(), timeout=TIMEOUT_S).brokers
        return sum(b.partitionCount for b in brokers), sum(b.leaderCount for b in brokers)

    copies = len(lift.stubs)
    kept, led = counts()
    api.PauseStream(pb.PauseStreamRequest(name=stream), timeout=TIMEOUT_S)
    lift.until(lambda: counts() == (kept - 2 * copies, led - 2))
    lift.subscribe(stream, resume=True).stand().cancel()
    lift.until(lambda: counts() == (kept - copies, led - 1))


# Publishing


def test_an_ack_tells_where_the_record_is(lift, api, stream):
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
    if lift.leader(stream) == "0":  # others may answer before they have the record
        reading = lift.subscribe(stream, partition=1, startPosition=pb.EARLIEST)
        reading.wait(1)
        assert reading.messages[0].timestamp == ack.receptionTimestamp
        reading.cancel()
    assert not response.HasField("asyncError")
    assert response.correlationId == ""


def test_nobody_waits_without_a_deadline_or_a_policy(lift, api, stream):
    """Policy NONE, and a call without a deadline, return at once and without an ack."""
    none = pb.PublishRequest(stream=stream, value=b"a", ackPolicy=pb.NONE)
    assert not api.Publish(none, timeout=TIMEOUT_S).HasField("ack")
    assert not api.Publish(pb.PublishRequest(stream=stream, value=b"b")).HasField("ack")
    reading = lift.subscribe(stream, startPosition=pb.EARLIEST)
    assert sorted(reading.wait(2)) == [b"a", b"b"]  # whichever was quicker
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
        ({"headers": {"é" * 513: b""}}, "INVALID_ARGUMENT", "a header's name"),
        ({"headers": {"Nats-Msg-Id": b"\xe8"}}, "INVALID_ARGUMENT", "Nats-Msg-Id is not UTF-8"),
        ({"headers": {"Nats-Msg-Id": b"i" * 1025}}, "INVALID_ARGUMENT", "has at most 1024 bytes"),
    ],
)
def test_wrong_publishes_cost_their_sender_an_error(lift, api, stream, fields, code, text):
    """With Liftbridge's codes; the broker continues."""
    found, details = lift.rejection(api.Publish, pb.PublishRequest(**{"stream": stream, **fields}))
    assert (found.name, text in details) == (code, True), details
    assert lift.publish(stream, b"fine") == [0]


def test_a_message_id_makes_a_retry_the_same_record(lift, stream):
    """A repeated Nats-Msg-Id is acknowledged with the first offset."""
    headers = {"Nats-Msg-Id": b"1"}
    assert lift.publish(stream, b"a", b"a", headers=headers) == [0, 0]


def test_a_stream_of_publishes_answers_in_band_and_continues(lift, stream):
    """Rejections come as responses with an empty ack; the stream ends only when the client does."""
    publishing = lift.publishing()
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


def test_thousands_of_publishes_are_acknowledged_in_order(lift, stream):
    """Pipelined publishes of one partition keep their order, and each gets its ack."""
    requests = (
        pb.PublishRequest(stream=stream, value=b"%d" % n, correlationId=str(n)) for n in range(2000)
    )
    acks = [(r.correlationId, r.ack.offset) for r in lift.publish_all(requests)]
    assert acks == [(str(n), n) for n in range(2000)]


def test_a_burst_is_stored_through_any_broker(lift, stream):
    """Publishes beyond the forwarding limit wait; none is rejected."""
    brokers = [number for number in lift.stubs if str(number) != lift.leader(stream)]
    count = 2 * PENDING_MAX + 10_000
    publishing = lift.publishing(brokers[0] if brokers else None)
    for n in range(count):
        publishing.send(stream=stream, value=b"v", correlationId=str(n))
    answers = list(itertools.islice(publishing.responses, count))
    publishing.close()
    assert {answer.asyncError.message for answer in answers} == {""}
    assert [answer.ack.offset for answer in answers] == list(range(count))


def test_a_stream_that_rests_does_not_speak_for_the_others(lift, api, stream):
    """A message to a subject is acked where it is stored, though a paused stream rejects it."""
    names = [stream, lift.create(f"{stream}-other", subject=stream)]
    request = pb.PublishToSubjectRequest(subject=stream, value=b"v")
    for resting, storing in (names, names[::-1]):
        api.PauseStream(pb.PauseStreamRequest(name=resting), timeout=TIMEOUT_S)
        assert api.PublishToSubject(request, timeout=TIMEOUT_S).ack.stream == storing
        lift.subscribe(resting, resume=True).stand().cancel()
    for name in names:
        api.PauseStream(pb.PauseStreamRequest(name=name), timeout=TIMEOUT_S)
    assert api.PublishToSubject(request, timeout=TIMEOUT_S).ack.ackError == pb.Ack.UNKNOWN


def test_a_subject_reaches_every_stream_that_records_it(lift, api, stream):
    """PublishToSubject matches wildcards; a subject without a stream gets no ack."""
    name = f"{stream}-wild"
    api.CreateStream(pb.CreateStreamRequest(name=name, subject=f"{stream}.*.x"), timeout=TIMEOUT_S)
    request = pb.PublishToSubjectRequest(subject=f"{stream}.a.x", value=b"v", key=b"k")
    ack = api.PublishToSubject(request, timeout=TIMEOUT_S).ack
    assert (ack.stream, ack.offset) == (name, 0)
    assert (ack.partitionSubject, ack.msgSubject) == (f"{stream}.*.x", f"{stream}.a.x")
    reading = lift.subscribe(name, startPosition=pb.EARLIEST)
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
    empty = lift.rejection(api.PublishToSubject, pb.PublishToSubjectRequest(subject=""))
    assert empty == (grpc.StatusCode.UNKNOWN, "nats: invalid subject")


def test_optimistic_concurrency_stores_only_what_is_expected(lift, api):
    """An expected offset that is not the next is rejected; -1 disables the check."""
    request = pb.CreateStreamRequest(name="occ", subject="occ")
    request.optimisticConcurrencyControl.value = True
    api.CreateStream(request, timeout=TIMEOUT_S)
    assert lift.publish("occ", b"a", expectedOffset=0) == [0]
    for wrong in (0, 2, -2, -(2**63), 2**63 - 1):
        request = pb.PublishRequest(stream="occ", value=b"b", expectedOffset=wrong)
        for stub in lift.stubs.values():
            found = lift.rejection(stub.Publish, request)
            assert found == (grpc.StatusCode.UNKNOWN, "incorrect expected offset")
    assert lift.publish("occ", b"c", expectedOffset=1) == [1]
    assert lift.publish("occ", b"d", expectedOffset=-1) == [2]
    none = pb.PublishRequest(stream="occ", value=b"e", expectedOffset=3, ackPolicy=pb.NONE)
    assert lift.rejection(api.Publish, none) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "stream with concurrency control must have AckPolicy set",
    )
    publishing = lift.publishing()
    for _ in lift.stubs:
        publishing = lift.publishing()
        publishing.send(stream="occ", value=b"f", expectedOffset=0)
        error = next(publishing.responses).asyncError
        assert (error.code, error.message) == (
            pb.PublishAsyncError.INCORRECT_OFFSET,
            "incorrect expected offset",
        )
        publishing.close()


def test_expected_offsets_keep_their_order_through_any_broker(lift):
    """Pipelined on one stream of publishes, with some that expect nothing between them."""
    request = pb.CreateStreamRequest(name="in-order", subject="in-order", replicationFactor=-1)
    request.optimisticConcurrencyControl.value = True
    lift.api.CreateStream(request, timeout=TIMEOUT_S)
    offset = 0
    for _ in lift.stubs:
        requests = [
            pb.PublishRequest(
                stream="in-order",
                value=b"%d" % (offset + n),
                key=b"k",
                headers={"h": b"1"},
                expectedOffset=offset + n if n % 2 else -1,
            )
            for n in range(8)
        ]
        acks = lift.publish_all(requests)
        assert [each.ack.offset for each in acks] == list(range(offset, offset + 8))
        offset += 8
    reading = lift.subscribe("in-order", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
    values, *_ = reading.end()
    assert values == [b"%d" % n for n in range(offset)]
    assert {(m.key, m.headers["h"]) for m in reading.messages} == {(b"k", b"1")}
