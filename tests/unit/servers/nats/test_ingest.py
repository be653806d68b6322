"""Conversion of messages to records with keys, headers and checks."""

import asyncio
import gc
import json
from types import SimpleNamespace

import pytest

from strandline.errors import (
    InvalidRecordError,
    InvalidRequestError,
    NotLeaderError,
    UnavailableError,
)
from strandline.record.envelope import AckPolicy, EnvelopeMessage, decode_ack, encode_message
from strandline.servers.nats.backpressure import Backpressure
from strandline.servers.nats.headers import encode_headers
from strandline.servers.nats.ingest import (
    DISABLED_HEADERS,
    UNSUPPORTED_HEADERS,
    MessageIngest,
    ParsedMessage,
    interpret,
)
from strandline.servers.nats.replies import EnvelopeResponder, error_body, error_reply


def block(*pairs):
    """A header block."""
    return encode_headers(list(pairs))


def test_plain_payload():
    """Bytes without headers are just a value."""
    found = interpret(None, b"hello")
    assert (found.value, found.key, found.headers, found.message_id) == (b"hello", None, None, None)


def test_headers_that_mean_something():
    """Message id and expectations are read and kept; the key is taken out."""
    found = interpret(
        block(
            ("x", b"1"),
            ("Nats-Msg-Id", b"id"),
            ("Strandline-Key", b"k\xff"),
            ("Nats-Expected-Last-Sequence", b"5"),
            ("Nats-Expected-Stream", b"S"),
        ),
        b"v",
    )
    assert (found.message_id, found.key) == ("id", b"k\xff")
    assert (found.expected_last, found.expected_stream) == (5, "S")
    assert [name for name, _ in found.headers] == [
        "x", "Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Stream",
    ]  # fmt: skip


def test_first_message_id_counts_and_an_empty_one_does_not():
    """Repeats keep the first id; an empty id counts as none."""
    assert interpret(block(("Nats-Msg-Id", b"a"), ("Nats-Msg-Id", b"b")), b"").message_id == "a"
    assert interpret(block(("Nats-Msg-Id", b"")), b"").message_id is None


def test_message_ids_that_are_not_utf8_differ():
    """Two ids stay two when neither is text."""
    ids = {interpret(block(("Nats-Msg-Id", i)), b"").message_id for i in (b"\xe8", b"\xe9")}
    assert len(ids) == 2


def test_tombstone():
    """The tombstone header makes the value null and disappears."""
    found = interpret(block(("Strandline-Key", b"k"), ("Strandline-Tombstone", b"1")), b"")
    assert (found.value, found.key, found.headers) == (None, b"k", None)
    found = interpret(block(("Strandline-Tombstone", b"1")), b"not empty")
    assert (found.value, found.headers) == (b"not empty", [("Strandline-Tombstone", b"1")])
    assert "payload" in found.rejection.message


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"9" * 20])
def test_expected_last_sequence_must_be_a_number(value):
    """An invalid sequence is rejected."""
    found = interpret(block(("Nats-Expected-Last-Sequence", value)), b"")
    assert "not a sequence" in found.rejection.message


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_HEADERS))
def test_unsupported_headers_are_rejected(name):
    """Unsupported JetStream headers are rejected, not ignored."""
    assert name in interpret(block((name, b"1")), b"").rejection.message


@pytest.mark.parametrize("name", sorted(DISABLED_HEADERS))
def test_headers_of_features_that_are_off_are_rejected_as_by_jetstream(name):
    """With its text and number, by which stock clients know what is missing."""
    rejection = interpret(block((name, b"1")), b"").rejection
    body = error_body(rejection)
    assert body["description"] == DISABLED_HEADERS[name]
    assert (body["code"], body["err_code"]) in {(400, 10166), (400, 10168), (400, 10188)}


def test_malformed_headers_are_rejected():
    """A broken block is a typed error."""
    with pytest.raises(InvalidRecordError):
        interpret(b"NATS/1.0\r\nbroken\r\n\r\n", b"")


def test_envelope_is_unwrapped():
    """An envelope's key, value and headers are the record's; NATS headers come first."""
    message = EnvelopeMessage(key=b"k", value=b"v", headers=[("h", b"1"), ("Nats-Msg-Id", b"id")])
    found = interpret(block(("n", b"0")), encode_message(message))
    assert (found.value, found.key, found.message_id) == (b"v", b"k", "id")
    assert found.headers == [("n", b"0"), ("h", b"1"), ("Nats-Msg-Id", b"id")]
    assert found.wrapped == message


