"""Runs of deliveries as frames: the same as one by one, and as nats-server reads them."""

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.jetstream.frames import DeliveredRun, leaf_frames
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.subjects import AckSubject, format_ack

BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"
MESSAGES = st.lists(
    st.builds(
        StoredMessage,
        st.integers(1, 1 << 60),
        st.sampled_from(["orders.a", "orders.ü"]),
        st.integers(0, 1 << 60),
        st.sampled_from([b"", BLOCK]),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=9,
)


def framed(run, queue):
    """Each delivery alone, as the protocol of leaves has it."""
    for number, (message, inbox) in enumerate(
        zip(run.messages.messages(), cycle(run.inboxes), strict=False)
    ):
        ack = AckSubject(
            run.stream,
            run.consumer,
            run.deliveries,
            message.sequence,
            run.consumer_sequence + number,
        )
        pending = max(0, run.pending - number)
        reply = format_ack(ack, time_ns=message.time_ns, pending=pending).encode()
        words = [inbox, b"+" if queue else b"", reply + b"@" + message.subject.encode(), queue]
        size = len(message.block) + len(message.payload)
        words += [b"%d" % len(message.block) if message.block else b"", b"%d" % size]
        words.insert(0, b"HMSG" if message.block else b"LMSG")
        yield b" ".join(filter(None, words)) + b"\r\n" + message.block + message.payload + b"\r\n"


@given(
    MESSAGES,
    st.sampled_from([[b"_INBOX.a"], [b"_INBOX.a", b"_INBOX.b"]]),
    st.integers(0, 12),
    st.sampled_from([b"", b"workers"]),
)
def test_a_run_is_framed_as_each_of_its_records_alone(messages, inboxes, pending, queue):
    """With and without headers, to one receiver or to several in turns, also to a queue group."""
    run = DeliveredRun("S", "c", inboxes, 2, 7, pending, MessageRun.of(messages))
    assert leaf_frames(run, queue) == b"".join(framed(run, queue))
