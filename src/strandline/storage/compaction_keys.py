"""The state of every key, collected before a compaction removes anything.

Rules: records replace others only if they count and are committed. A null value may go only if
nothing older of its key is in the log any more when the run begins, or a deleted key would come
back: after a crash between two segments, from a batch that was kept whole, or from corruption that
is repaired later. Reads, and changes nothing; any thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.record.batch import NO_PRODUCER, Attributes, BatchHeader
from strandline.record.codec import decode_batches
from strandline.storage.log import Log
from strandline.storage.segment_reads import CorruptRange
from strandline.storage.subject_history import SubjectHistory
from strandline.storage.walk import FoundBatch, walk
from strandline.types import Offset

Counts = Callable[[BatchHeader], bool]
"""Whether the records of a batch count: those of an aborted transaction do not."""


class Scope(NamedTuple):
    """The limits of a compaction: records that replace others, null values that may go.

    Attributes:
        below: records from here on may yet be undone; they replace nothing, and stay.
        counts: of the batches below.
        tombstones_below: null values from here on may not have been seen by every replica.
        oldest_tombstone_ns: null values that are not older stay.
        ids_from_ns: batches with message ids that are not older stay whole.
        numbers_from_ns: of a producer's last numbered batch, if it is not older, a record stays.
    """

    below: Offset
    counts: Counts
    tombstones_below: Offset
    oldest_tombstone_ns: int
    ids_from_ns: int
    numbers_from_ns: int
    log: Log
    """Who opens and seals what is encrypted."""
    history: SubjectHistory | None = None
    """What stays of each subject, in the place of what stays of each key."""

    def ids_held_ns(self, header: BatchHeader) -> int:
        """Return for how many ns a batch stays to detect retries by message id; -1: not at all."""
        has_ids = header.attributes & Attributes.MESSAGE_IDS
        return header.last_timestamp - self.ids_from_ns if has_ids else -1

    def numbers_held_ns(self, header: BatchHeader) -> int:
        """Return for how many ns a batch stays for its producer's sequence numbers; -1: not at all.

        The batches of a transaction that has ended are not kept for them.
        """
        is_over = header.attributes & Attributes.TRANSACTIONAL
        is_numbered = header.producer_id != NO_PRODUCER and not is_over
        return header.last_timestamp - self.numbers_from_ns if is_numbered else -1


@dataclass(slots=True)
class CompactionKeys:
    """All keys of a log.

    Attributes:
        newest: the offset of each key's newest record.
        deleted: whose newest record is a null value.
        shadowed: of those, whose older records are still in the log.
        last_numbered: of each producer that is still known, where its last batch begins.
        is_whole: False if some of the log is corrupt: then nobody knows what else there is.
    """

    newest: dict[bytes, int] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)
    shadowed: set[bytes] = field(default_factory=set)
    last_numbered: dict[int, Offset] = field(default_factory=dict)
    is_whole: bool = True

    def may_forget(self, key: bytes) -> bool:
        """Whether a key's null value is all that is left of it."""
        return self.is_whole and key not in self.shadowed

    def tells_numbers(self, header: BatchHeader) -> bool:
        """Whether a batch is the newest proof of its producer's sequence number, so must stay."""
        return self.last_numbered.get(header.producer_id) == header.base_offset

    def note(self, key: bytes, offset: int, *, is_null: bool) -> None:
        """A record, newer than those before."""
        if not is_null:
            self.deleted.discard(key)
            self.shadowed.discard(key)
        else:
            self.deleted.add(key)
            if key in self.newest:
                self.shadowed.add(key)
        self.newest[key] = offset


def scan_keys(scope: Scope) -> CompactionKeys:
    """Read all keys of a log that count, up to what may yet be undone.

    Raises:
        EncryptionKeyError: the stream is encrypted, and its key is not here.
        LogPoisonedError: reading failed.
    """
    keys = CompactionKeys()

    def on_hole(_: CorruptRange) -> None:
        keys.is_whole = False

    for segment in scope.log.segments:
        if segment.base_offset >= scope.below:
            break
        for found in walk(segment, on_hole=on_hole):
            if found.header.next_offset > scope.below:
                break
            if scope.numbers_held_ns(found.header) >= 0:
                keys.last_numbered[found.header.producer_id] = found.header.base_offset
            if scope.history is not None:
                scope.history.apply(memoryview(scope.log.opened(found.view)))
            elif found.header.attributes & Attributes.KEYS and scope.counts(found.header):
                _note_batch(keys, found, scope.log)
    return keys


def _note_batch(keys: CompactionKeys, found: FoundBatch, log: Log) -> None:
    has_nulls = bool(found.header.attributes & Attributes.NULL_VALUES)
    columns = ["offset", "key", "value"] if has_nulls else ["offset", "key"]
    batch = rows(log.opened(found.view), columns=columns)
    names, offsets = batch.column("key").to_pylist(), batch.column("offset").to_pylist()
    nulls = pc.is_null(batch.column("value")).to_pylist() if has_nulls else [False] * len(names)
    for key, offset, is_null in zip(names, offsets, nulls, strict=True):
        if key is not None:
            keys.note(key, offset, is_null=is_null)


def rows(batch: pa.Buffer, *, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The records of one batch."""
    (found,) = decode_batches(batch, columns=columns)
    return found