def test_invalid_envelope_is_a_plain_value():
    """A payload that only resembles an envelope is stored unchanged."""
    payload = encode_message(EnvelopeMessage(value=b"v"))[:-1]
    found = interpret(None, payload)
    assert (found.value, found.wrapped) == (payload, None)


def message_ingest(broker):
    """The way of messages to the fake broker."""
    backpressure = Backpressure(1 << 20)
    return MessageIngest(broker.clock, broker.routes, broker.admission, backpressure=backpressure)


async def test_answers_that_are_ready_together_are_written_together(broker):
    """Requests that came by one read are answered one by one; each write costs a system call."""
    ingest, writes = message_ingest(broker), []
    output = []
    peer = SimpleNamespace(flush=lambda: writes.append(output.copy()) or output.clear())
    for number in range(3):
        output.append(number)
        ingest.unflushed[:] = [peer]
        ingest.send_answers_soon()
    assert not writes
    await asyncio.sleep(0)
    assert writes == [[0, 1, 2]]
    output.append(3)
    ingest.unflushed[:] = [peer]
    ingest.send_answers_soon()
    await asyncio.sleep(0)
    assert writes == [[0, 1, 2], [3]]


@pytest.fixture
def publish(broker, sink):
    """Publish to the fake broker as a connection would."""

    def take(subject, payload=b"v", *, reply=None, headers=()):
        routes = broker.routes
        message_ingest(broker).take(
            routes.find(subject),
            reply,
            block=block(*headers) if headers else None,
            payload=payload,
            sink=sink,
        )

    broker.frozen = True
    return take


def test_every_matching_stream_records_and_acks(broker, sink, publish):
    """Two streams on one subject each get the record, and each acks."""
    (a,) = broker.add("A", "x")
    (b,) = broker.add("B", ">")
    publish(b"x", reply=b"r")
    broker.turn()
    assert [len(p.records) for p in (a, b)] == [1, 1]
    assert [ack[1].stream for ack in sink.acks] == ["A", "B"]


def test_stream_without_pub_ack_stays_silent(broker, sink, publish):
    """A stream that must not answer records in silence, and keeps the reply subject."""
    (a,) = broker.add("A", "x", pub_ack=False)
    publish(b"x", reply=b"r", headers=[("h", b"1")])
    broker.turn()
    assert a.records[0].headers == [("h", b"1"), ("reply", b"r")]
    assert sink.acks == []


def test_expected_stream_directs_checks_and_ack(broker, sink, publish):
    """Only the named stream checks and answers; the others record in silence."""
    (a,) = broker.add("A", "x")
    (b,) = broker.add("B", "x")
    expectations = [("Nats-Expected-Stream", b"B"), ("Nats-Expected-Last-Sequence", b"0")]
    publish(b"x", reply=b"r", headers=expectations)
    broker.turn()
    assert [ack[1].stream for ack in sink.acks] == ["B"]
    assert (a.records[0].expected_last, b.records[0].expected_last) == (None, 0)


def test_expected_stream_that_does_not_record_the_subject(broker, sink, publish):
    """Nothing is stored and the publisher gets an error."""
    (a,) = broker.add("A", "x")
    broker.add("C", "y")
    publish(b"x", reply=b"r", headers=[("Nats-Expected-Stream", b"C")])
    assert a.records == []
    ((to, error),) = sink.rejections
    assert to == b"r"
    assert json.loads(error_reply(error))["error"]["err_code"] == 10060


def test_the_expected_stream_of_a_queue_group_gets_the_record(broker, sink, publish):
    """Out of turn; also if another broker leads it, which the error then names."""
    (a,) = broker.add("A", "x", queue_group="g")
    (b,) = broker.add("B", "x", queue_group="g")
    (c,) = broker.add("C", "x")
    for _ in range(3):
        publish(b"x", reply=b"r", headers=[("Nats-Expected-Stream", b"A")])
    a.is_led = False
    publish(b"x", reply=b"r", headers=[("Nats-Expected-Stream", b"A")])
    broker.turn()
    assert [len(p.records) for p in (a, b, c)] == [4, 0, 4]
    assert [ack[1].stream for ack in sink.acks] == ["A"] * 4


