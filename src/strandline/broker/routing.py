"""Routing: from a published subject to the partitions that store it.

Rules: a stream binds its subject and, with the ``suffix`` rule, ``subject.N`` for its partition N;
with the other rules a hash chooses the partition (of the subject, if a record has neither key nor
message id). Streams of one queue group take turns; every other stream stores every record. In a
cluster each broker receives every message and the partition's leader stores it. NATS sends a
message for a queue group to one broker only, so only leaders subscribe to it. Routes are cached in
a dictionary of limited size until the streams, or the leaders of queue groups, change.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from strandline.broker.internal import is_internal
from strandline.broker.write_path.atomic import AtomicRecord
from strandline.broker.write_path.pending import AckSink, ChunkAckSink
from strandline.config import Acks, StreamConfig
from strandline.errors import InvalidSubjectError, StrandlineError
from strandline.record.codec import Headers
from strandline.record.partitioner import partition_of
from strandline.record.subjects import SubjectRouter, validate_subject
from strandline.types import LeaderEpoch, PartitionName

REMEMBERED_SUBJECTS_MAX: Final = 16_384
REMEMBERED_SUBJECT_BYTES_MAX: Final = 256
"""Longer subjects are not cached, so that the cache stays small."""


class PartitionPort(Protocol):
    """A partition, as publishing needs it."""

    @property
    def name(self) -> PartitionName:
        """The partition's name."""
        ...

    @property
    def is_led(self) -> bool:
        """Whether this broker leads the partition."""
        ...

    @property
    def write_error(self) -> StrandlineError | None:
        """The error that rejects records now; None while they are accepted."""
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
        expected_subject_last: int | None = None,
        acks: Acks | None = None,
    ) -> None:
        """Accept a record; the outcome reaches ``ack_sink``, never the caller."""
        ...

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of its leadership."""
        ...

    def append_atomic(
        self, records: Sequence[AtomicRecord], *, ack_sink: AckSink, token: object
    ) -> None:
        """Accept records that are stored all or not at all."""
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
        """The partitions in order of their numbers."""
        ...


class Binding(NamedTuple):
    """A subject pattern bound to a stream."""

    pattern: str
    stream: StreamPort
    partition: int | None
    """The partition that the pattern feeds; None: a hash chooses."""
    is_ours: bool = True
    """Whether this broker subscribes to it; False: a queue group whose leader is elsewhere."""


def stream_bindings(stream: StreamPort) -> list[Binding]:
    """Return the patterns of ``stream``; an internal stream has none."""
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
    """A stream that stores a subject's records."""

    __slots__ = (
        "answers",
        "by_key",
        "by_message_id",
        "checks_offsets",
        "is_ours",
        "limits_subjects",
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
        """The queue group; of all its streams on all brokers, only one receives a message."""
        self.stream_subject = config.subject
        self.answers = config.pub_ack
        """Whether a reply subject gets a PubAck."""
        self.checks_offsets = config.optimistic_concurrency
        """Whether a Liftbridge message is stored only at the offset that it expects."""
        self.limits_subjects = config.max_records_per_subject > 0
        """Whether the stream knows the last record of each subject."""
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
        """Return the partition of a record with this key and message id."""
        if key is not None and self.by_key:
            return self.partitions[partition_of(key, len(self.partitions))]
        if message_id is not None and self.by_message_id:
            id_bytes = message_id.encode(errors="surrogateescape")
            return self.partitions[partition_of(id_bytes, len(self.partitions))]
        return self.partition


class Route:
    """The partitions that store a subject's records."""

    __slots__ = ("answers", "groups", "is_shared", "partition", "subject", "turns")

    def __init__(
        self, subject: str, groups: tuple[tuple[Target, ...], ...], turns: Iterator[int]
    ) -> None:
        self.subject = subject
        self.groups = groups
        """One stream of each group stores the record."""
        self.turns = turns
        only = groups[0][0] if len(groups) == 1 and len(groups[0]) == 1 else None
        self.partition = only.partition if only is not None else None
        """The partition of a record without a key, if there is only one; for the fast path."""
        self.answers = only is not None and only.answers
        self.is_shared = only is not None and bool(only.queue_group)

    def targets(self, named: Target | None = None) -> list[Target]:
        """Return the streams that store the next record; ``named`` is its group's choice."""
        taken = [
            group[0] if len(group) == 1 else group[next(self.turns) % len(group)]
            for group in self.groups
        ]
        if named is None or not named.queue_group:
            return taken
        return [named if each.queue_group == named.queue_group else each for each in taken]


class RouteTable:
    """Finds the routes of subjects. The hot path reads the dictionary ``remembered`` itself.

    Args:
        bindings: the first streams' bindings.
    """

    def __init__(self, bindings: Iterable[Binding] = ()) -> None:
        self.remembered: dict[bytes, Route] = {}
        self._turns = itertools.count()
        self._router: SubjectRouter[Binding] = SubjectRouter()
        self._bindings: dict[str, tuple[Binding, ...]] = {}
        for binding in bindings:
            self._router.add(binding.pattern, binding)

    def replace(self, name: str, stream: StreamPort | None) -> None:
        """Route to a stream as it is now; None removes its name. Clears the cache."""
        for binding in self._bindings.pop(name, ()):
            self._router.remove(binding.pattern, binding)
        added = stream_bindings(stream) if stream is not None else ()
        for binding in added:
            self._router.add(binding.pattern, binding)
        if added:
            self._bindings[name] = tuple(added)
        self.remembered.clear()

    def bindings(self, name: str) -> Sequence[Binding]:
        """Return a stream's bindings; empty if the stream is unknown."""
        return self._bindings.get(name, ())

    def answering_beside(self, stream: StreamPort) -> list[str]:
        """Return the names of other streams that also acknowledge some publishes to this one.

        Streams of its queue group take turns with it and are not included. Any thread.
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
        """Return the route of a subject, from the cache if possible; raises as ``find`` does."""
        return self.remembered.get(subject) or self.find(subject)

    def target(self, subject: str, stream: str) -> Target | None:
        """Return the stream of this name if it stores the subject, wherever led; else None."""
        for binding in self._router.match(subject):
            if binding.stream.config.name == stream:
                return Target(binding, subject.encode())
        return None

    def find(self, subject: bytes) -> Route:
        """Find the route of a subject; it is empty if no stream stores the subject.

        Raises:
            InvalidSubjectError: nobody can publish to this subject.
        """
        try:
            text = subject.decode()
        except UnicodeDecodeError as error:
            raise InvalidSubjectError("the subject is not UTF-8") from error
        validate_subject(text)
        groups: dict[str, list[Target]] = {}
        for number, binding in enumerate(self._router.match(text)):
            # A stream alone is its own group; no queue group has such a name, as NATS forbids
            # spaces.
            group = binding.stream.config.queue_group or f" {number}"
            groups.setdefault(group, []).append(Target(binding, subject))
        route = Route(text, tuple(map(_candidates, groups.values())), self._turns)
        if len(subject) <= REMEMBERED_SUBJECT_BYTES_MAX:
            if len(self.remembered) >= REMEMBERED_SUBJECTS_MAX:
                self.remembered.clear()
            self.remembered[subject] = route
        return route


def _candidates(group: list[Target]) -> tuple[Target, ...]:
    """Return a group's targets that are led here; if none is, all: any can reject the record."""
    return tuple(target for target in group if target.is_ours) or tuple(group)
