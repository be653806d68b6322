"""A stream's partitions by number."""

import pytest

from strandline.broker.stream import Stream
from strandline.config import StreamConfig
from strandline.errors import UnknownPartitionError


def test_partitions_are_found_by_number():
    """Numbers start at 0; others are rejected with the range."""
    stream = Stream(StreamConfig(name="s", subject="s"), 5, ["zero", "one"])
    assert (stream.name, stream.created_ns) == ("s", 5)
    assert stream.partition(1) == "one"
    for number in (-1, 2):
        with pytest.raises(UnknownPartitionError, match="partitions 0 to 1"):
            stream.partition(number)
