"""Files and positions of a read's records, for a reader on the broker's own machine.

| action | body | results |
|---|---|---|
| local_files | ReadRequest | LocalFiles |

Rules: what is listed is committed, never changes and is readable by whoever may read the files.
Nothing is listed that only the broker can judge, such as encrypted records.
"""

from typing import Final

from strandline.api.wire import WireAnswer

LOCAL_FILES: Final = "local_files"

ACTIONS: Final[dict[str, str]] = {
    LOCAL_FILES: "Which files hold the records of a read, for readers on this machine; body: it."
}


class LocalFile(WireAnswer, frozen=True):
    """Whole batches in a row."""

    path: str
    inode: int
    """Of the file: another one of the same name is not it."""
    position: int
    """Where the first of them begins, in bytes."""
    size: int
    """Where the last of them ends."""


class AbortedRange(WireAnswer, frozen=True):
    """A transaction of a partition that was aborted; offsets are half-open."""

    producer_id: int
    start: int
    end: int


class LocalPart(WireAnswer, frozen=True):
    """A partition's part of the read, half-open."""

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
    """The read, resolved: its partitions in the order in which they are read."""

    proof_file: str
    """A file that only this machine has,"""
    proof: str
    """and what it holds; empty: there is nothing to be read from files."""
    has_partition_column: bool
    """Whether records say their partition by default: the stream has several."""
    parts: tuple[LocalPart, ...]
