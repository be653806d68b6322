"""The bytes of every message between brokers, and of what a member of the quorum stores.

Most are MessagePack arrays, in which a field is known by its place only: two fields of one type
that change places would still decode. ``messages.txt`` has the bytes of each message.
``GOLDEN_UPDATE=1`` writes the present ones into it: read the difference before a commit, since
brokers of the last release must understand the new ones.
"""

import os
import textwrap
from itertools import takewhile
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from strandline.broker import quorum_store
from strandline.broker.cluster import channels as ch
from strandline.broker.peers import handshake
from strandline.core.metadata.commands import BrokerRun
from strandline.core.metadata.outcome import CommandOutcome, CommandRejection
from strandline.core.raft import messages as raft
from strandline.core.replication import messages as replication
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer, TransactionPartition

LIST = Path(__file__).with_name("messages.txt")
SNAPSHOT = raft.Snapshot(
    index=11, term=12, members=raft.Members(voters=(1, 2), learners=(3,)), data=b"image"
)
REFS = (
    replication.BatchRef(base_offset=31, next_offset=32, leader_epoch=33, size=34),
    replication.BatchRef(base_offset=35, next_offset=36, leader_epoch=37, size=38),
)
CONSENSUS = [
    raft.VoteRequest(term=1, last_index=2, last_term=3, pre=True, forced=False),
    raft.VoteReply(term=1, granted=True, pre=False),
    raft.AppendEntries(
        term=1,
        prev_index=2,
        prev_term=3,
        commit=4,
        entries=(raft.RaftEntry(index=5, term=6, kind=raft.Kind.COMMAND, data=b"command"),),
        round=7,
    ),
    raft.AppendEntriesReply(term=1, accepted=False, index=2, hint=3, round=4),
    raft.InstallSnapshot(term=1, snapshot=SNAPSHOT, round=2),
    raft.Campaign(term=1),
]
REPLICATION = [
    replication.Fetch(epoch=1, session=2, end_offset=3, last_epoch=4, incarnation="run"),
    replication.Fenced(epoch=1),
    replication.Diverged(epoch=1, session=2, last_epoch=3, end_offset=4),
    replication.StartAt(epoch=1, session=2, log_start_offset=3),
    replication.Replicate(
        epoch=1,
        session=2,
        base_offset=3,
        high_watermark=4,
        batches=REFS,
        wants_ack=True,
        min_replica_offset=5,
    ),
    replication.Acked(epoch=1, session=2, durable_offset=3, high_watermark=4),
    replication.FetchRange(epoch=1, first_offset=2, next_offset=3),
    replication.Range(epoch=1, first_offset=2, batches=REFS),
]
REQUESTS = [
    ch.Propose(number=1, entry=b"entry", timeout_ms=2),
    ch.Decided(
        number=1,
        outcome=CommandOutcome(
            code="conflict",
            reason="stale_partition",
            message="retry",
            value=2,
            rejected=(
                CommandRejection(
                    stream="orders", partition=3, reason="not_leader", message="broker 4 leads"
                ),
            ),
        ),
        index=5,
    ),
    ch.Failed(number=1, code="unavailable", message="retry"),
    ch.BrokerHeartbeat(run=BrokerRun(broker=1, incarnation="run"), stored_index=2),
    ch.WriteMarker(
        number=1,
        place=TransactionPartition(stream="orders", partition=2, log_id=3),
        producer=TransactionalProducer(producer_id=4, epoch=5),
        kind=MarkerKind.COMMIT,
    ),
    ch.MarkerWritten(number=1, failure="retry"),
    ch.LogEndsRequest(number=1, log_ids=(2, 3)),
    ch.LogEndsResponse(number=1, ends=((2, (3, 4)),)),
    ch.ReadIndexRequest(number=1),
    ch.ReadIndexResponse(number=1, index=2, failure="retry"),
    ch.StreamOpenRequest(number=1, name="orders", created_ns=2, partitions=3),
    ch.StreamOpened(number=1),
    ch.ConsumerRequest(
        number=1,
        what="keep",
        group="readers",
        positions={"orders": {2: 3}},
        consumer="state",
        epoch=4,
    ),
    ch.ConsumerResponse(
        number=1, consumers={"readers": "state"}, code="unavailable", message="retry"
    ),
]
HANDSHAKE = [
    handshake.Hello(
        cluster_id="cluster", broker_id=8, incarnation="run", to=9, directory_id="directory"
    ),
    handshake.Rejected(reason="wrong_cluster", text="another cluster"),
]
STORED = [
    raft.HardState(term=1, vote=2),
    SNAPSHOT,
    quorum_store._StoredEntry(kind=raft.Kind.MEMBERS, data=b"members"),
]


