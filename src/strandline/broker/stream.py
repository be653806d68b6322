"""A stream of this broker: its settings and its partitions."""

from strandline.broker.partition import Partition
from strandline.config import StreamConfig
from strandline.errors import UnknownPartitionError


class Stream:
    """Settings and partitions, in order of their numbers."""

    def __init__(self, config: StreamConfig, created_ns: int, partitions: list[Partition]) -> None:
        self.config = config
        self.created_ns = created_ns
        self.partitions = partitions

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def partition(self, number: int) -> Partition:
        """The partition of that number.

        Raises:
            UnknownPartitionError: there is none.
        """
        if not 0 <= number < len(self.partitions):
            raise UnknownPartitionError(
                f"stream {self.name!r} has partitions 0 to {len(self.partitions) - 1}, not {number}"
            )
        return self.partitions[number]
