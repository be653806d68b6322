"""Stores for a consumer group's committed offsets: the log by default, or the user's store.

A store keeps, for each group and partition, the offset of the next record to consume and the epoch
in which it was committed. Group epochs only grow, and each new owner first *claims* a partition, so
that a store can reject a member that has lost it.

Rules: an offset is durable when ``commit`` returns; ``commit`` and ``claim`` may be repeated.
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
    """The owner of a partition: only it may commit the partition's offset."""

    member: str = ""
    """The member's id; empty: no member, but an administrator of a group without members."""
    epoch: int = 0
    """The group's epoch at the last change of the member's partitions."""


CommitCall = Callable[[str, Offsets, Owner], None]
"""A function that commits offsets of a group for an owner, in a store or a transaction."""


class OffsetStore(Protocol):
    """A store for committed offsets; used by one thread at a time."""

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """Return the committed offsets for a new owner, and reject commits of earlier owners.

        Raises:
            UnavailableError: the store cannot be read now; retry.
        """
        ...

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Commit all offsets, or none.

        Raises:
            StaleMemberError: another owner has claimed one of the partitions.
            UnavailableError: the offsets may or may not be committed; retry.
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
    """The store in the log, at the group coordinator: the default of consumers.

    Args:
        coordinator: the coordinator of consumer groups.
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
        owner: Owner,  # noqa: ARG002 - the coordinator knows the owner already
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
            ProducerFencedError: the transaction has ended, or has not announced offsets.
            StrandlineError: as for ``commit``.
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
            UnstableOffsetCommitError: all the time, a transaction could still commit some of them.
            StrandlineError: the coordinator did not answer.
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
        """Do nothing: the connections belong to the client."""


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
