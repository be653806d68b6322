"""The frames of deliveries: a run of a consumer's records as one buffer. Pure.

Rules: the reply subject of a delivery has the consumer, the numbers of the delivery and the record,
and how many records follow, as in ``subjects.format_ack``. What is equal within a run is formatted
once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strandline import speedups
from strandline.servers.nats.jetstream.messages import MessageRun
from strandline.servers.nats.jetstream.subjects import ACK_PREFIX


class DeliveredRun(NamedTuple):
    """Deliveries of one consumer, in order."""

    stream: str
    consumer: str
    inboxes: Sequence[bytes]
    """The inboxes of the receivers, to which the records go in turns."""
    deliveries: int
    """How often each record has been delivered, including this time."""
    consumer_sequence: int
    """The number of the first delivery in this run."""
    pending: int
    """How many records follow the first one; the number decreases by one for each record."""
    messages: MessageRun

    @property
    def ack_prefix(self) -> bytes:
        """The prefix of all reply subjects."""
        return f"{ACK_PREFIX}{self.stream}.{self.consumer}.{self.deliveries}.".encode()

    def singles(self) -> Iterator["DeliveredRun"]:
        """Yield each delivery as a run of its own."""
        for number in range(len(self.messages.sequences)):
            yield self._replace(
                inboxes=[self.inboxes[number % len(self.inboxes)]] if self.inboxes else [],
                consumer_sequence=self.consumer_sequence + number,
                pending=max(0, self.pending - number),
                messages=self.messages.between(number, number + 1),
            )

    def frames(
        self,
        operations: tuple[bytes, bytes],
        lefts: Sequence[bytes],
        rights: Sequence[bytes],
    ) -> bytes:
        """Return the run's frames; ``speedups.pure.delivery_frames`` describes the arguments."""
        sequences, _, times, blocks, payloads = self.messages
        return speedups.delivery_frames(
            operations,
            lefts,
            rights,
            columns=(sequences, times, blocks, payloads),
            first=self.consumer_sequence,
            pending=self.pending,
        )


class _Formatted(dict[str, bytes]):
    """A cache of a template filled in with subjects; most runs have few different subjects."""

    def __init__(self, template: bytes) -> None:
        super().__init__()
        self._template = template

    def __missing__(self, subject: str) -> bytes:
        found = self[subject] = self._template % subject.encode()
        return found


def leaf_frames(run: DeliveredRun, queue: bytes = b"") -> bytes:
    """Return the frames of a run as a leaf sends them.

    Args:
        run: the deliveries.
        queue: the queue groups; one member of each receives a delivery. Empty for none.
    """
    # A leaf must name the groups: otherwise no member of a group receives the message.
    middle, tail = (b"+ ", b" " + queue) if queue else (b"", b"")
    lefts = [b"%b %b%b" % (inbox, middle, run.ack_prefix) for inbox in run.inboxes]
    after = _Formatted(b"@%b" + _literal(tail))
    rights = list(map(after.__getitem__, run.messages.subjects))
    return run.frames((b"LMSG ", b"HMSG "), lefts, rights)


def client_frames(run: DeliveredRun, sids: Sequence[bytes]) -> bytes:
    """Return the frames of a run as a server sends them to a client.

    Args:
        run: the deliveries.
        sids: the sid for each delivery, or one for all.
    """
    prefix = run.ack_prefix
    before = {sid: _Formatted(b"%b " + _literal(b"%b %b" % (sid, prefix))) for sid in set(sids)}
    subjects = run.messages.subjects
    if len(before) == 1:
        lefts = list(map(before[sids[0]].__getitem__, subjects))
    else:
        lefts = [before[sid][subject] for sid, subject in zip(sids, subjects, strict=True)]
    return run.frames((b"MSG ", b"HMSG "), lefts, [b""])


def _literal(text: bytes) -> bytes:
    """Return a text with the escapes that a template needs."""
    return text.replace(b"%", b"%%")
