"""A stream on this broker: its settings and its partitions."""

from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.schema_check import SchemaCheck
from strandline.config import StreamConfig
from strandline.core.metadata.image import PartitionState, StreamImage
from strandline.errors import PausedError, ReadonlyError, StrandlineError, UnknownPartitionError
from strandline.types import PartitionName


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

    def validate(self, image: StreamImage) -> None:
        """Check published values against the schema in the metadata, if the settings say so."""
        self.config = image.config
        versions = image.schema if image.config.schema_validation else ()
        check = self.partitions[0].schema_check if self.partitions else None
        if not versions:
            if check is None:
                return  # nor has any other: a partition begins without
            check = None
        elif check is None or check.versions != versions:
            check = SchemaCheck(self.name, versions)
        for partition in self.partitions:
            partition.schema_check = check

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
