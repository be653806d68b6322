"""Where a consumer group keeps its positions: in the log, or in a store of your own.

A store keeps one number for each group and partition, the offset of the next record to consume,
and the epoch under which it was committed. Group epochs only grow, and whoever is given a partition
first *claims* it, so a store can refuse a member that has lost it, whatever that member believes.

Rules: what ``commit`` has returned from survives; ``commit`` and ``claim`` may be repeated.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from strandline.client.coordinator_client import CoordinatorClient
from strandline.errors import UnknownGroupError
from strandline.protocol import groups as wire
from strandline.protocol.transactions import ProducerRef
from strandline.types import PartitionName

Offsets = Mapping[PartitionName, int]
"""The next record to consume in each partition."""
TIMEOUT_S = 30.0


class Owner(NamedTuple):
    """Who consumes a partition: nobody else may commit for it."""

    member: str = ""
    """Empty: nobody; for administration while the group has no members."""
    epoch: int = 0
    """Of the group, when the member's partitions changed last."""


Tell = Callable[[str, Offsets, Owner], None]
"""Notes the offsets of a group for a member: a store's ``commit``, or a transaction."""


class PositionStore(Protocol):
    """Keeps positions; used by one thread at a time."""

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """What was committed, for an owner that begins; no earlier one commits any more.

        Raises:
            UnavailableError: it cannot be read now; retry.
        """
        ...

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Note offsets, all of them or none.

        Raises:
            StaleMemberError: somebody else has claimed one of the partitions since.
            UnavailableError: whether they were noted is unknown; retry.
        """
        ...

    def read(self, group: str) -> dict[PartitionName, int]:
        """Everything that was committed for a group.

        Raises:
            UnavailableError: it cannot be read now; retry.
        """
        ...

    def close(self) -> None:
        """Let go of connections; harmless when repeated."""
        ...


class LogPositions:
    """Positions in the log, kept by the group coordinator: what a consumer uses by default.

    Args:
        coordinator: of the groups.
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
        """What was committed; as ``PositionStore``."""
        known = self.read(group)
        return {name: known[name] for name in partitions if name in known}

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Note offsets; as ``PositionStore``."""
        if not offsets:
            return
        self._commits += 1
        body = wire.CommitOffsets(
            group=group,
            positions=by_stream(offsets),
            member=owner.member,
            epoch=owner.epoch,
            number=self._commits,
        )
        self._coordinator.tell(wire.COMMIT_POSITIONS, body, timeout_s=self._timeout_s)

    def commit_in(
        self, transaction: ProducerRef, group: str, offsets: Offsets, *, owner: Owner
    ) -> None:
        """Note offsets that count when a transaction is committed.

        Raises:
            ProducerFencedError: the transaction is over, or was not let in.
            StrandlineError: as ``commit``.
        """
        body = wire.CommitOffsets(
            group=group,
            positions=by_stream(offsets),
            member=owner.member,
            epoch=owner.epoch,
            transaction=wire.TransactionRef(transaction.producer_id, transaction.epoch),
        )
        self._coordinator.tell(wire.COMMIT_POSITIONS, body, timeout_s=self._timeout_s)

    def read(self, group: str) -> dict[PartitionName, int]:
        """Everything that was committed; as ``PositionStore``.

        Raises:
            UndecidedPositionsError: a transaction has been about to commit some all the time.
            StrandlineError: the coordinator was not reached.
        """
        try:
            [info] = self._coordinator.ask(
                wire.GROUP_INFO,
                wire.GroupRef(group=group, decided=True),
                wire.GroupInfo,
                timeout_s=self._timeout_s,
            )
        except UnknownGroupError:
            return {}
        return by_name(info.positions)

    def close(self) -> None:
        """Nothing to let go of: the connections are the client's."""


def by_stream(offsets: Offsets) -> dict[str, dict[int, int]]:
    """Offsets as they travel."""
    found: dict[str, dict[int, int]] = {}
    for (stream, number), offset in sorted(offsets.items()):
        found.setdefault(stream, {})[number] = offset
    return found


def by_name(positions: Mapping[str, Mapping[int, int]]) -> dict[PartitionName, int]:
    """Offsets as they are used."""
    return {
        PartitionName(stream, number): offset
        for stream, offsets in positions.items()
        for number, offset in offsets.items()
    }
