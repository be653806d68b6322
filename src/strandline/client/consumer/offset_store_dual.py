"""Two offset stores at once, for migrating from one to the other, or back.

Members are restarted one by one, so for a while some use the old store alone and some use both. A
member that uses both commits to both:

1. every member uses ``DualOffsetStore(old, new, reads="old")``, which fills the new store;
2. every member uses ``DualOffsetStore(old, new, reads="new")``; going back to 1 is possible;
3. every member uses ``new`` alone.

Rules: offsets that only the old store has are read from it. A claim makes both stores equal. A
commit that reached only one store is repeated; at worst records are consumed twice.
"""

from collections.abc import Collection
from typing import Literal

from strandline.client.consumer.offset_store import Offsets, OffsetStore, Owner
from strandline.types import PartitionName


class DualOffsetStore:
    """An ``OffsetStore`` that writes to two stores.

    Args:
        old: the store to migrate from.
        new: the store to migrate to.
        reads: the store whose offsets are used.
    """

    def __init__(self, old: OffsetStore, new: OffsetStore, *, reads: Literal["old", "new"]) -> None:
        self._old = old
        self._new = new
        self._reads = reads

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """Return the committed offsets for a new owner; see ``OffsetStore``.

        Makes both stores equal, so that the next read may use either even without a commit.
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
        """Commit offsets to both; see ``OffsetStore``."""
        # The store that is used comes last, so it is never ahead of the other.
        first, last = (self._new, self._old) if self._reads == "old" else (self._old, self._new)
        first.commit(group, offsets, owner)
        last.commit(group, offsets, owner)

    def read(self, group: str) -> dict[PartitionName, int]:
        """Return all committed offsets; see ``OffsetStore``."""
        return self._merged(self._old.read(group), self._new.read(group))

    def close(self) -> None:
        """Close both stores."""
        try:
            self._old.close()
        finally:
            self._new.close()

    def _merged(
        self, old: dict[PartitionName, int], new: dict[PartitionName, int]
    ) -> dict[PartitionName, int]:
        return old if self._reads == "old" else {**old, **new}
