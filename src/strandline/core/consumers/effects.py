"""Effects of a consumer: messages to send, in order."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeliverRun:
    """Send records to pulls in turn, one record each.

    Attributes:
        tokens: the tokens of the pulls; the first record goes to the first one.
        sequences: the sequences of the records in the stream.
        consumer_sequence: the number of the first delivery; the others follow it.
        deliveries: how often each of the records was delivered, this time included.
    """

    tokens: Sequence[object]
    sequences: Sequence[int]
    consumer_sequence: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class EndPull:
    """Send a pull its final status.

    Attributes:
        token: of the pull.
        status: the code and text that clients know.
        messages_left: how many records it did not get; None: do not report it.
        bytes_left: how many bytes of its limit are unused.
    """

    token: object
    status: str
    messages_left: int | None = None
    bytes_left: int = 0


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send a heartbeat to a waiting pull.

    Attributes:
        token: of the pull.
        consumer_sequence: the number of the last delivery.
        stream_sequence: the sequence of the record that was delivered last.
        request: the number of the flow control request that waits for its answer; 0: none.
    """

    token: object
    consumer_sequence: int
    stream_sequence: int
    request: int = 0


@dataclass(frozen=True, slots=True)
class RequestFlowControl:
    """Ask the receiver to answer once it has everything that was sent before.

    Attributes:
        token: of the pull.
        request: the number of the request.
    """

    token: object
    request: int


Effect = DeliverRun | EndPull | SendHeartbeat | RequestFlowControl
