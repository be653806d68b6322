"""A stream on this broker: its settings and its partitions."""

from collections.abc import Sequence

from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.schema_check import SchemaCheck
from strandline.config import StreamConfig
from strandline.core.metadata.image import PartitionState
from strandline.errors import PausedError, ReadonlyError, StrandlineError, UnknownPartitionError
from strandline.types import PartitionName
from strandline.values.schema import SchemaVersion


def state_error(name: PartitionName, state: PartitionState) -> StrandlineError | None:
    """Return the error that rejects records in this state; None if they are accepted."""
    if state.is_readonly:
        return ReadonlyError(f"{name} is readonly; make it writable first")
    if state.is_paused:
        return PausedError(f"{name} is paused; publish or subscribe through Liftbridge to wake it")
    return None


class Stream:
    """A stream's settings, and its partitions in order of their numbers."""

    def __init__(self, config: StreamConfig, created_ns: int, partitions: list[Partition]) -> None:
        self.config = config
        self.created_ns = created_ns
        self.partitions = partitions
        self._schema_check: SchemaCheck | None = None

    def validate(self, versions: Sequence[SchemaVersion]) -> None:
        """Check published values against these schema versions, if the stream's settings say so."""
        if not self.config.schema_validation:
            return
        if not versions:
            self._schema_check = None
        elif self._schema_check is None or self._schema_check.versions != versions:
            self._schema_check = SchemaCheck(self.name, versions)
        for partition in self.partitions:
            partition.schema_check = self._schema_check

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def partition(self, number: int) -> Partition:
        """Return the partition of this number.

        Raises:
            UnknownPartitionError: no such partition.
        """
        if not 0 <= number < len(self.partitions):
            raise UnknownPartitionError(
                f"stream {self.name!r} has partitions 0 to {len(self.partitions) - 1}, not {number}"
            )
        return self.partitions[number]
