"""The state of every key, collected before a compaction removes anything.

Rules: only committed records replace others. A null value may be removed only if the log has no
older record of its key when the run begins. Otherwise a deleted key could return: after a crash
between two segments, from a batch that was kept whole, or from corruption that is repaired later.
Read-only; any thread.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.record.batch import NO_PRODUCER, Attributes, BatchHeader
from strandline.record.codec import decode_batches
from strandline.storage.log import Log
from strandline.storage.segment_reads import CorruptRange
from strandline.storage.subject_history import SubjectHistory
from strandline.storage.walk import FoundBatch, walk
from strandline.types import Offset

IsCommitted = Callable[[BatchHeader], bool]
"""Whether a batch is committed, that is, not of an aborted transaction."""


class Scope(NamedTuple):
    """The scope of a compaction: which records replace others, which null values may be removed.

    Attributes:
        below: records from here on may still be truncated: they are kept and replace no others.
        is_committed: whether a batch below ``below`` is committed.
        tombstones_below: null values from here on may be missing on a replica.
        oldest_tombstone_ns: null values of this time or later are kept.
        ids_from_ns: batches with message ids of this time or later are kept whole.
        numbers_from_ns: a record of a producer's last batch is kept if of this time or later.
    """

    below: Offset
    is_committed: IsCommitted
    tombstones_below: Offset
    oldest_tombstone_ns: int
    ids_from_ns: int
    numbers_from_ns: int
    log: Log
    """Decrypts and encrypts batches."""
    history: SubjectHistory | None = None
    """The records kept of each subject; if set, keys do not matter."""

    def ids_held_ns(self, header: BatchHeader) -> int:
        """Return for how many ns a batch is kept for its message ids; -1: not at all."""
        has_ids = header.attributes & Attributes.MESSAGE_IDS
        return header.last_timestamp - self.ids_from_ns if has_ids else -1

    def numbers_held_ns(self, header: BatchHeader) -> int:
        """Return for how many ns a batch is kept for its sequence numbers; -1: not at all.

        Batches of a transaction that has ended are not kept for them.
        """
        is_over = header.attributes & Attributes.TRANSACTIONAL
        is_numbered = header.producer_id != NO_PRODUCER and not is_over
        return header.last_timestamp - self.numbers_from_ns if is_numbered else -1


class CompactionKeys(msgspec.Struct):
    """All keys of a log.

    Attributes:
        newest: the offset of each key's newest record.
        deleted: keys whose newest record is a null value.
        shadowed: deleted keys whose older records are still in the log.
        last_numbered: the base offset of the last batch of each known producer.
        is_whole: False if part of the log is corrupt, so that keys may be missing here.
    """

    newest: dict[bytes, int] = msgspec.field(default_factory=dict)
    deleted: set[bytes] = msgspec.field(default_factory=set)
    shadowed: set[bytes] = msgspec.field(default_factory=set)
    last_numbered: dict[int, Offset] = msgspec.field(default_factory=dict)
    is_whole: bool = True

    def may_forget(self, key: bytes) -> bool:
        """Whether a key's null value is its only record in the log."""
        return self.is_whole and key not in self.shadowed

    def is_last_numbered(self, header: BatchHeader) -> bool:
        """Whether a batch is the newest one with its producer's sequence numbers, so must stay."""
        return self.last_numbered.get(header.producer_id) == header.base_offset

    def note(self, key: bytes, offset: int, *, is_null: bool) -> None:
        """Note a record, which must be newer than those noted before."""
        if not is_null:
            self.deleted.discard(key)
            self.shadowed.discard(key)
        else:
            self.deleted.add(key)
            if key in self.newest:
                self.shadowed.add(key)
        self.newest[key] = offset


def scan_keys(scope: Scope) -> CompactionKeys:
    """Read all keys of committed records of a log.

    Raises:
        EncryptionKeyError: the stream is encrypted, and its key is not available.
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
                scope.history.apply(memoryview(scope.log.decrypted(found.view)))
            elif found.header.attributes & Attributes.KEYS and scope.is_committed(found.header):
                _note_batch(keys, found, scope.log)
    return keys


def _note_batch(keys: CompactionKeys, found: FoundBatch, log: Log) -> None:
    has_nulls = bool(found.header.attributes & Attributes.NULL_VALUES)
    columns = ["offset", "key", "value"] if has_nulls else ["offset", "key"]
    batch = rows(log.decrypted(found.view), columns=columns)
    names, offsets = batch.column("key").to_pylist(), batch.column("offset").to_pylist()
    nulls = pc.is_null(batch.column("value")).to_pylist() if has_nulls else [False] * len(names)
    for key, offset, is_null in zip(names, offsets, nulls, strict=True):
        if key is not None:
            keys.note(key, offset, is_null=is_null)


def rows(batch: pa.Buffer, *, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return the records of one batch."""
    (found,) = decode_batches(batch, columns=columns)
    return found
