"""Two position stores at once: the way from one to another, and back.

While members are restarted one by one, some use the old store alone and some both; so each commit
of the new ones goes to both:

1. every member uses ``DualPositions(old, new, reads="old")``: the new store fills up;
2. every member uses ``DualPositions(old, new, reads="new")``: from here 1 is the way back;
3. every member uses ``new`` alone.

Rules: what only the old store has is taken from there. Whoever begins with a partition brings both
stores to the same. A commit that reaches one store only is repeated; records are consumed again at
worst.
"""

from collections.abc import Collection
from typing import Literal

from strandline.client.positions import Offsets, Owner, PositionStore
from strandline.types import PartitionName


class DualPositions:
    """A ``PositionStore`` of two.

    Args:
        old: the one that is left.
        new: the one that is moved to.
        reads: which one says where to begin.
    """

    def __init__(
        self, old: PositionStore, new: PositionStore, *, reads: Literal["old", "new"]
    ) -> None:
        self._old = old
        self._new = new
        self._reads = reads

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """What was committed, for an owner that begins; as ``PositionStore``.

        Brings both to the same, so that either may be read next even if nothing is committed.
        """
        old = self._old.claim(group, partitions, owner)
        new = self._new.claim(group, partitions, owner)
        merged = self._merged(old, new)
        for store, known in ((self._old, old), (self._new, new)):
            behind = {name: at for name, at in merged.items() if known.get(name) != at}
            if behind:
                store.commit(group, behind, owner)
        return merged

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Note offsets in both; as ``PositionStore``."""
        # The one that counts comes last: it never knows more than the way back does.
        first, last = (self._new, self._old) if self._reads == "old" else (self._old, self._new)
        first.commit(group, offsets, owner)
        last.commit(group, offsets, owner)

    def read(self, group: str) -> dict[PartitionName, int]:
        """Everything that was committed; as ``PositionStore``."""
        return self._merged(self._old.read(group), self._new.read(group))

    def close(self) -> None:
        """Let go of both."""
        try:
            self._old.close()
        finally:
            self._new.close()

    def _merged(
        self, old: dict[PartitionName, int], new: dict[PartitionName, int]
    ) -> dict[PartitionName, int]:
        return old if self._reads == "old" else {**old, **new}
