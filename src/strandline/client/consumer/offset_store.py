"""Stores of a consumer group's committed offsets: the log by default, or a store of the user's.

A store keeps for each group and partition the offset of the next record to consume and the epoch
under which it was committed. Group epochs only grow, and each new owner first *claims* a partition,
so that a store can reject a member that has lost it.

Rules: an offset is durable once ``commit`` has returned; ``commit`` and ``claim`` may be repeated.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from strandline.api import groups as wire
from strandline.api.transactions import ProducerRef
from strandline.client.coordinator_client import CoordinatorClient
from strandline.errors import UnknownGroupError
from strandline.types import PartitionName

Offsets = Mapping[PartitionName, int]
"""The next offset to consume of each partition."""
TIMEOUT_S = 30.0


class Owner(NamedTuple):
    """The owner of a partition, the only one that may commit its offset."""

    member: str = ""
    """Empty: no member; for administration while the group has none."""
    epoch: int = 0
    """The group's epoch at the last change of the member's partitions."""


CommitCall = Callable[[str, Offsets, Owner], None]
"""Commits the offsets of a group for an owner: a store's ``commit``, or a transaction's."""


class OffsetStore(Protocol):
    """Keeps committed offsets; used by one thread at a time."""

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """Return the committed offsets for a new owner, and reject commits of earlier owners.

        Raises:
            UnavailableError: the store cannot be read now; retry.
        """
        ...

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Commit offsets, all of them or none.

        Raises:
            StaleMemberError: another owner has claimed one of the partitions.
            UnavailableError: whether they were committed is unknown; retry.
        """
        ...

    def read(self, group: str) -> dict[PartitionName, int]:
        """Return all committed offsets of a group.

        Raises:
            UnavailableError: the store cannot be read now; retry.
        """
        ...

    def close(self) -> None:
        """Close the connections; has no effect when repeated."""
        ...


class LogOffsetStore:
    """Offsets in the log, kept by the group coordinator: the default of consumers.

    Args:
        coordinator: the coordinator of the groups.
        timeout_s: how long to try.
    """

    def __init__(self, coordinator: CoordinatorClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self._coordinator = coordinator
        self._timeout_s = timeout_s
        self._commits = 0

    def claim(
        self,
        group: str,
        partitions: Collection[PartitionName],
        owner: Owner,  # noqa: ARG002 - the coordinator knows who it gave them to
    ) -> dict[PartitionName, int]:
        """Return the committed offsets; see ``OffsetStore``."""
        known = self.read(group)
        return {name: known[name] for name in partitions if name in known}

    def commit(
        self, group: str, offsets: Offsets, owner: Owner, *, metadata: str | None = None
    ) -> None:
        """Commit offsets; see ``OffsetStore``. ``metadata`` is shown until the next commit."""
        if not offsets and metadata is None:
            return
        self._commits += 1
        body = wire.CommitOffsets(
            group=group,
            positions=by_stream(offsets),
            member=owner.member,
            epoch=owner.epoch,
            number=self._commits,
            metadata=metadata or "",
        )
        self._coordinator.ask(wire.COMMIT_OFFSETS, body, timeout_s=self._timeout_s)

    def commit_in(
        self, transaction: ProducerRef, group: str, offsets: Offsets, *, owner: Owner
    ) -> None:
        """Commit offsets as part of a transaction.

        Raises:
            ProducerFencedError: the transaction is over, or has not added the group.
            StrandlineError: as ``commit``.
        """
        body = wire.CommitOffsets(
            group=group,
            positions=by_stream(offsets),
            member=owner.member,
            epoch=owner.epoch,
            transaction=wire.TransactionRef(transaction.producer_id, transaction.epoch),
        )
        self._coordinator.ask(wire.COMMIT_OFFSETS, body, timeout_s=self._timeout_s)

    def read(self, group: str) -> dict[PartitionName, int]:
        """Return all committed offsets; see ``OffsetStore``.

        Raises:
            UnstableOffsetCommitError: a transaction has kept some of them undecided all the time.
            StrandlineError: the coordinator was not reached.
        """
        try:
            [info] = self._coordinator.ask(
                wire.GROUP_INFO,
                wire.GroupRef(group=group, decided=True),
                timeout_s=self._timeout_s,
            )
        except UnknownGroupError:
            return {}
        return by_name(info.positions)

    def close(self) -> None:
        """Do nothing: the connections are the client's."""


def by_stream(offsets: Offsets) -> dict[str, dict[int, int]]:
    """Convert offsets to their wire form."""
    found: dict[str, dict[int, int]] = {}
    for (stream, number), offset in sorted(offsets.items()):
        found.setdefault(stream, {})[number] = offset
    return found


def by_name(positions: Mapping[str, Mapping[int, int]]) -> dict[PartitionName, int]:
    """Convert offsets from their wire form."""
    return {
        PartitionName(stream, number): offset
        for stream, offsets in positions.items()
        for number, offset in offsets.items()
    }
