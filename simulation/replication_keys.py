"""Keys and null values of simulated records, and what compaction leaves of batches.

A batch's payload is its records, separated by commas. A record is a number, from which its key
follows, and whether it is a null value. A removed record is empty, so that a batch still covers its
offsets. A batch without records is a placeholder; consecutive placeholders of one epoch are merged.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.core.replication.messages import BatchRef
from strandline.types import LeaderEpoch, Offset

KEYS = 101
"""Enough keys that often one does not change while a broker is offline."""
_NULL_EVERY = 4


class StoredKey(NamedTuple):
    """A batch as it is on disk."""

    ref: BatchRef
    payload: bytes

    @property
    def records(self) -> list[tuple[int, bytes]]:
        """Return offset and value of each record; the value is empty if the record was removed."""
        return list(enumerate(self.payload.split(b","), self.ref.base_offset))


@dataclass(slots=True)
class SimKeys:
    """The newest offset of each key, and the keys whose null value has older records."""

    newest: dict[int, int] = field(default_factory=dict)
    shadowed: set[int] = field(default_factory=set)


def key_of(value: bytes) -> int:
    """Return the key of a record."""
    return int(value) % KEYS


def is_null(value: bytes) -> bool:
    """Whether a record deletes its key."""
    return int(value) % _NULL_EVERY == 0


def is_filler(stored: StoredKey) -> bool:
    """Whether a batch has no records left."""
    return not stored.payload.strip(b",")


def filler(base: int, after: int, epoch: LeaderEpoch) -> StoredKey:
    """Return a placeholder for emptied offsets."""
    payload = b"," * (after - base - 1)
    return StoredKey(BatchRef(Offset(base), Offset(after), epoch, len(payload)), payload)


def tail(stored: StoredKey, offset: int) -> StoredKey:
    """Return a batch's records from an offset on, as a batch of its own."""
    ref = stored.ref
    payload = b",".join(stored.payload.split(b",")[offset - ref.base_offset :])
    return StoredKey(
        BatchRef(Offset(offset), ref.next_offset, ref.leader_epoch, len(payload)), payload
    )


def may_merge(before: StoredKey, after: StoredKey) -> bool:
    """Whether two consecutive batches are placeholders of one leader epoch."""
    is_one_epoch = before.ref.leader_epoch == after.ref.leader_epoch
    return is_one_epoch and is_filler(before) and is_filler(after)


def scan_keys(batches: Iterable[StoredKey], below: int) -> SimKeys:
    """Return the keys of committed records."""
    keys = SimKeys()
    for stored in batches:
        if stored.ref.next_offset > below:
            break
        for offset, value in stored.records:
            if value:
                key = key_of(value)
                if is_null(value) and key in keys.newest:
                    keys.shadowed.add(key)
                elif not is_null(value):
                    keys.shadowed.discard(key)
                keys.newest[key] = offset
    return keys


def without(stored: StoredKey, keys: SimKeys, *, tombstones_below: int) -> StoredKey:
    """Return a batch without removable records."""
    kept = [
        value if value and _stays(offset, value, keys, tombstones_below=tombstones_below) else b""
        for offset, value in stored.records
    ]
    payload = b",".join(kept)
    ref = stored.ref
    return StoredKey(
        BatchRef(ref.base_offset, ref.next_offset, ref.leader_epoch, len(payload)), payload
    )


def _stays(offset: int, value: bytes, keys: SimKeys, *, tombstones_below: int) -> bool:
    key = key_of(value)
    if keys.newest.get(key, -1) > offset:
        return False
    return not is_null(value) or key in keys.shadowed or offset >= tombstones_below


def state_of(records: Iterable[tuple[int, bytes]]) -> dict[int, bytes]:
    """Return the newest value of every key that is not deleted, given records in order."""
    state: dict[int, bytes] = {}
    for _, value in records:
        if value and is_null(value):
            state.pop(key_of(value), None)
        elif value:
            state[key_of(value)] = value
    return state
