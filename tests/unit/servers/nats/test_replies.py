"""Replies to publishers."""

import json

import pytest

from strandline import errors
from strandline.clock import ManualClock
from strandline.record.envelope import AckError, AckPolicy, EnvelopeMessage, decode_ack
from strandline.servers.nats.replies import EnvelopeResponder, PubAckLines, error_reply, pub_ack
from strandline.types import Offset, PartitionName


@pytest.mark.parametrize(
    ("partition", "duplicate", "expected"),
    [
        (0, False, {"stream": "S", "seq": 6}),
        (0, True, {"stream": "S", "seq": 6, "duplicate": True}),
        (2, False, {"stream": "S", "seq": 6, "partition": 2}),
        (2, True, {"stream": "S", "seq": 6, "partition": 2, "duplicate": True}),
    ],
)
def test_pub_ack(partition, duplicate, expected):
    """A PubAck has JetStream's fields, its sequence is offset + 1."""
    ack = pub_ack(PartitionName("S", partition), Offset(5), duplicate=duplicate)
    assert json.loads(ack) == expected


@pytest.mark.parametrize("stream", ["S", "100%d", 'quo"te', "ü"])
@pytest.mark.parametrize("partition", [0, 12])
def test_ack_lines_agree_with_pub_ack(stream, partition):
    """The fast format gives exactly the PubAck, with its length, around every change of digits."""
    lines = PubAckLines(b"MSG ")
    name = PartitionName(stream, partition)
    for sequence in (1, 9, 10, 99, 100, 5, 1000, 10**12):
        line = lines.encode([(name, Offset(sequence - 1), [b"_INBOX.r"])], [b"1"])
        payload = pub_ack(name, Offset(sequence - 1))
        assert line == b"MSG _INBOX.r 1 %d\r\n%b\r\n" % (len(payload), payload)


def test_cleared_ack_lines_are_made_again():
    """Clearing forgets partitions and nothing else."""
    lines = PubAckLines(b"PUB ")
    name = PartitionName("S", 0)
    before = lines.encode([(name, Offset(4), [b"_INBOX.r"])])
    lines.clear()
    assert lines.encode([(name, Offset(4), [b"_INBOX.r"])]) == before


@pytest.mark.parametrize(
    ("error", "code", "number"),
    [
        (errors.WrongLastSequenceError("wrong last sequence: 3"), 400, 10071),
        (errors.RecordTooLargeError("limits.record_bytes is 1"), 400, 10054),
        (errors.InvalidRecordError("malformed"), 400, 10003),
        (errors.InvalidSubjectError("bad"), 400, 10003),
        (errors.DiskFullError("no space"), 503, 10023),
        (errors.LogPoisonedError("sync failed"), 503, 10008),
        (errors.ShuttingDownError("stopping"), 503, 10008),
        (errors.StrandlineError("odd"), 500, 10077),
    ],
)
def test_error_reply(error, code, number):
    """Errors carry nats-server's numbers, our sentence and our stable code."""
    reply = json.loads(error_reply(error))
    assert reply["error"] == {"code": code, "err_code": number, "description": error.message}
    assert reply["code"] == error.code


def test_every_error_has_a_reply():
    """No error class is forgotten."""
    for cls in errors.all_error_classes():
        assert json.loads(error_reply(cls("why")))["error"]["code"] in (400, 500, 503)


def test_stream_mismatch_reply():
    """The reply to a wrong Nats-Expected-Stream has JetStream's number."""
    assert json.loads(error_reply(errors.StreamMismatchError("X")))["error"]["err_code"] == 10060


def ack_sink(sink, **fields):
    """The responder of a Liftbridge message."""
    fields = {"ack_inbox": "inbox", "correlation_id": "c", **fields}
    return EnvelopeResponder(
        EnvelopeMessage(**fields),
        sink,
        subject="a.b",
        stream_subject="a.*",
        clock=ManualClock(1000),
    )


