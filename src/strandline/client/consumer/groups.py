"""Administration of consumer groups: list, describe, reset and delete them."""

from collections.abc import Mapping
from datetime import datetime

from strandline.api import groups as wire
from strandline.client.arguments import offsets_by_partition, text
from strandline.client.consumer.fetcher import Source
from strandline.client.consumer.offset_store import LogOffsetStore, Offsets, Owner
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.reader.reading import OffsetSpec
from strandline.errors import InvalidRequestError, OffsetOutOfRangeError
from strandline.types import PartitionName

TIMEOUT_S = 30.0


class Groups:
    """The consumer groups of a broker or cluster; safe to use from several threads.

    Args:
        source: the client that looks up offsets.
        coordinator: the coordinator of consumer groups.
    """

    def __init__(self, source: Source, coordinator: CoordinatorClient) -> None:
        self._source = source
        self._coordinator = coordinator

    def list(self) -> list[wire.GroupSummary]:
        """Return all groups, sorted by name."""
        return self._coordinator.ask(wire.LIST_GROUPS, None, timeout_s=TIMEOUT_S)

    def info(self, group: str) -> wire.GroupInfo:
        """Return a group's members, assignment and committed offsets.

        Raises:
            UnknownGroupError: there is no such group.
        """
        body = _ref(group)
        [found] = self._coordinator.ask(wire.GROUP_INFO, body, timeout_s=TIMEOUT_S)
        return found

    def committed_offsets(self, group: str) -> dict[PartitionName, int]:
        """Return the next offset to consume of each partition; empty for an unknown group.

        Waits while a transaction may still commit offsets of the group.

        Raises:
            UnstableOffsetCommitError: the transaction stayed open too long; end it.
        """
        return LogOffsetStore(self._coordinator).read(text(group, "a group"))

    def commit(
        self, group: str, offsets: Offsets, *, metadata: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Set committed offsets of a group without members, also for readers that join no group.

        Args:
            group: the group's name.
            offsets: the next offset to consume, by partition.
            metadata: text of at most 4,096 characters that ``info`` shows until the next commit.
            timeout_s: how long to try.

        Raises:
            GroupInUseError: the group has members, so they commit its offsets.
        """
        given = offsets_by_partition(offsets)
        LogOffsetStore(self._coordinator, timeout_s=timeout_s).commit(
            text(group, "a group"), given, Owner(), metadata=metadata
        )

    def reset(
        self, group: str, stream: str, to: OffsetSpec, *, partition: int | None = None
    ) -> Mapping[PartitionName, int]:
        """Set the committed offsets of a group without members in one stream, and return them.

        Args:
            group: the group's name.
            stream: the stream's name.
            to: ``"earliest"``, ``"latest"``, a time, or an offset of one partition.
            partition: the only partition to set; None: all partitions.

        Raises:
            GroupInUseError: the group has members; stop them first.
            InvalidRequestError: one offset is given for several partitions.
            OffsetOutOfRangeError: the offset is beyond the end.
        """
        if isinstance(to, str | datetime):
            found = self._source.offsets(stream, to)
        elif partition is None:
            raise InvalidRequestError(f"offset {to} applies to one partition; name the partition")
        else:
            end = self._source.offsets(stream).get(partition)
            if end is not None and to > end:
                raise OffsetOutOfRangeError(
                    f"offset {to} is beyond the end of {stream}/{partition}, {end}; give at most "
                    "that, or latest"
                )
            found = {partition: to} if end is not None else {}
        offsets = {
            PartitionName(stream, number): at
            for number, at in found.items()
            if partition in (None, number)
        }
        if not offsets:
            raise InvalidRequestError(
                f"stream {stream!r} has no partition {partition}; see 'strandline stream info "
                f"{stream}'"
            )
        self.commit(group, offsets)
        return offsets

    def delete(self, group: str) -> None:
        """Delete a group without members, and its committed offsets.

        Raises:
            UnknownGroupError: there is no such group.
            GroupInUseError: it has members.
        """
        self._coordinator.ask(wire.DELETE_GROUP, _ref(group), timeout_s=TIMEOUT_S)


def _ref(group: str) -> wire.GroupRef:
    return wire.GroupRef(group=text(group, "a group"))
