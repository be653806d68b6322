"""The permissions that requests need, in terms of access rules.

Rules: a request needs permission for everything that it would affect.
"""

from collections.abc import Iterator
from typing import NamedTuple

from strandline.config import StreamConfig
from strandline.security.acl import CLUSTER, Operation, Resource


class Need(NamedTuple):
    """A permission that a request needs: one of these operations on a resource."""

    resource: Resource
    operations: tuple[Operation, ...]


def stream(name: str, *operations: Operation) -> Need:
    """Return the need for an operation on a stream."""
    return Need(Resource("stream", name), operations)


def subject(name: str, operation: Operation) -> Need:
    """Return the need for an operation on a subject, or on all subjects that a pattern matches."""
    return Need(Resource("subject", name), (operation,))


def group(name: str, operation: Operation = "group") -> Need:
    """Return the need for an operation on a consumer group, cursor or transactional id."""
    return Need(Resource("group", name), (operation,))


def cluster(operation: Operation) -> Need:
    """Return the need for an operation on the cluster."""
    return Need(CLUSTER, (operation,))


def known_stream(name: str) -> Need:
    """Return the need to know a stream, as for a client that looks for its leaders."""
    return stream(name, "read", "publish", "admin")


def known_group(name: str) -> Need:
    """Return the need to know a consumer group or transactional id."""
    return Need(Resource("group", name), ("group", "admin"))


def needs_of_stream(config: StreamConfig) -> Iterator[Need]:
    """Yield the needs of creating a stream.

    Storing the messages of a subject means reading them; partitioning by suffix also stores the
    subjects below it. Joining a queue group takes messages away from the group's other streams.
    """
    yield stream(config.name, "admin")
    yield subject(config.subject, "read")
    if config.partitions > 1 and config.partition_rule == "suffix":
        yield subject(f"{config.subject}.*", "read")
    if config.queue_group:
        yield group(config.queue_group)