def test_streams_outside_the_expected_ones_queue_group_take_their_turns(broker, publish):
    """Other groups, and single streams, store the record as usual."""
    partitions = {
        name: broker.add(name, "x", queue_group=group)[0]
        for name, group in [("A", "g"), ("B", "g"), ("C", "h"), ("D", "h"), ("E", "")]
    }
    for _ in range(4):
        publish(b"x", headers=[("Nats-Expected-Stream", b"E")])
    counts = {name: len(partition.records) for name, partition in partitions.items()}
    assert counts["A"] + counts["B"] == counts["C"] + counts["D"] == counts["E"] == 4


CONTROLS = [
    ("Nats-Rollup", b"sub"),
    ("Nats-TTL", b"1h"),
    ("Nats-Expected-Stream", b"ORDERS"),
    ("Nats-Expected-Last-Sequence", b"7"),
    ("Nats-Expected-Last-Sequence", b"no number"),
    ("Nats-Msg-Id", b"seen before"),
    ("Strandline-Tombstone", b"1"),
]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize(
    ("pub_ack", "reply", "origin"),
    [(False, b"r", []), (True, None, []), (True, b"r", [("Nats-Stream", b"ORDERS")])],
    ids=["pub_ack off", "no reply", "republished"],
)
def test_control_headers_judge_nothing_where_nobody_is_answered(
    broker, sink, publish, control, pub_ack, reply, origin
):
    """Headers meant for another stream never reject a message here."""
    (a,) = broker.add("A", "x", pub_ack=pub_ack)
    publish(b"x", b"v", reply=reply, headers=[control, *origin])
    broker.turn()
    (record,) = a.records
    assert (record.value, record.message_id, record.expected_last) == (b"v", None, None)
    assert control in record.headers
    assert (sink.acks, sink.rejections, sink.delivered) == ([], [], [])
    assert broker.admission.rejects == {}


def test_a_stream_that_answers_rejects_beside_one_that_stores(broker, sink, publish):
    """One stream's rejection does not affect a stream without acks."""
    (a,) = broker.add("A", "x")
    (log,) = broker.add("LOG", ">", pub_ack=False)
    publish(b"x", reply=b"r", headers=[("Nats-Rollup", b"sub")])
    publish(b"x", reply=b"r", headers=[("Nats-Expected-Stream", b"ORDERS")])
    broker.turn()
    assert (len(a.records), len(log.records)) == (0, 2)
    assert [to for to, _ in sink.rejections] == [b"r", b"r"]
    assert broker.admission.rejects == {"rollup": 1, "stream_mismatch": 1}


def test_a_stream_that_limits_subjects_takes_their_headers(broker, sink, publish):
    """Rollups are stored, expected sequences of a subject reach the partition; others are not."""
    (a,) = broker.add("A", "x", max_records_per_subject=1)
    publish(b"x", b"1", reply=b"r", headers=[("Nats-Rollup", b"sub")])
    publish(b"x", b"2", reply=b"r", headers=[("Nats-Expected-Last-Subject-Sequence", b"7")])
    for name, value in (("Nats-Rollup", b"some"), ("Nats-Expected-Last-Subject-Sequence", b"-1")):
        publish(b"x", reply=b"r", headers=[(name, value)])
    broker.turn()
    assert [record.value for record in a.records] == [b"1", b"2"]
    assert [record.expected_subject_last for record in a.records] == [None, 7]
    assert broker.admission.rejects == {"rollup": 1, "invalid_request": 1}


def test_an_envelope_with_an_inbox_is_judged(broker, sink, publish):
    """Its publisher is answered on the inbox, even by a stream without PubAcks."""
    (a,) = broker.add("A", "x", pub_ack=False)
    message = EnvelopeMessage(value=b"v", ack_inbox="i", headers=[("Nats-Rollup", b"sub")])
    publish(b"x", encode_message(message))
    assert a.records == []
    assert [to for to, _ in sink.delivered] == [b"i"]
    quiet = EnvelopeMessage(value=b"v", headers=[("Nats-Rollup", b"sub")])
    publish(b"x", encode_message(quiet))
    assert len(a.records) == 1


def test_malformed_headers_are_counted_and_logged_seldom(broker, sink, publish, caplog):
    """No stream stores the message; the publisher gets an error, or else it is logged once."""
    (a,) = broker.add("A", "x")
    routes = broker.routes
    ingest = message_ingest(broker)
    for reply in (None, None, b"r"):
        ingest.take(routes.find(b"x"), reply, block=b"broken", payload=b"v", sink=sink)
    assert a.records == []
    assert broker.admission.rejects == {"invalid_record": 3}
    assert [to for to, _ in sink.rejections] == [b"r"]
    (line,) = [record.message for record in caplog.records if "stream A" in record.message]
    assert "was not stored" in line
    assert "headers do not end with an empty line" in line


