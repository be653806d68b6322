"""The frames of deliveries: a run of records of one consumer as one buffer. Pure.

Rules: the reply subject of a delivery names the consumer, the delivery and the record, and how many
records follow, as in ``subjects.format_ack``. All that is the same in a run is formatted once.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

from strandline.servers.nats.jetstream.messages import MessageRun
from strandline.servers.nats.jetstream.subjects import ACK_PREFIX


class DeliveredRun(NamedTuple):
    """Deliveries of one consumer, in order."""

    stream: str
    consumer: str
    inboxes: Sequence[bytes]
    """Of the receivers, who take turns."""
    deliveries: int
    """How often each record was delivered, this time included."""
    consumer_sequence: int
    """The number of the first delivery."""
    pending: int
    """How many records follow the first one; each of the others is followed by one less."""
    messages: MessageRun

    @property
    def ack_prefix(self) -> bytes:
        """The beginning of all reply subjects."""
        return f"{ACK_PREFIX}{self.stream}.{self.consumer}.{self.deliveries}.".encode()


def leaf_frames(run: DeliveredRun, queue: bytes = b"") -> bytes:
    """Return a run as a leaf sends it.

    Args:
        run: the deliveries.
        queue: the queue group of which one member receives each; empty: no group does.
    """
    sequences, subjects, times, blocks, payloads = run.messages
    first, count = run.consumer_sequence, len(sequences)
    # A leaf has to name the groups: without that, nobody in them receives anything.
    reply, tail = (b"+ " + run.ack_prefix, b" " + queue) if queue else (run.ack_prefix, b"")
    columns = (
        cycle([b"%b %b" % (inbox, reply) for inbox in run.inboxes]),
        sequences,
        range(first, first + count),
        times,
        [max(0, run.pending - n) for n in range(count)],
        map(str.encode, subjects),
    )
    if not any(blocks):
        return b"".join(
            [
                b"LMSG %b%d.%d.%d.%d@%b%b %d\r\n%b\r\n"
                % (to, sequence, number, time, left, subject, tail, len(payload), payload)
                for to, sequence, number, time, left, subject, payload in zip(
                    *columns, payloads, strict=False
                )
            ]
        )
    return b"".join(
        [
            b"%bMSG %b%d.%d.%d.%d@%b%b%b %d\r\n%b%b\r\n"
            % (
                b"H" if block else b"L",
                to,
                sequence,
                number,
                time,
                left,
                subject,
                tail,
                b" %d" % len(block) if block else b"",
                len(block) + len(payload),
                block,
                payload,
            )
            for to, sequence, number, time, left, subject, block, payload in zip(
                *columns, blocks, payloads, strict=False
            )
        ]
    )
