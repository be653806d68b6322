"""Subjects of the JetStream API: the operation, and its stream and consumer. Pure.

Rules: the operation is recognised first, so a stream may have the name of an operation. A subject
    with
an unknown operation, or without a required name, gives a call with an empty operation.
"""

from typing import Final, NamedTuple

PREFIX: Final = "$JS.API."
ACK_PREFIX: Final = "$JS.ACK."
FLOW_PREFIX: Final = "$JS.FC."
GROUP_PREFIX: Final = "js/"
"""The prefix of the names of groups that store consumers: ``js/stream/consumer``."""
ACK_TOKENS: Final = 7
FLOW_TOKENS: Final = 3
DIGITS_MAX: Final = 20
TYPE_PREFIX: Final = "io.nats.jetstream.api.v1."


class Operation(NamedTuple):
    """An operation, and how many names follow it in its subject."""

    name: str
    names_min: int = 0
    names_max: int = 0
    takes_subject: bool = False
    """Whether a subject may follow the names."""
    answer: str = ""
    """The name in the answer's type, if it is not derived from the operation."""


class ApiCall(NamedTuple):
    """A parsed subject of the API."""

    operation: str
    """The operation, such as ``STREAM.CREATE``; empty if it is unknown."""
    stream: str = ""
    consumer: str = ""
    subject: str = ""

    @property
    def answer_type(self) -> str:
        """The ``type`` of the answer."""
        known = OPERATIONS.get(self.operation)
        name = "error" if known is None else known.answer or known.name
        return f"{TYPE_PREFIX}{name.lower().replace('.', '_')}_response"


OPERATIONS: Final = {
    each.name: each
    for each in (
        Operation("INFO", answer="account_info"),
        Operation("STREAM.NAMES"),
        Operation("STREAM.LIST"),
        Operation("STREAM.CREATE", 1, 1),
        Operation("STREAM.UPDATE", 1, 1),
        Operation("STREAM.INFO", 1, 1),
        Operation("STREAM.DELETE", 1, 1),
        Operation("STREAM.PURGE", 1, 1),
        Operation("STREAM.MSG.GET", 1, 1),
        Operation("STREAM.MSG.DELETE", 1, 1),
        Operation("DIRECT.GET", 1, 1, takes_subject=True),
        Operation("CONSUMER.CREATE", 1, 2, takes_subject=True),
        Operation("CONSUMER.DURABLE.CREATE", 2, 2, answer="consumer_create"),
        Operation("CONSUMER.INFO", 2, 2),
        Operation("CONSUMER.DELETE", 2, 2),
        Operation("CONSUMER.PAUSE", 2, 2),
        Operation("CONSUMER.NAMES", 1, 1),
        Operation("CONSUMER.LIST", 1, 1),
        Operation("CONSUMER.MSG.NEXT", 2, 2),
        Operation("STRANDLINE.READ", 1, 1),  # for other brokers
    )
}
"""Name → operation."""


class AckSubject(NamedTuple):
    """The parsed reply subject of a delivered record."""

    stream: str
    consumer: str
    deliveries: int
    sequence: int
    consumer_sequence: int


def format_ack(ack: AckSubject, *, time_ns: int, pending: int) -> str:
    """Return the reply subject of a delivered record."""
    numbers = (ack.deliveries, ack.sequence, ack.consumer_sequence, time_ns, pending)
    return ".".join((ACK_PREFIX + ack.stream, ack.consumer, *map(str, numbers)))


def parse_ack(subject: str) -> AckSubject | None:
    """Parse the subject of an acknowledgement; return None if it is not one."""
    tokens = subject.removeprefix(ACK_PREFIX).split(".")
    if len(tokens) != ACK_TOKENS:
        return None
    stream, consumer, *numbers = tokens
    if not all(each.isascii() and each.isdigit() and len(each) <= DIGITS_MAX for each in numbers):
        return None
    return AckSubject(stream, consumer, *map(int, numbers[:3]))


def parse_ack_names(beginning: str) -> tuple[str, str] | None:
    """Parse stream and consumer from the prefix of acknowledgements' subjects; None if invalid."""
    names = beginning.removeprefix(ACK_PREFIX).split(".")
    is_one = beginning.startswith(ACK_PREFIX) and len(names) == 2 and all(names)
    return (names[0], names[1]) if is_one else None


def format_flow(stream: str, consumer: str, request: str) -> str:
    """Return the reply subject of a flow control request."""
    return f"{FLOW_PREFIX}{stream}.{consumer}.{request}"


def parse_flow(subject: str) -> tuple[str, str] | None:
    """Parse stream and consumer from the subject of an answer to flow control; None if invalid."""
    tokens = subject.removeprefix(FLOW_PREFIX).split(".")
    return (tokens[0], tokens[1]) if len(tokens) == FLOW_TOKENS else None


def parse_subject(subject: str) -> ApiCall:
    """Parse a subject below ``PREFIX``."""
    tokens = subject.removeprefix(PREFIX).split(".")
    for length in (3, 2, 1):  # the longest first: ``STREAM.MSG.GET`` before ``STREAM.MSG``
        operation = OPERATIONS.get(".".join(tokens[:length]))
        names = tokens[length:]
        if operation is None or len(names) < operation.names_min:
            continue
        rest = names[operation.names_max :]
        if rest and not operation.takes_subject:
            continue
        stream, consumer = [*names[: operation.names_max], "", ""][:2]
        return ApiCall(operation.name, stream, consumer, ".".join(rest))
    return ApiCall("")
