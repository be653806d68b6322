"""Partitions without a replica on this broker: known by name, so that clients are redirected."""

from pathlib import Path
from typing import NoReturn

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.partition import Partition
from strandline.config import StreamConfig
from strandline.errors import NotLeaderError, StrandlineError
from strandline.storage.log import Log
from strandline.storage.segment import Segment
from strandline.types import LeaderEpoch, LogId, Offset, PartitionName, TimestampNs


class NoLog(Log):
    """The log of a partition without a replica here: empty, and without files."""

    def __init__(self) -> None:
        self.directory = Path()
        self.poisoned = False
        self.log_start_offset = Offset(0)

    @property
    def log_end_offset(self) -> Offset:
        """Always 0."""
        return Offset(0)

    @property
    def size_bytes(self) -> int:
        """Always 0."""
        return 0

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Always empty."""
        return ()


class RemotePartition(Partition):
    """A partition without a replica on this broker: every request is redirected to its leader."""

    def __init__(
        self,
        name: PartitionName,
        config: StreamConfig,
        *,
        log_id: LogId,
        admission: Admission[Partition],
    ) -> None:
        super().__init__(
            name,
            config,
            NoLog(),
            log_id=log_id,
            leader_epoch=LeaderEpoch(0),
            admission=admission,
            is_led=False,
        )
        self.describe(NotLeaderError(f"{name} is kept by other brokers"))

    def describe(self, error: StrandlineError) -> None:
        """Set the error that names the leader, or the reason why there is none."""
        self.remote_error = self._redirect = error
        self.set_write_error(error)

    def read(
        self,
        offset: Offset,  # noqa: ARG002  nothing to read
        bytes_max: int,  # noqa: ARG002  nothing to read
        *,
        below: Offset | None = None,  # noqa: ARG002  nothing to read
    ) -> NoReturn:
        """Redirect the reader.

        Raises:
            NotLeaderError: always.
        """
        raise self._redirect

    def offset_for_timestamp(self, timestamp_ns: TimestampNs) -> NoReturn:  # noqa: ARG002  nothing to look in
        """Redirect the reader.

        Raises:
            NotLeaderError: always.
        """
        raise self._redirect
