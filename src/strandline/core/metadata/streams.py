"""Creation and deletion of streams: checks settings, numbers partitions, sets replicas.

Rule: ``placement.py`` decides where replicas go; here it is only checked that the brokers exist and
that the number of replicas is the stream's.
"""

import re

import msgspec

from strandline.config import NAME_BYTES_MAX, PARTITIONS_MAX, StreamConfig
from strandline.core.metadata.brokers import known_broker
from strandline.core.metadata.commands import (
    AddPartitions,
    CreateStream,
    DeleteStream,
    Replicas,
    UpdateStream,
)
from strandline.core.metadata.groups import with_more_partitions, without_stream
from strandline.core.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.core.metadata.outcome import CommandRejectedError
from strandline.core.metadata.partitions import new_partition
from strandline.core.metadata.stream_keys import check_new_keys
from strandline.errors import InvalidConfigError, InvalidSubjectError, StreamExistsError
from strandline.record.subjects import validate_subject
from strandline.types import LogId

REPLICAS_MAX = 7
DESCRIPTION_BYTES_MAX = 4096
"""The most bytes of a stream's description, as in JetStream."""
RESERVED_ROOTS = ("$JS", "$SYS", "_INBOX", "_INBOX_PRIVATE")
"""First tokens of subjects that are NATS' own: its API, its system account, and replies."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_AMOUNTS = (
    "retention_age_ms",
    "retention_bytes",
    "retention_records",
    "max_records_per_subject",
    "tombstone_delay_ms",
    "dedup_window_ms",
    "auto_pause_ms",
)
_SEGMENT_BYTES_MIN = 64 << 10
_AMOUNT_MAX = (1 << 63) - 1
"""The largest number that the metadata log, and clients in other languages, can represent."""


def create_stream(image: MetadataImage, command: CreateStream) -> MetadataImage:
    """Check the settings; give every partition a log id and its replicas."""
    config = command.config
    check_stream_config(config, is_cluster=bool(image.brokers))
    if config.name in image.streams:
        raise StreamExistsError(f"stream {config.name!r} exists; choose another name or delete it")
    check_new_keys(config, command.keys)
    partitions = _new_partitions(image, command.assignment, config=config, count=config.partitions)
    config = msgspec.structs.replace(config, partition_by=config.partition_rule)
    stream = StreamImage(
        config=config, created_ns=command.now_ns, partitions=partitions, keys=command.keys
    )
    image = msgspec.structs.replace(image, next_log_id=log_id_after(image, partitions))
    return image.with_streams({config.name: stream})


def update_stream(image: MetadataImage, command: UpdateStream) -> MetadataImage:
    """Change settings of a stream."""
    stream = image.stream(command.name)
    config = msgspec.structs.replace(stream.config, schema_validation=command.schema_validation)
    return image.with_streams({command.name: msgspec.structs.replace(stream, config=config)})


def delete_stream(image: MetadataImage, command: DeleteStream) -> MetadataImage:
    """Remove a stream; its log ids are not reused."""
    image.stream(command.name)
    return without_stream(image.with_streams({command.name: None}), command.name)


def add_partitions(image: MetadataImage, command: AddPartitions) -> MetadataImage:
    """Append partitions to a stream."""
    stream = image.stream(command.name)
    if command.count < 1:
        raise CommandRejectedError("bad_assignment", "at least one partition must be added")
    config = msgspec.structs.replace(
        stream.config, partitions=len(stream.partitions) + command.count
    )
    check_stream_config(config, is_cluster=bool(image.brokers))
    added = _new_partitions(image, command.assignment, config=config, count=command.count)
    grown = msgspec.structs.replace(stream, config=config, partitions=stream.partitions + added)
    image = msgspec.structs.replace(image, next_log_id=log_id_after(image, added))
    return with_more_partitions(image.with_streams({command.name: grown}), command.name)


def log_id_after(image: MetadataImage, added: tuple[PartitionImage, ...]) -> int:
    """Return the next log id to allocate; it never falls, even after deletions."""
    return image.next_log_id + len(added)


def _new_partitions(
    image: MetadataImage, assignment: tuple[Replicas, ...], *, config: StreamConfig, count: int
) -> tuple[PartitionImage, ...]:
    """Return partitions without records, on the brokers they were assigned to."""
    if len(assignment) != (count if image.brokers else 0):
        raise CommandRejectedError(
            "bad_assignment", f"{len(assignment)} partitions are assigned, {count} are needed"
        )
    logs = [PartitionImage(log_id=LogId(image.next_log_id + i)) for i in range(count)]
    if not image.brokers:
        return tuple(logs)
    for replicas in assignment:
        check_replicas(image, replicas)
        if len(replicas) != config.replicas:
            raise CommandRejectedError(
                "bad_assignment",
                f"the assignment names {len(replicas)} replicas; the stream has {config.replicas}",
            )
    return tuple(
        new_partition(partition, replicas, image.brokers)
        for partition, replicas in zip(logs, assignment, strict=True)
    )


def check_replicas(image: MetadataImage, replicas: Replicas) -> None:
    """Check that replicas are distinct known brokers.

    Raises:
        CommandRejectedError: they are not.
    """
    for broker in replicas:
        known_broker(image, broker)
    if not replicas or len(set(replicas)) != len(replicas) or len(replicas) > REPLICAS_MAX:
        raise CommandRejectedError(
            "bad_assignment",
            f"a partition needs 1 to {REPLICAS_MAX} distinct brokers, got {list(replicas)}",
        )


def check_stream_config(config: StreamConfig, *, is_cluster: bool) -> None:
    """Check a stream's settings.

    Raises:
        InvalidConfigError: a setting is out of range; the message names it and the range.
        InvalidSubjectError: the subject is not a NATS subject.
    """
    if not _NAME.fullmatch(config.name) or len(config.name) > NAME_BYTES_MAX:
        shown = config.name[:NAME_BYTES_MAX]
        raise InvalidConfigError(
            f"stream name {shown!r}: use 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or "
            "'.', not starting with '-' or '.'"
        )
    validate_subject(config.subject, wildcards=True)
    _check_answers(config)
    group = config.queue_group
    if group and (not _NAME.fullmatch(group) or len(group) > NAME_BYTES_MAX):
        raise InvalidConfigError(
            f"queue_group {group[:NAME_BYTES_MAX]!r}: use 1 to {NAME_BYTES_MAX} letters, digits, "
            "'_', '-' or '.'"
        )
    if not 1 <= config.partitions <= PARTITIONS_MAX:
        raise InvalidConfigError(f"partitions is {config.partitions}; give 1 to {PARTITIONS_MAX}")
    for field in _AMOUNTS:
        if (amount := getattr(config, field)) < 0:
            raise InvalidConfigError(f"{field} is {amount}, which is negative; 0 turns it off")
    for field in (*_AMOUNTS, "segment_bytes", "segment_age_ms"):
        if (amount := getattr(config, field)) > _AMOUNT_MAX:
            raise InvalidConfigError(f"{field} is {amount}, above its maximum of {_AMOUNT_MAX}")
    if config.segment_bytes < _SEGMENT_BYTES_MIN:
        raise InvalidConfigError(
            f"segment_bytes is {config.segment_bytes}, below its minimum of {_SEGMENT_BYTES_MIN}"
        )
    if config.segment_age_ms <= 0:
        raise InvalidConfigError(f"segment_age_ms is {config.segment_age_ms}; it must be above 0")
    if config.partition_rule == "suffix" and config.partitions > 1 and ">" in config.subject:
        raise InvalidConfigError(
            "partition_by 'suffix' puts '.N' after the subject, which does not work if the subject "
            "ends in '>'; use 'subject' or 'key'"
        )
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise InvalidConfigError(
            f"the description {config.description[:40]!r}… is longer than {DESCRIPTION_BYTES_MAX} "
            "bytes; shorten it"
        )
    if config.compact and config.max_records_per_subject:
        raise InvalidConfigError(
            "compact keeps the newest record of each key, max_records_per_subject "
            f"({config.max_records_per_subject}) the newest of each subject: choose one"
        )
    _check_queue_group(config, is_cluster=is_cluster)
    _check_copies(config, is_cluster=is_cluster)


def _check_answers(config: StreamConfig) -> None:
    """Reject subjects on which a stream would store or acknowledge messages meant for others."""
    first, _, rest = config.subject.partition(".")
    if first in RESERVED_ROOTS and rest == ">":
        raise InvalidSubjectError(
            f"subject '{config.subject}' covers NATS' own messages: name the part to store"
        )
    if first in ("*", ">") and config.pub_ack:
        raise InvalidConfigError(
            f"subject '{config.subject}' covers requests to any service, and a stream with pub_ack "
            "would answer them: set pub_ack to false (--no-pub-ack), or name the first token"
        )
    if first in RESERVED_ROOTS and config.pub_ack:
        raise InvalidConfigError(
            f"subject '{config.subject}' is NATS' own, and a stream with pub_ack would answer its "
            "requests: set pub_ack to false (--no-pub-ack)"
        )


def _check_queue_group(config: StreamConfig, *, is_cluster: bool) -> None:
    """Check that in a cluster the one broker that gets a queue group's message can store it."""
    is_hashed = config.partition_rule != "suffix" and config.partitions > 1
    if is_cluster and config.queue_group and is_hashed:
        raise InvalidConfigError(
            f"queue_group with {config.partitions} partitions needs partition_by 'suffix' in a "
            "cluster: what is shared reaches one leader, which cannot choose another's partition. "
            "Use that, or one partition"
        )


def _check_copies(config: StreamConfig, *, is_cluster: bool) -> None:
    """Check the number of replicas, and the promises that depend on it."""
    if not is_cluster and config.replicas != 1:
        raise InvalidConfigError(
            f"replicas is {config.replicas}, which needs several brokers (docs/cluster.md); one "
            "alone keeps 1 copy: leave it out"
        )
    if not is_cluster and config.acks == "replicated":
        raise InvalidConfigError(
            "acks 'replicated' needs several brokers (docs/cluster.md); this one has 'disk'"
        )
    if not 1 <= config.replicas <= REPLICAS_MAX:
        raise InvalidConfigError(f"replicas is {config.replicas}; give 1 to {REPLICAS_MAX}")
    if not 1 <= config.min_isr <= config.replicas:
        raise InvalidConfigError(
            f"min_isr must be 1 to {config.replicas}, the number of replicas, got {config.min_isr}"
        )
