"""The permissions that requests need, in terms of access rules.

Rules: a request needs permission for everything that it would affect.
"""

from collections.abc import Iterator
from typing import NamedTuple

from strandline.config import StreamConfig
from strandline.security.acl import CLUSTER, Operation, Resource


class Need(NamedTuple):
    """The need to have one of some operations on a resource."""

    resource: Resource
    operations: tuple[Operation, ...]


def stream(name: str, *operations: Operation) -> Need:
    """Return the need for an operation on a stream."""
    return Need(Resource("stream", name), operations)


def subject(name: str, operation: Operation) -> Need:
    """Return the need for an operation on a subject, or on all that a pattern matches."""
    return Need(Resource("subject", name), (operation,))


def group(name: str, operation: Operation = "group") -> Need:
    """Return the need for an operation on a consumer group, cursor or transactional id."""
    return Need(Resource("group", name), (operation,))


def cluster(operation: Operation) -> Need:
    """Return the need for an operation on the cluster."""
    return Need(CLUSTER, (operation,))


def known_stream(name: str) -> Need:
    """Return the need to know of a stream: producers and consumers have to find its leaders."""
    return stream(name, "read", "publish", "admin")


def known_group(name: str) -> Need:
    """Return the need to know of a consumer group or transactional id."""
    return Need(Resource("group", name), ("group", "admin"))


def needs_of_stream(config: StreamConfig) -> Iterator[Need]:
    """Yield the needs of creating a stream.

    Storing a subject's messages means reading them, and partitioning by suffix also stores the
    subjects below. Joining a queue group takes messages from its other streams.
    """
    yield stream(config.name, "admin")
    yield subject(config.subject, "read")
    if config.partitions > 1 and config.partition_rule == "suffix":
        yield subject(f"{config.subject}.*", "read")
    if config.queue_group:
        yield group(config.queue_group)
