"""The command that lists the files of a read, for a reader on the broker's own machine.

Rules: the listed bytes are committed and never change; any process with permission to read the
files can use them. Records that only the broker can serve, such as encrypted ones, are not listed.
"""

from typing import Final

from strandline.api.command import AdminCommand
from strandline.api.required_permissions import stream
from strandline.api.tickets import ReadRequest, decode_ticket
from strandline.api.wire import WireAnswer

WORTH_BYTES: Final = 4 << 20
"""With less in files than this, a read is as quick through the broker."""


class LocalFile(WireAnswer, frozen=True):
    """A run of whole batches in one segment file."""

    path: str
    inode: int
    """Of the file: another one of the same name is not it."""
    position: int
    """Where the first of them begins, in bytes."""
    size: int
    """Where the last of them ends."""


class AbortedRange(WireAnswer, frozen=True):
    """The offsets of an aborted transaction in a partition, half-open."""

    producer_id: int
    start: int
    end: int


class LocalPart(WireAnswer, frozen=True):
    """The part of a read that belongs to one partition, half-open."""

    partition: int
    start: int
    stop: int
    end: int
    """Up to here the records are in ``files``; the rest is read through the broker."""
    files: tuple[LocalFile, ...]
    """In order; the first begins with the batch that holds ``start``."""
    log_start_offset: int
    may_move: bool
    """``start`` was not an offset of the reader's."""
    has_hidden: bool
    """Whether there may be batches among them that readers do not see: fillers, markers, and"""
    aborted: tuple[AbortedRange, ...]
    """what these have written."""


class LocalFiles(WireAnswer, frozen=True):
    """A resolved read: its partitions in reading order."""

    proof_file: str
    """A file that only this machine has,"""
    proof: str
    """and what it holds; empty: there is nothing to be read from files."""
    has_partition_column: bool
    """Whether records say their partition by default: the stream has several."""
    parts: tuple[LocalPart, ...]


LOCAL_FILES: Final = AdminCommand(
    name="local_files",
    help="List the files that hold the records of a read, for readers on this machine.",
    request=ReadRequest,
    result=LocalFiles,
    needs=lambda it: [stream(it.stream, "read")],
    parse=decode_ticket,
)
