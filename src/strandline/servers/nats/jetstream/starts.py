"""The position where a new consumer begins; found on threads, since files are read.

Rules: a consumer of the last record per subject first gets each subject's newest record of those
    that
exist, in their order, and then all records published later. Which records these are is not stored:
a new leader finds them again, from the end that the log had when the consumer was created.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from strandline.broker.write_path.partition import Partition
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.records import last_message, tally_subjects
from strandline.servers.nats.jetstream.times import parse_time

SEQUENCE: Final = "q"
"""An item of eight bytes: there may be millions."""


class SubjectHeads:
    """The newest record of each subject at a certain end of the log.

    Args:
        sequences: the records' sequences, in order.
        end: the last sequence of the log at that moment.
    """

    def __init__(self, sequences: "array[int]", end: int) -> None:
        self._sequences = sequences
        self.end = end

    def __contains__(self, sequence: int) -> bool:
        at = bisect_left(self._sequences, sequence)
        return at < len(self._sequences) and self._sequences[at] == sequence

    def after(self, sequence: int) -> int | None:
        """Return the first of the sequences after a given one; None if there is none."""
        at = bisect_right(self._sequences, sequence)
        return self._sequences[at] if at < len(self._sequences) else None

    def count_after(self, sequence: int) -> int:
        """Return how many of the sequences follow a given one."""
        return len(self._sequences) - bisect_right(self._sequences, sequence)


def find_heads(partition: Partition, patterns: tuple[str, ...], end: int) -> SubjectHeads:
    """Return the newest record, up to a sequence, of each matching subject.

    Raises:
        ApiRejection: there is no subject index, and more would have to be read than the limit.
    """
    tallies = tally_subjects(partition, *patterns, stop=end)
    newest = sorted(each.last + 1 for each in tallies.values())
    return SubjectHeads(array(SEQUENCE, newest), end)


def start_of(partition: Partition, config: ConsumerConfig) -> int:
    """Return the sequence before the first record that a new consumer gets."""
    first, end = partition.log_start_offset, partition.last_stable_offset
    match config.deliver_policy:
        case "new":
            return end
        case "by_start_sequence":
            return max(0, config.opt_start_seq - 1)
        case "by_start_time":
            return partition.offset_for_timestamp(parse_time(config.opt_start_time))
        case "last":
            found = [last_message(partition, each) for each in config.filters or (">",)]
            sequences = [each.sequence for each in found if each is not None]
            return max(sequences) - 1 if sequences else end
    return first