def test_rejected_headers_are_let_go_at_once(broker, sink):
    """A flood of them does not fill the memory until garbage is collected."""
    broker.add("A", "x")
    routes = broker.routes
    ingest = message_ingest(broker)
    route = routes.find(b"x")
    gc.collect()
    gc.disable()
    try:
        ingest.take(route, None, block=b"broken", payload=b"v", sink=sink)
        assert not [each for each in gc.get_objects() if isinstance(each, ParsedMessage)]
    finally:
        gc.enable()


def test_one_broker_of_a_cluster_rejects(broker, sink, publish):
    """Every broker receives the message; the leader counts and answers it for all."""
    (a,) = broker.add("A", "x")
    a.is_led = False
    publish(b"x", reply=b"r", headers=[("Nats-Rollup", b"sub")])
    assert (sink.rejections, broker.admission.rejects) == ([], {})
    sink.is_alone = True
    publish(b"x", reply=b"r", headers=[("Nats-Rollup", b"sub")])
    assert broker.admission.rejects == {"rollup": 1}


def test_what_another_broker_leads_is_left_to_it(broker, sink, publish):
    """A follower neither counts nor answers the leader's records; a broker alone does."""
    (a,) = broker.add("A", "x")
    a.is_led, a.write_error = False, NotLeaderError("broker 2 leads it")
    publish(b"x", reply=b"r")
    publish(b"x")
    assert (a.records, sink.rejections, broker.admission.rejects) == ([], [], {})
    sink.is_alone = True
    publish(b"x", reply=b"r")
    assert len(a.records) == 1, "it is the partition that refuses it"
    sink.is_alone, a.write_error = False, UnavailableError("storage failed")
    publish(b"x", reply=b"r")
    assert len(a.records) == 2


def test_key_chooses_the_partition(broker, publish):
    """With the key rule, records of one key share a partition."""
    partitions = broker.add("A", "x", partitions=8, partition_by="key")
    for _ in range(3):
        publish(b"x", headers=[("Strandline-Key", b"some key")])
    assert sorted(len(p.records) for p in partitions) == [0] * 7 + [3]


def test_a_message_id_chooses_the_partition(broker, publish):
    """With that rule an id has one partition, whatever subject and key; others go by subject."""
    partitions = broker.add("A", "x.*", partitions=8, partition_by="message_id")
    for number in range(6):
        key = ("Strandline-Key", b"%d" % number)
        publish(b"x.%d" % number, reply=b"r", headers=[("Nats-Msg-Id", b"same"), key])
    assert sorted(len(p.records) for p in partitions) == [0] * 7 + [6]
    for number in range(20):
        publish(b"x.%d" % number)
    assert sum(1 for p in partitions if p.records) > 2


def test_envelope_is_acked_on_its_inbox(broker, sink, publish):
    """A Liftbridge publish gets its ack envelope, and no PubAck unless there is a reply subject."""
    broker.add("A", "x")
    publish(b"x", encode_message(EnvelopeMessage(value=b"v", ack_inbox="i", correlation_id="c")))
    broker.turn()
    ((to, payload),) = sink.delivered
    assert to == b"i"
    assert decode_ack(payload).correlation_id == "c"
    assert sink.acks == []


def test_envelope_with_policy_none_hears_only_of_errors(broker, sink, publish):
    """NONE is silent on success."""
    broker.add("A", "x")
    payload = encode_message(EnvelopeMessage(value=b"v", ack_inbox="i", ack_policy=AckPolicy.NONE))
    publish(b"x", payload)
    broker.turn()
    assert sink.delivered == []
    broker.write_error = InvalidRequestError("no")
    publish(b"x", payload)
    assert len(sink.delivered) == 1


def test_envelope_responder_is_used_once_per_stream(broker, publish):
    """Each stream answers an envelope for itself."""
    broker.add("A", "x")
    broker.add("B", "x")
    publish(b"x", encode_message(EnvelopeMessage(ack_inbox="i")))
    responders = [entry[0] for entry in broker.waiting]
    assert len(responders) == 2
    assert all(isinstance(each, EnvelopeResponder) for each in responders)