def consensus_bytes(message):
    """Return a consensus message as on the link, with its sender and receiver."""
    return ch.encode_envelope(raft.Envelope(sender=21, receiver=22, message=message))


def replication_bytes(message):
    """Return a replication message as on the link, after its log id."""
    return ch.encode_replication(41, message)


CASES = {
    f"{channel} {type(message).__name__}": (message, encode)
    for channel, messages, encode in [
        ("handshake", HANDSHAKE, msgspec.msgpack.encode),
        ("consensus", CONSENSUS, consensus_bytes),
        ("replication", REPLICATION, replication_bytes),
        ("request", REQUESTS, ch.encode_request),
        ("stored", STORED, msgspec.msgpack.encode),
    ]
    for message in messages
}


def test_the_bytes_of_messages_stay_as_they_are():
    """A field that is moved, removed or encoded in another way changes the bytes."""
    now = "".join(
        f"{name}:\n{textwrap.fill(encode(message).hex(), 80)}\n"
        for name, (message, encode) in CASES.items()
    )
    before = LIST.read_text("utf-8") if LIST.exists() else ""
    if os.environ.get("GOLDEN_UPDATE"):
        LIST.write_text(now, "utf-8")
    assert now == before, "if that is meant, write the list anew with GOLDEN_UPDATE=1"


@pytest.mark.parametrize(
    ("known", "messages"),
    [
        pytest.param(raft.Message, CONSENSUS, id="consensus"),
        pytest.param(replication.Message, REPLICATION, id="replication"),
        pytest.param(ch.Request, REQUESTS, id="request"),
        pytest.param(handshake.Hello | handshake.Rejected, HANDSHAKE, id="handshake"),
    ],
)
def test_every_message_of_the_link_is_listed(known, messages):
    """A new kind of message needs a line, or nothing would notice a change of it."""
    assert len(messages) == len(get_args(known))
    assert {type(each) for each in messages} == set(get_args(known))


@pytest.mark.parametrize("name", CASES)
def test_no_two_fields_of_a_message_have_the_same_value(name):
    """Two equal values could change places without a change of the bytes."""

    def check(value):
        if isinstance(value, tuple):
            for each in value:
                check(each)
        if isinstance(value, msgspec.Struct):
            values = [getattr(value, field) for field in value.__struct_fields__]
            encoded = [msgspec.msgpack.encode(each) for each in values]
            assert len(set(encoded)) == len(encoded), value
            for each in values:
                check(each)

    check(CASES[name][0])


@pytest.mark.parametrize("name", CASES)
def test_the_listed_bytes_are_understood(name):
    """Brokers that wrote them must be understood: they decode to the message."""
    message, _ = CASES[name]
    _, _, after = LIST.read_text("utf-8").partition(f"{name}:\n")
    digits = takewhile(lambda line: not line.endswith(":"), after.splitlines())
    data, channel = bytes.fromhex("".join(digits)), name.split()[0]
    if channel == "consensus":
        found = msgspec.msgpack.decode(data, type=raft.Envelope).message
    elif channel == "replication":
        found = msgspec.msgpack.decode(data[8:], type=replication.Message)
    elif channel == "request":
        found = msgspec.msgpack.decode(data, type=ch.Request)
    else:
        found = msgspec.msgpack.decode(data, type=type(message))
    assert found == message
