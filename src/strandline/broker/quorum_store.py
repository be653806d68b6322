"""The durable state of a consensus member: term and vote, a snapshot, and entries.

Entries are stored as records of a log like any other, with a log id of its own: entry ``i`` is the
record at offset ``i - 1``, and its term is the leader epoch of its batch. So they go through the
broker's journal, in the same group commit as everything else. Term and vote change only at
elections. They have a small file, stored twice, and so has the snapshot; a file is always replaced
as a whole, and its first line is its checksum.

Rules: if both copies of a file are corrupt, or the log is corrupt, loading fails: a member that
forgot its vote could vote twice.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from strandline.checksum import crc32c
from strandline.core.raft.messages import HardState, Index, Kind, Members, RaftEntry, Snapshot, Term
from strandline.errors import UNDECODABLE, CorruptBatchError
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_records
from strandline.record.decode import decode_batches, walk
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.twin_file import read_with_twin, write_with_twin
from strandline.types import LeaderEpoch, LogId, Offset, TimestampNs

LOG_ID = LogId(0)
"""The log id of the entries; the ids of streams' logs start at 1."""
VOTE_NAME = "quorum-vote"
SNAPSHOT_NAME = "quorum-snapshot"
SUBJECT = "quorum"
_READ_BYTES = 1 << 20

_encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T", HardState, Snapshot)


class _StoredEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry as it is stored in the value of its record."""

    kind: Kind
    data: bytes


_decode_entry = msgspec.msgpack.Decoder(_StoredEntry).decode


class QuorumStore:
    """The durable state of one member.

    Args:
        directory: the directory of the small files.
        disk: the file system.
        log: the log of the entries; replaced by ``rebind`` after the storage was reopened.
    """

    def __init__(self, directory: Path, *, disk: Disk, log: Log) -> None:
        self._vote = directory / VOTE_NAME
        self._snapshot = directory / SNAPSHOT_NAME
        self._disk = disk
        self.log = log

    def load(self, founders: Members) -> tuple[HardState, Snapshot, list[RaftEntry]]:
        """Load the state: term and vote, the snapshot, and the entries after it.

        Args:
            founders: the members, if the group has no snapshot yet.

        Raises:
            CorruptBatchError: a file is corrupt, or entries are missing.
        """
        hard = self._load(self._vote, HardState) or HardState()
        snapshot = self._load(self._snapshot, Snapshot) or Snapshot(members=founders)
        if self.log.log_end_offset < snapshot.index:
            # A crash came after the snapshot was stored and before the log was truncated to it.
            self.log.restart_at(snapshot.index)
        entries = [entry for entry in self._entries() if entry.index > snapshot.index]
        if entries and entries[0].index != snapshot.index + 1:
            raise CorruptBatchError(
                f"entries {snapshot.index + 1} to {entries[0].index - 1} of the metadata are lost",
                file=str(self.log.directory),
            )
        return hard, snapshot, entries

    def save_hard(self, hard: HardState) -> None:
        """Store term and vote; durable on return.

        Raises:
            UnavailableError: the file cannot be written and is unchanged.
        """
        write_with_twin(self._vote, _sealed(hard), disk=self._disk)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot and delete the entries that it covers; durable on return.

        Raises:
            UnavailableError: the snapshot cannot be written; the old one is unchanged.
        """
        write_with_twin(self._snapshot, _sealed(snapshot), disk=self._disk)
        if snapshot.index > self.log.log_end_offset:
            self.log.restart_at(snapshot.index)
        else:
            self.log.delete_before(snapshot.index)

    def install(self, snapshot: Snapshot, *, synced_sequence: int | None = None) -> None:
        """Save a snapshot received from the leader; delete the entries if they do not continue it.

        Args:
            snapshot: the snapshot of the leader.
            synced_sequence: as for ``Log.truncate_to``.

        Raises:
            UnavailableError: the snapshot cannot be written.
        """
        offset = Offset(snapshot.index - 1)
        if self.log.log_end_offset > offset and self._term_at(offset) != snapshot.term:
            start = max(offset, self.log.log_start_offset)
            self.log.truncate_to(start, synced_sequence=synced_sequence)
        self.save_snapshot(snapshot)

    def batches(self, entries: Iterable[RaftEntry], now_ns: TimestampNs) -> list[bytearray]:
        """Return the entries as batches, one each.

        Truncation removes whole batches, so an acknowledged entry must not share a batch with an
        entry that a new leader may replace.

        Args:
            entries: in order of index.
            now_ns: the timestamp of their records.
        """
        return [_batch(entry, now_ns) for entry in entries]

    def has_room(self, index: Index) -> bool:
        """Whether the log ends where the entry at ``index`` belongs."""
        return self.log.log_end_offset == index - 1

    def make_room(self, index: Index, *, synced_sequence: int | None = None) -> None:
        """Truncate the log so that the entry at ``index`` can be appended.

        Args:
            index: the index of the next entry.
            synced_sequence: as for ``Log.truncate_to``.

        Raises:
            UnavailableError: the log cannot be truncated.
        """
        end = self.log.truncate_to(index - 1, synced_sequence=synced_sequence)
        assert end == index - 1, "entries have no gaps, and each its batch"

    def _term_at(self, offset: Offset) -> Term | None:
        if not self.log.log_start_offset <= offset < self.log.log_end_offset:
            return None
        found = self.log.read(offset, 1)
        return Term(read_header(found.buffer).leader_epoch) if found.buffer else None

    def _entries(self) -> list[RaftEntry]:
        """Return all entries in the log."""
        entries: list[RaftEntry] = []
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            found = self.log.read(offset, _READ_BYTES)
            for position, length in walk(found.buffer):
                batch = found.buffer[position : position + length]
                entries += _entries_of(batch)
            offset = found.next_offset
        return entries

    def _load(self, path: Path, kind: type[T]) -> T | None:
        def decoded(data: bytes) -> T:
            crc, _, body = data.partition(b"\n")
            try:
                if int(crc, 16) == crc32c(body):
                    return msgspec.msgpack.decode(body, type=kind)
            except UNDECODABLE as error:
                raise _corrupt(path) from error
            raise _corrupt(path)

        return read_with_twin(path, decoded, disk=self._disk)


def _batch(entry: RaftEntry, now_ns: TimestampNs) -> bytearray:
    """Return an entry as a batch."""
    stamp = Stamp(Offset(entry.index - 1), LeaderEpoch(entry.term), now_ns, "none")
    return encode_records([_encode(_StoredEntry(entry.kind, entry.data))], [SUBJECT], stamp)


def _entries_of(batch: memoryview) -> list[RaftEntry]:
    """Return the entries in a batch."""
    term = Term(read_header(batch).leader_epoch)
    entries: list[RaftEntry] = []
    for rows in decode_batches(bytes(batch), columns=["offset", "value"]):
        for offset, value in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            stored = _decode_entry(value)
            entries.append(RaftEntry(Index(offset + 1), term, stored.kind, stored.data))
    return entries


def _sealed(value: HardState | Snapshot) -> bytes:
    """Return the contents of a file: checksum, then value."""
    body = _encode(value)
    return b"%08x\n%b" % (crc32c(body), body)


def _corrupt(path: Path) -> CorruptBatchError:
    return CorruptBatchError("checksum mismatch", file=str(path))
