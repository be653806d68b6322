"""The log as a member holds it in memory: entries since the last snapshot, and three marks.

Invariants:
- indexes are dense: ``entries[i].index == base_index + 1 + i``;
- ``base_index <= stable_index <= last_index``, where entries up to ``stable_index`` are on disk;
- ``applied_index <= commit_index <= last_index``; committed entries are never removed from the end.

Must not know of terms of office, members or messages.
"""

from collections.abc import Iterable, Sequence

import msgspec

from strandline.core.raft.messages import Index, Kind, Members, RaftEntry, Snapshot, Term

ENTRY_OVERHEAD_BYTES = 24
"""Counted for an entry besides its data when batches are cut to size."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Members)


class RaftLog:
    """Entries after ``base_index``, which a snapshot covers or which come later than it.

    Args:
        snapshot: the newest one.
        base: index and term of the entry before the first one kept; at or below the snapshot's.
        entries: what is on disk after the base.
    """

    def __init__(
        self, snapshot: Snapshot, *, base: tuple[Index, Term], entries: Iterable[RaftEntry]
    ) -> None:
        self.snapshot = snapshot
        self.base_index, self.base_term = base
        self._entries = list(entries)
        self.commit_index = snapshot.index
        self.applied_index = snapshot.index
        self.stable_index = self.last_index
        assert self.base_index <= snapshot.index <= self.last_index, "no gap behind the snapshot"

    @property
    def last_index(self) -> Index:
        """Of the newest entry, on disk or not."""
        return Index(self.base_index + len(self._entries))

    @property
    def last_term(self) -> Term:
        """Of the newest entry."""
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def stored_index(self) -> Index:
        """The last entry that is committed and on our own disk: every later start finds it there.

        What is on disk and not committed may be replaced by a later leader's entries, fewer than
        ours; what is committed never is.
        """
        return min(self.commit_index, self.stable_index)

    def term_at(self, index: int) -> Term | None:
        """The entry's term; None if it is not known here (any more)."""
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index:
            return self._entries[index - self.base_index - 1].term
        return None

    def has(self, index: int, term: int) -> bool:
        """Whether the entry is here with that term, so that all before it are equal too."""
        return self.term_at(index) == term

    def between(self, first: int, last: int) -> list[RaftEntry]:
        """Entries from ``first`` to ``last``, both included, as far as they are kept."""
        start = max(first - self.base_index - 1, 0)
        return self._entries[start : max(last - self.base_index, 0)]

    def batch_from(self, first: int, bytes_max: int) -> tuple[RaftEntry, ...]:
        """Entries from ``first`` on, at least one if there is any, up to so many bytes."""
        batch: list[RaftEntry] = []
        size = 0
        for position in range(first - self.base_index - 1, len(self._entries)):
            entry = self._entries[position]
            size += len(entry.data) + ENTRY_OVERHEAD_BYTES
            if batch and size > bytes_max:
                break
            batch.append(entry)
        return tuple(batch)

    def members(self, *, before: int | None = None) -> tuple[Members, Index]:
        """The newest membership in the log, committed or not, and the entry that holds it.

        A membership counts from the moment its entry is in the log (thesis 4.1).

        Args:
            before: only those in entries before this index; None: all.
        """
        for entry in reversed(self._entries):
            if entry.index <= self.snapshot.index:
                break
            if entry.kind is Kind.MEMBERS and (before is None or entry.index < before):
                return decode_members(entry.data), entry.index
        return self.snapshot.members, self.snapshot.index

    # Changing it

    def append(self, entries: Sequence[RaftEntry]) -> None:
        """Add entries at the end, not yet on disk."""
        assert not entries or entries[0].index == self.last_index + 1, "indexes are dense"
        self._entries.extend(entries)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from ``index`` on, which a new leader never had."""
        assert index > self.commit_index, "a committed entry is never removed"
        del self._entries[index - self.base_index - 1 :]
        self.stable_index = Index(min(self.stable_index, index - 1))

    def mark_stable(self, index: Index, term: Term) -> None:
        """The entries up to ``index`` are on disk, unless they were replaced meanwhile."""
        if self.has(index, term):
            self.stable_index = max(self.stable_index, index)

    def take_committed(self) -> tuple[RaftEntry, ...]:
        """Entries to apply now, each handed out once: committed, and on our own disk."""
        end = self.stored_index
        if end <= self.applied_index:
            return ()
        entries = tuple(self.between(self.applied_index + 1, end))
        self.applied_index = end
        return entries

    def compact(self, index: Index, data: bytes, *, keep: int) -> Snapshot:
        """Make a snapshot at ``index`` and drop the entries it covers, but for ``keep`` of them.

        Args:
            index: an applied entry's.
            data: the state machine right after it.
            keep: entries left for followers a little behind.
        """
        assert self.snapshot.index < index <= self.applied_index, "only what was applied"
        members = self.snapshot.members
        for entry in self.between(self.snapshot.index + 1, index):
            if entry.kind is Kind.MEMBERS:
                members = decode_members(entry.data)
        term = self.term_at(index)
        assert term is not None, "applied entries above the snapshot are here"
        self.snapshot = Snapshot(index, term, members, data)
        cut = max(self.base_index, index - keep)
        cut_term = self.term_at(cut)
        assert cut_term is not None, "the base and everything above it have terms"
        del self._entries[: cut - self.base_index]
        self.base_index, self.base_term = Index(cut), cut_term
        return self.snapshot

    def install(self, snapshot: Snapshot) -> None:
        """Take another's snapshot instead of everything it covers.

        Entries after it stay if they go on from it; otherwise an earlier leader's are dropped.
        """
        assert snapshot.index > self.commit_index, "never back"
        keeps_tail = self.has(snapshot.index, snapshot.term)
        tail = self.between(snapshot.index + 1, self.last_index) if keeps_tail else []
        self._entries = tail
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.stable_index = max(self.stable_index, snapshot.index) if keeps_tail else snapshot.index
        self.snapshot = snapshot
        self.commit_index = self.applied_index = snapshot.index


def decode_members(data: bytes) -> Members:
    """The membership in an entry.

    Raises:
        ValueError: the bytes are no membership.
    """
    return _decoder.decode(data)


def encode_members(members: Members) -> bytes:
    """The data of an entry of kind ``MEMBERS``."""
    return _encoder.encode(members)
