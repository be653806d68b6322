"""The command that lists the files of a read, for a reader on the broker's own machine.

Rules: the listed bytes are committed and never change; any process that may read the files can use
them. Records that only the broker can serve, such as encrypted ones, are not listed.
"""

from typing import Final

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import stream
from strandline.api.tickets import ReadRequest, decode_ticket
from strandline.api.wire import WireAnswer

WORTH_BYTES: Final = 4 << 20
"""The bytes from which files pay; with fewer, a read through the broker is as fast."""


class LocalFile(WireAnswer, frozen=True):
    """A run of whole batches in one segment file."""

    path: str
    inode: int
    """The file's inode, which identifies it even if another file gets its path."""
    position: int
    """The file position of the first batch."""
    size: int
    """The bytes of the batches."""


class AbortedRange(WireAnswer, frozen=True):
    """The offsets of an aborted transaction in a partition; ``end`` is exclusive."""

    producer_id: int
    start: int
    end: int


class LocalPart(WireAnswer, frozen=True):
    """The part of a read that belongs to one partition; ``stop`` and ``end`` are exclusive."""

    partition: int
    start: int
    stop: int
    end: int
    """The end of the records in ``files``; the records after it are read through the broker."""
    files: tuple[LocalFile, ...]
    """The runs in order; the first one begins with the batch that holds ``start``."""
    log_start_offset: int
    may_move: bool
    """Whether ``start`` may be changed, because the reader named no offset."""
    has_hidden: bool
    """Whether the files may have batches that readers do not see, such as markers."""
    aborted: tuple[AbortedRange, ...]
    """The ranges of aborted transactions."""


class LocalFiles(WireAnswer, frozen=True):
    """A resolved read: its partitions in reading order."""

    proof_file: str
    """The path of a file that only processes on this machine can read."""
    proof: str
    """The contents of that file; empty: no records can be read from files."""
    has_partition_column: bool
    """Whether records have the partition column by default, because the stream has several."""
    parts: tuple[LocalPart, ...]


LOCAL_FILES: Final = AdminCommand(
    name="local_files",
    help="List the files that hold the records of a read, for readers on this machine.",
    request=ReadRequest,
    result=LocalFiles,
    needs=lambda it: [stream(it.stream, "read")],
    parse=decode_ticket,
)
