"""A member's log in memory: the entries since the last snapshot, and three indexes.

Invariants:
- indexes are dense: ``entries[i].index == base_index + 1 + i``;
- ``base_index <= stable_index <= last_index``, where entries up to ``stable_index`` are on disk;
- ``applied_index <= commit_index <= last_index``; committed entries are never truncated.

Must not know roles or messages.
"""

from collections.abc import Iterable, Sequence

import msgspec

from strandline.core.raft.messages import Index, Kind, Members, RaftEntry, Snapshot, Term

ENTRY_OVERHEAD_BYTES = 24
"""What each entry adds to its data when the size of a batch is limited."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Members)


class RaftLog:
    """A member's log: a snapshot, and the entries after ``base_index``.

    Args:
        snapshot: the newest one.
        base: index and term of the entry before the first one kept; at or below the snapshot's.
        entries: those on disk after the base.
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
        """The index of the newest entry, on disk or not."""
        return Index(self.base_index + len(self._entries))

    @property
    def last_term(self) -> Term:
        """The term of the newest entry."""
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def stored_index(self) -> Index:
        """The last entry that is committed and on our own disk, so that every restart finds it.

        Entries on disk that are not committed may be replaced by a later leader; committed ones
        never are.
        """
        return min(self.commit_index, self.stable_index)

    def term_at(self, index: int) -> Term | None:
        """Return an entry's term; None if the entry is not, or no longer, in this log."""
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index:
            return self._entries[index - self.base_index - 1].term
        return None

    def has(self, index: int, term: int) -> bool:
        """Return whether the log has the entry with that term; then all before it are equal too."""
        return self.term_at(index) == term

    def between(self, first: int, last: int) -> list[RaftEntry]:
        """Return the entries from ``first`` to ``last``, both included, as far as they are kept."""
        start = max(first - self.base_index - 1, 0)
        return self._entries[start : max(last - self.base_index, 0)]

    def batch_from(self, first: int, bytes_max: int) -> tuple[RaftEntry, ...]:
        """Return entries from ``first`` on up to a size, at least one if there is any."""
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
        """Return the newest membership in the log, committed or not, and its entry's index.

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
        """Append entries, which are not on disk yet."""
        assert not entries or entries[0].index == self.last_index + 1, "indexes are dense"
        self._entries.extend(entries)

    def truncate_from(self, index: int) -> None:
        """Truncate the entries from ``index`` on, which a new leader does not have."""
        assert index > self.commit_index, "a committed entry is never removed"
        del self._entries[index - self.base_index - 1 :]
        self.stable_index = Index(min(self.stable_index, index - 1))

    def mark_stable(self, index: Index, term: Term) -> None:
        """Note that entries up to ``index`` are on disk, unless they were replaced meanwhile."""
        if self.has(index, term):
            self.stable_index = max(self.stable_index, index)

    def take_committed(self) -> tuple[RaftEntry, ...]:
        """Return the entries to apply now, each once: those committed and on our own disk."""
        end = self.stored_index
        if end <= self.applied_index:
            return ()
        entries = tuple(self.between(self.applied_index + 1, end))
        self.applied_index = end
        return entries

    def compact(self, index: Index, data: bytes, *, keep: int) -> Snapshot:
        """Make a snapshot at ``index`` and drop the entries it covers, except the last ``keep``.

        Args:
            index: the index of an applied entry.
            data: the state machine right after that entry.
            keep: how many entries to keep for followers that are a little behind.
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
        """Replace everything that a received snapshot covers.

        Later entries stay if they continue the snapshot; otherwise an earlier leader wrote them.
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
    """Decode the membership in an entry.

    Raises:
        ValueError: the bytes are no membership.
    """
    return _decoder.decode(data)


def encode_members(members: Members) -> bytes:
    """Encode the data of an entry of kind ``MEMBERS``."""
    return _encoder.encode(members)