def test_envelope_ack_fields(sink):
    """A Liftbridge ack has the stream, offset, correlation id and times."""
    ack_sink(sink).acked(None, PartitionName("S", 1), Offset(5), duplicate=False)
    ((to, payload),) = sink.delivered
    ack = decode_ack(payload)
    assert to == b"inbox"
    assert (ack.stream, ack.partition_subject, ack.message_subject) == ("S", "a.*", "a.b")
    assert (ack.offset, ack.ack_inbox, ack.correlation_id) == (5, "inbox", "c")
    assert (ack.reception_timestamp_ns, ack.commit_timestamp_ns) == (1000, 1000)
    assert ack.error == AckError.OK
    assert sink.acks == []


@pytest.mark.parametrize(
    ("policy", "count"),
    [(AckPolicy.LEADER, 1), (AckPolicy.ALL, 1), (AckPolicy.NONE, 0), (77, 0)],
)
def test_envelope_ack_policy(sink, policy, count):
    """NONE, and unknown policies, are not acked; errors are always sent."""
    each = ack_sink(sink, ack_policy=policy)
    each.acked(None, PartitionName("S", 0), Offset(0), duplicate=False)
    assert len(sink.delivered) == count
    each.rejected(None, errors.RecordTooLargeError("big"))
    assert decode_ack(sink.delivered[-1][1]).error == AckError.TOO_LARGE
    assert len(sink.delivered) == count + 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.WrongLastSequenceError("no"), AckError.INCORRECT_OFFSET),
        (errors.EncryptionKeyError("no"), AckError.ENCRYPTION),
        (errors.DiskFullError("no"), AckError.UNKNOWN),
    ],
)
def test_envelope_errors(sink, error, expected):
    """Rejections have Liftbridge's reasons."""
    ack_sink(sink).rejected(None, error)
    assert decode_ack(sink.delivered[0][1]).error == expected


def test_envelope_without_inbox_gets_no_ack(sink):
    """Nothing is sent to nowhere."""
    each = ack_sink(sink, ack_inbox="")
    each.acked(None, PartitionName("S", 0), Offset(0), duplicate=False)
    each.rejected(None, errors.DiskFullError("no"))
    assert sink.delivered == []


def test_envelope_with_reply_subject_is_answered_there_too(sink):
    """A reply subject also gets its PubAck or error."""
    each = ack_sink(sink)
    each.acked(b"reply", PartitionName("S", 0), Offset(0), duplicate=True)
    each.rejected(b"reply", errors.DiskFullError("no"))
    assert sink.acks == [(b"reply", PartitionName("S", 0), 0, True)]
    assert sink.rejections[0][0] == b"reply"
    assert len(sink.delivered) == 2


def test_lines_of_sequences_in_a_row():
    """Each is that of its sequence, also where the digits become more; none without a reply."""
    lines, name = PubAckLines(b"PUB "), PartitionName("s", 0)
    for first, count in ((8, 1), (8, 2), (8, 3), (98, 5), (5, 200)):
        replies = [b"_INBOX.%d" % number if number % 7 else None for number in range(count)]
        expected = b"".join(
            lines.encode([(name, Offset(offset), [reply])])
            for offset, reply in enumerate(replies, first)
            if reply is not None
        )
        assert lines.encode([(name, Offset(first), replies)]) == expected


def test_lines_of_several_partitions():
    """They are those of each partition, and sids are taken on from one to the next."""
    lines = PubAckLines(b"MSG ")
    one, two = PartitionName("s", 0), PartitionName("s", 1)
    acks = [(one, Offset(4), [b"_I.a", None]), (two, Offset(9), (b"_I.b",))]
    apart = [lines.encode([acks[0]], [b"1", None]), lines.encode([acks[1]], [b"2"])]
    assert lines.encode(acks, [b"1", None, b"2"]) == b"".join(apart)
    assert apart[1].startswith(b"MSG _I.b 2 ")
