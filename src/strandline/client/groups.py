"""Consumer groups as an administrator sees them: which there are, how far they have come."""

from collections.abc import Mapping
from datetime import datetime

from strandline.client.arguments import offsets_by_partition, text
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.fetcher import Source
from strandline.client.positions import LogPositions, Offsets, Owner
from strandline.client.reading import Place
from strandline.errors import InvalidRequestError, OffsetOutOfRangeError
from strandline.protocol import groups as wire
from strandline.types import PartitionName

TIMEOUT_S = 30.0


class Groups:
    """The consumer groups of a broker or cluster; safe to use from several threads.

    Args:
        source: where records are.
        office: the coordinator of groups.
    """

    def __init__(self, source: Source, office: CoordinatorClient) -> None:
        self._source = source
        self._office = office

    def list(self) -> list[wire.GroupSummary]:
        """All groups, by name."""
        return self._office.ask(wire.LIST_GROUPS, None, wire.GroupSummary, timeout_s=TIMEOUT_S)

    def info(self, group: str) -> wire.GroupInfo:
        """Members of a group, what each may consume, and the positions.

        Raises:
            UnknownGroupError: there is none.
        """
        body = _ref(group)
        [found] = self._office.ask(wire.GROUP_INFO, body, wire.GroupInfo, timeout_s=TIMEOUT_S)
        return found

    def positions(self, group: str) -> dict[PartitionName, int]:
        """The next record to consume, of each partition; empty for a group that nobody knows.

        Waits while a transaction is about to commit positions of the group.

        Raises:
            UndecidedPositionsError: for too long; end the transaction.
        """
        return LogPositions(self._office).read(text(group, "a group"))

    def commit(self, group: str, offsets: Offsets, *, timeout_s: float = TIMEOUT_S) -> None:
        """Set positions of a group without members; also for consumers that are in no group.

        Args:
            group: its name.
            offsets: the next record to consume, by partition.
            timeout_s: how long to try.

        Raises:
            GroupInUseError: it has members, who commit its positions.
        """
        given = offsets_by_partition(offsets)
        LogPositions(self._office, timeout_s=timeout_s).commit(
            text(group, "a group"), given, Owner()
        )

    def reset(
        self, group: str, stream: str, to: Place, *, partition: int | None = None
    ) -> Mapping[PartitionName, int]:
        """Let a group without members go on elsewhere in a stream; returns where.

        Args:
            group: its name.
            stream: where.
            to: ``"earliest"``, ``"latest"``, a time, or an offset of one partition.
            partition: only this one; None: all.

        Raises:
            GroupInUseError: it has members; stop them first.
            InvalidRequestError: an offset for several partitions.
            OffsetOutOfRangeError: an offset beyond the end.
        """
        if isinstance(to, str | datetime):
            found = self._source.offsets(stream, to)
        elif partition is None:
            raise InvalidRequestError(f"offset {to} is a place in one partition; name it")
        else:
            end = self._source.offsets(stream).get(partition)
            if end is not None and to > end:
                raise OffsetOutOfRangeError(
                    f"offset {to} is beyond the end of {stream}/{partition}, {end}: give one up to "
                    "that, or latest"
                )
            found = {partition: to} if end is not None else {}
        offsets = {
            PartitionName(stream, number): at
            for number, at in found.items()
            if partition in (None, number)
        }
        if not offsets:
            raise InvalidRequestError(f"stream {stream!r} has no partition {partition}")
        self.commit(group, offsets)
        return offsets

    def delete(self, group: str) -> None:
        """Forget a group without members, and its positions.

        Raises:
            UnknownGroupError, GroupInUseError: as they say.
        """
        self._office.tell(wire.DELETE_GROUP, _ref(group), timeout_s=TIMEOUT_S)


def _ref(group: str) -> wire.GroupRef:
    return wire.GroupRef(group=text(group, "a group"))
