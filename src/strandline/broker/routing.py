"""From a published subject to the partitions that record it.

Rules: a stream binds its subject and, with the ``suffix`` rule, ``subject.N`` for its partition N;
with the other rules a hash chooses the partition (a record without a key, or without a message id,
goes by its subject). Streams of one queue group take turns; every other stream gets every record.
In a cluster each broker hears every message and the leader stores it, but for queue groups: a
message of theirs is given to one broker, so only those that lead ask for them. What was found for a
subject is remembered in a bounded dictionary until the streams, or the leaders of queue groups,
change.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from strandline.broker.internal import is_internal
from strandline.broker.write_path.pending import AckSink, ChunkAckSink
from strandline.config import Acks, StreamConfig
from strandline.errors import InvalidSubjectError, StrandlineError
from strandline.record.codec import Headers
from strandline.record.partitioner import partition_of
from strandline.record.subjects import SubjectRouter, validate_subject
from strandline.types import PartitionName

REMEMBERED_SUBJECTS_MAX: Final = 16_384
REMEMBERED_SUBJECT_BYTES_MAX: Final = 256
"""Longer subjects are looked up each time, so that remembered ones stay small."""


class PartitionPort(Protocol):
    """A partition, as far as publishing goes."""

    @property
    def name(self) -> PartitionName:
        """Stream and number."""
        ...

    @property
    def is_led(self) -> bool:
        """Whether this broker leads it."""
        ...

    @property
    def write_error(self) -> StrandlineError | None:
        """Why it takes no records now; None: it does."""
        ...

    def append(
        self,
        value: bytes | None,
        *,
        subject: str,
        key: bytes | None = None,
        headers: Headers | None = None,
        ack_sink: AckSink | None = None,
        token: object = None,
        message_id: str | None = None,
        expected_last: int | None = None,
        acks: Acks | None = None,
    ) -> None:
        """Accept a record; the outcome reaches ``ack_sink``, never the caller."""
        ...

    def append_many(
        self,
        values: Sequence[bytes],
        *,
        subjects: Sequence[str],
        ack_sink: ChunkAckSink,
        tokens: Sequence[object],
    ) -> None:
        """Accept plain records, in order, with one subject for each or one for all."""
        ...


class StreamPort(Protocol):
    """A stream and its partitions."""

    @property
    def config(self) -> StreamConfig:
        """The stream's configuration."""
        ...

    @property
    def partitions(self) -> Sequence[PartitionPort]:
        """In the order of their numbers."""
        ...


class Binding(NamedTuple):
    """A subject pattern that feeds a stream."""

    pattern: str
    stream: StreamPort
    partition: int | None
    """The partition it feeds; None: a hash chooses."""
    is_ours: bool = True
    """False: of a queue group, and led by another broker."""


def stream_bindings(stream: StreamPort) -> list[Binding]:
    """The patterns that feed ``stream``; none feeds one of the broker's own."""
    config = stream.config
    if is_internal(config.name):
        return []
    ours = [not config.queue_group or partition.is_led for partition in stream.partitions]
    if config.partition_rule != "suffix":
        return [Binding(config.subject, stream, None, is_ours=all(ours))]
    return [
        Binding(subject, stream, number, is_ours=ours[number])
        for number, subject in enumerate(subject_patterns(config))
    ]


def subject_patterns(config: StreamConfig) -> list[str]:
    """Return the patterns of a stream's subjects; with ``suffix`` one for each partition."""
    if config.partition_rule != "suffix":
        return [config.subject]
    others = (f"{config.subject}.{number}" for number in range(1, config.partitions))
    return [config.subject, *others]


class Target:
    """A stream that records a subject."""

    __slots__ = (
        "answers",
        "by_key",
        "by_message_id",
        "checks_offsets",
        "is_ours",
        "name",
        "partition",
        "partitions",
        "queue_group",
        "stream_subject",
    )

    def __init__(self, binding: Binding, subject: bytes) -> None:
        config = binding.stream.config
        self.name = config.name
        self.is_ours = binding.is_ours
        self.queue_group = config.queue_group
        """Who of it is given a message is the only one, of all its streams and of all brokers."""
        self.stream_subject = config.subject
        self.answers = config.pub_ack
        """Whether a reply subject gets a PubAck."""
        self.checks_offsets = config.optimistic_concurrency
        """Whether a Liftbridge message is stored only at the offset that it expects."""
        self.partitions = binding.stream.partitions
        number = binding.partition
        if number is None:
            number = partition_of(subject, len(self.partitions))
        self.partition = self.partitions[number]
        """The partition of records without a key."""
        has_several = len(self.partitions) > 1
        self.by_key = config.partition_rule == "key" and has_several
        self.by_message_id = config.partition_rule == "message_id" and has_several

    def partition_for(self, key: bytes | None, message_id: str | None) -> PartitionPort:
        """The partition of a record with this key and message id."""
        if key is not None and self.by_key:
            return self.partitions[partition_of(key, len(self.partitions))]
        if message_id is not None and self.by_message_id:
            id_bytes = message_id.encode(errors="surrogateescape")
            return self.partitions[partition_of(id_bytes, len(self.partitions))]
        return self.partition


