"""What requests need to be allowed, in the words of the access rules; shared by the front ends.

Rules: a request is judged by everything that it would touch, not by the name it begins with.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from strandline.broker.access import Caller
from strandline.config import StreamConfig
from strandline.security.acl import Operation, Resource

KNOWN_STREAM: Final[tuple[Operation, ...]] = ("read", "publish", "admin")
"""Each of them lets somebody know of a stream: producers and consumers have to find leaders."""


class Need(NamedTuple):
    """One of some operations on a resource."""

    resource: Resource
    operations: tuple[Operation, ...]


def stream(name: str, *operations: Operation) -> Need:
    """On a stream."""
    return Need(Resource("stream", name), operations)


def subject(name: str, operation: Operation) -> Need:
    """On a subject, or on all that a pattern stands for."""
    return Need(Resource("subject", name), (operation,))


def group(name: str, operation: Operation = "group") -> Need:
    """On a consumer group, or on what else is called by such a name."""
    return Need(Resource("group", name), (operation,))


def needs_of_stream(config: StreamConfig) -> Iterator[Need]:
    """To create a stream.

    To record a subject is to read it, and partitions by suffix record what is below it; to share
    the records of a queue group is to take some from its other streams.
    """
    yield stream(config.name, "admin")
    yield subject(config.subject, "read")
    if config.partitions > 1 and config.partition_rule == "suffix":
        yield subject(f"{config.subject}.*", "read")
    if config.queue_group:
        yield group(config.queue_group)


def sees_stream(caller: Caller, name: str) -> bool:
    """Whether a stream is shown to an asker."""
    return caller.may(Resource("stream", name), *KNOWN_STREAM)
