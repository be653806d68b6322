"""The commands that a backup consists of: the metadata, and the stored batches of a partition.

Rules: batches are returned as they are stored, so those of an encrypted stream stay encrypted. The
partition's leader returns them, and only committed ones.
"""

from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import cluster
from strandline.api.wire import Count, Name, PartitionNumber, WireAnswer, WireMessage

READ_BYTES_MAX: Final = 16 << 20
ANSWER_BYTES_MAX: Final = 1 << 30
"""Larger than for other answers: for a large batch, or the metadata of thousands of streams."""


class MetadataSnapshot(WireAnswer, frozen=True, kw_only=True):
    """The metadata, including everything that was decided before the request."""

    cluster: str
    """The cluster's name; empty for a single broker."""
    image: bytes
    """The metadata image as JSON, as in ``metadata.json``."""


class ReadLogRequest(WireMessage, frozen=True, kw_only=True):
    """A request for the stored batches of a partition."""

    stream: Name
    partition: PartitionNumber
    log_id: Count
    """The log's id, which distinguishes the stream from a later one of the same name."""
    offset: Count
    """The first batch is the one that holds this offset, or else the first one after it."""
    bytes_max: Annotated[int, msgspec.Meta(ge=0, le=READ_BYTES_MAX)] = 4 << 20
    """About how many bytes to return, but at least one batch; 0: no batches."""


class LogBatches(WireAnswer, frozen=True, kw_only=True):
    """Stored batches, one after another, and the partition's offsets when they were read."""

    batches: bytes
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


METADATA_SNAPSHOT: Final = AdminCommand(
    name="metadata_snapshot",
    help="Return the metadata for a backup, with access rules and hashes of tokens.",
    request=NoneType,
    result=MetadataSnapshot,
    needs=lambda _: [cluster("admin")],
    answer_bytes_max=ANSWER_BYTES_MAX,
)
READ_LOG: Final = AdminCommand(
    name="read_log",
    help="Return a partition's committed batches as they are stored, for a backup.",
    request=ReadLogRequest,
    result=LogBatches,
    needs=lambda _: [cluster("admin")],
    answer_bytes_max=ANSWER_BYTES_MAX,
)