class Route:
    """The partitions that record a subject."""

    __slots__ = ("answers", "groups", "is_shared", "partition", "subject", "turns")

    def __init__(
        self, subject: str, groups: tuple[tuple[Target, ...], ...], turns: Iterator[int]
    ) -> None:
        self.subject = subject
        self.groups = groups
        """One of each group gets the record."""
        self.turns = turns
        only = groups[0][0] if len(groups) == 1 and len(groups[0]) == 1 else None
        self.partition = only.partition if only is not None else None
        """Where a record without a key goes, if that is one place; the fast path."""
        self.answers = only is not None and only.answers
        self.is_shared = only is not None and bool(only.queue_group)

    def targets(self, named: Target | None = None) -> list[Target]:
        """The streams that get the next record; of its own group the named one does."""
        taken = [
            group[0] if len(group) == 1 else group[next(self.turns) % len(group)]
            for group in self.groups
        ]
        if named is None or not named.queue_group:
            return taken
        return [named if each.queue_group == named.queue_group else each for each in taken]


class RouteTable:
    """Finds routes; the dictionary ``remembered`` is public for the hot path, which only reads it.

    Args:
        bindings: all that may be routed to at first.
    """

    def __init__(self, bindings: Iterable[Binding] = ()) -> None:
        self.remembered: dict[bytes, Route] = {}
        self._turns = itertools.count()
        self._router: SubjectRouter[Binding] = SubjectRouter()
        self._bindings: dict[str, tuple[Binding, ...]] = {}
        for binding in bindings:
            self._router.add(binding.pattern, binding)

    def replace(self, name: str, stream: StreamPort | None) -> None:
        """Route to a stream as it is now, or to none of its name; forgets what was remembered."""
        for binding in self._bindings.pop(name, ()):
            self._router.remove(binding.pattern, binding)
        added = stream_bindings(stream) if stream is not None else ()
        for binding in added:
            self._router.add(binding.pattern, binding)
        if added:
            self._bindings[name] = tuple(added)
        self.remembered.clear()

    def bindings(self, name: str) -> Sequence[Binding]:
        """The patterns that feed a stream; none if it is not routed to."""
        return self._bindings.get(name, ())

    def answering_beside(self, stream: StreamPort) -> list[str]:
        """Return the names of the other streams that answer some publishes to this one, too.

        Streams of its queue group take turns with it and are not among them. Any thread.
        """
        config = stream.config
        if not config.pub_ack:
            return []
        patterns = subject_patterns(config)
        found = (each for pattern in patterns for each in self._router.overlapping(pattern))
        others = {each.stream.config.name: each.stream.config for each in found}
        return [
            name
            for name, other in sorted(others.items())
            if name != config.name
            and other.pub_ack
            and not (config.queue_group and other.queue_group == config.queue_group)
        ]

    def route(self, subject: bytes) -> Route:
        """The route of a subject, remembered or found; raises as ``find`` does."""
        return self.remembered.get(subject) or self.find(subject)

    def target(self, subject: str, stream: str) -> Target | None:
        """The stream of this name, whoever leads it; None if it does not record the subject."""
        for binding in self._router.match(subject):
            if binding.stream.config.name == stream:
                return Target(binding, subject.encode())
        return None

    def find(self, subject: bytes) -> Route:
        """The route of a subject; without groups if nothing records it.

        Raises:
            InvalidSubjectError: not a subject one may publish to.
        """
        try:
            text = subject.decode()
        except UnicodeDecodeError as error:
            raise InvalidSubjectError("the subject is not UTF-8") from error
        validate_subject(text)
        groups: dict[str, list[Target]] = {}
        for number, binding in enumerate(self._router.match(text)):
            # NATS forbids white space in a queue's name, so no group is called like this.
            group = binding.stream.config.queue_group or f" {number}"
            groups.setdefault(group, []).append(Target(binding, subject))
        route = Route(text, tuple(map(_candidates, groups.values())), self._turns)
        if len(subject) <= REMEMBERED_SUBJECT_BYTES_MAX:
            if len(self.remembered) >= REMEMBERED_SUBJECTS_MAX:
                self.remembered.clear()
            self.remembered[subject] = route
        return route


def _candidates(group: list[Target]) -> tuple[Target, ...]:
    """Return a group's targets led here; all if none is, since any can refuse the record."""
    return tuple(target for target in group if target.is_ours) or tuple(group)
