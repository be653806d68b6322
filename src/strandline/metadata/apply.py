"""``apply(image, command)``: the deterministic state machine of the metadata.

The same command on the same image gives the same image or raises the same error, on every broker.
"""

import re
from typing import assert_never

import msgspec

from strandline.config import NAME_BYTES_MAX, PARTITIONS_MAX, StreamConfig
from strandline.errors import InvalidConfigError, StreamExistsError
from strandline.metadata.commands import Command, CreateStream, DeleteStream
from strandline.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.record.subjects import validate_subject

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_NOT_NEGATIVE = (
    "retention_age_ms",
    "retention_bytes",
    "retention_records",
    "tombstone_delay_ms",
    "dedup_window_ms",
)
_SEGMENT_BYTES_MIN = 64 << 10


def apply(image: MetadataImage, command: Command) -> MetadataImage:
    """The image after the command.

    Raises:
        StreamExistsError: the name is taken.
        UnknownStreamError: no such stream.
        InvalidConfigError: a setting is out of range.
        InvalidSubjectError: the stream's subject is not one.
    """
    match command:
        case CreateStream():
            return _create_stream(image, command)
        case DeleteStream():
            image.stream(command.name)
            streams = {name: s for name, s in image.streams.items() if name != command.name}
            return msgspec.structs.replace(image, streams=streams)
        case _:
            assert_never(command)


def _create_stream(image: MetadataImage, command: CreateStream) -> MetadataImage:
    """Check the settings and give every partition a log id."""
    config = command.config
    check_stream_config(config)
    if config.name in image.streams:
        raise StreamExistsError(f"stream {config.name!r} exists; choose another name or delete it")
    first = image.next_log_id
    partitions = tuple(PartitionImage(log_id=first + i) for i in range(config.partitions))
    config = msgspec.structs.replace(config, partition_by=config.partition_rule)
    stream = StreamImage(config=config, created_ns=command.now_ns, partitions=partitions)
    return msgspec.structs.replace(
        image,
        next_log_id=first + config.partitions,
        streams={**image.streams, config.name: stream},
    )


def check_stream_config(config: StreamConfig) -> None:
    """Refuse settings no stream can have.

    Raises:
        InvalidConfigError: naming the setting and its range.
        InvalidSubjectError: the subject is not a NATS subject.
    """
    if not _NAME.fullmatch(config.name) or len(config.name) > NAME_BYTES_MAX:
        raise InvalidConfigError(
            f"stream name {config.name!r}: use 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or "
            "'.', not starting with '-' or '.'"
        )
    validate_subject(config.subject, wildcards=True)
    if config.queue_group and not _NAME.fullmatch(config.queue_group):
        raise InvalidConfigError("queue_group: use letters, digits, '_', '-' or '.'")
    if not 1 <= config.partitions <= PARTITIONS_MAX:
        raise InvalidConfigError(f"partitions is {config.partitions}; 1 to {PARTITIONS_MAX} work")
    for field in _NOT_NEGATIVE:
        if getattr(config, field) < 0:
            raise InvalidConfigError(f"{field} is negative; 0 turns it off")
    if config.segment_bytes < _SEGMENT_BYTES_MIN:
        raise InvalidConfigError(f"segment_bytes is below its minimum of {_SEGMENT_BYTES_MIN}")
    if config.segment_age_ms <= 0:
        raise InvalidConfigError("segment_age_ms must be above 0")
    if config.acks == "replicated":
        raise InvalidConfigError("acks 'replicated' needs several brokers; this one has 'disk'")
    if config.partition_rule == "suffix" and config.partitions > 1 and ">" in config.subject:
        raise InvalidConfigError(
            "partition_by 'suffix' puts '.N' after the subject, which '>' forbids; use 'subject' "
            "or 'key'"
        )
