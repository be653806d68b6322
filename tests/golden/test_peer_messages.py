"""The bytes of each message between brokers, which an older or newer broker has to understand.

``peer_messages.txt`` has a line for each: its name, and the bytes of an example in hexadecimal. The
messages are arrays in msgpack, so that a swap of two fields changes the bytes and nothing else.
``GOLDEN_UPDATE=1`` writes the present bytes: read the difference before a commit.
"""

import os
from pathlib import Path
from typing import get_args

import pytest

from strandline.broker.cluster import channels
from strandline.broker.peers.frame import Frame
from strandline.core.metadata.commands import BrokerRun
from strandline.core.metadata.outcome import CommandOutcome
from strandline.core.raft import messages as raft
from strandline.core.replication import messages as replication
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer, TransactionPartition

LIST = Path(__file__).with_name("peer_messages.txt")
ENTRY = raft.RaftEntry(index=11, term=12, kind=raft.Kind.COMMAND, data=b"d")
SNAPSHOT = raft.Snapshot(
    index=21, term=22, members=raft.Members(voters=(1, 2), learners=(3,)), data=b"s"
)
BATCH = replication.BatchRef(base_offset=31, next_offset=33, leader_epoch=32, size=34)

CONSENSUS = (
    raft.VoteRequest(term=1, last_index=2, last_term=3, pre=True, forced=False),
    raft.VoteReply(term=1, granted=True, pre=False),
    raft.AppendEntries(term=1, prev_index=2, prev_term=3, commit=4, entries=(ENTRY,), round=5),
    raft.AppendEntriesReply(term=1, accepted=True, index=2, hint=3, round=4),
    raft.InstallSnapshot(term=1, snapshot=SNAPSHOT, round=2),
    raft.Campaign(term=1),
)
ENVELOPES = tuple(raft.Envelope(sender=1, receiver=2, message=each) for each in CONSENSUS)
REPLICATION = (
    replication.Fetch(epoch=1, session=2, end_offset=3, last_epoch=4, incarnation="i"),
    replication.Fenced(epoch=1),
    replication.Diverged(epoch=1, session=2, last_epoch=3, end_offset=4),
    replication.StartAt(epoch=1, session=2, log_start_offset=3),
    replication.Replicate(
        epoch=1,
        session=2,
        base_offset=31,
        high_watermark=4,
        batches=(BATCH,),
        wants_ack=True,
        min_replica_offset=5,
    ),
    replication.Acked(epoch=1, session=2, durable_offset=3, high_watermark=4),
    replication.FetchRange(epoch=1, first_offset=2, next_offset=3),
    replication.Range(epoch=1, first_offset=31, batches=(BATCH,)),
)
REQUESTS = (
    channels.Propose(number=1, entry=b"e", timeout_ms=2),
    channels.Decided(
        number=1,
        outcome=CommandOutcome(code="c", message="m", value=2),
        index=3,
    ),
    channels.Failed(number=1, code="c", message="m"),
    channels.BrokerHeartbeat(run=BrokerRun(broker=1, incarnation="i"), stored_index=2),
    channels.WriteMarker(
        number=1,
        place=TransactionPartition(stream="s", partition=2, log_id=3),
        producer=TransactionalProducer(producer_id=4, epoch=5),
        kind=MarkerKind.COMMIT,
    ),
    channels.MarkerWritten(number=1, failure="f"),
    channels.LogEndsRequest(number=1, log_ids=(2, 3)),
    channels.LogEndsResponse(number=1, ends=((2, (3, 4)),)),
    channels.ReadIndexRequest(number=1),
    channels.ReadIndexResponse(number=1, index=2, failure="f"),
    channels.StreamOpenRequest(number=1, name="n", created_ns=2, partitions=3),
    channels.StreamOpened(number=1),
    channels.ConsumerRequest(
        number=1,
        what="keep",
        group="g",
        positions={"s": {2: 3}},
        consumer="c",
        epoch=4,
    ),
    channels.ConsumerResponse(number=1, consumers={"g": "c"}, code="e", message="m"),
)


def test_every_message_has_an_example():
    """A new message needs one here."""
    kinds = (raft.Message, replication.Message, channels.Request)
    wanted = {each for kind in kinds for each in get_args(kind)}
    assert {type(each) for each in (*CONSENSUS, *REPLICATION, *REQUESTS)} == wanted


def test_bytes_change_on_purpose_only():
    """Each example is encoded as the list says."""
    encoded = [
        *(("consensus", each.message, channels.encode_envelope(each)) for each in ENVELOPES),
        *(("replication", each, channels.encode_replication(7, each)) for each in REPLICATION),
        *(("requests", each, channels.encode_request(each)) for each in REQUESTS),
    ]
    lines = [f"{channel} {type(each).__name__} {data.hex()}" for channel, each, data in encoded]
    if os.environ.get("GOLDEN_UPDATE"):
        LIST.write_text("\n".join(lines) + "\n", "utf-8")
    assert lines == LIST.read_text("utf-8").splitlines()


@pytest.mark.parametrize("message", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_request_is_decoded_to_what_was_sent(message):
    """From its bytes alone."""
    header = channels.encode_request(message)
    assert channels.decode_request(Frame(channels.REQUESTS, header)) == message


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda each: type(each.message).__name__)
def test_a_consensus_message_is_decoded_to_what_was_sent(envelope):
    """From its bytes alone."""
    header = channels.encode_envelope(envelope)
    assert channels.decode_envelope(Frame(channels.CONSENSUS, header), 1, 2) == envelope
