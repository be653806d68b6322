"""A stream's partitions, by number, and the check of their values."""

from types import SimpleNamespace

import pytest

from strandline.broker.stream import Stream
from strandline.config import StreamConfig
from strandline.errors import UnknownPartitionError
from strandline.values.evolution import next_version


def test_partitions_are_found_by_number():
    """Numbers start at 0; others are rejected with the range."""
    stream = Stream(StreamConfig(name="s", subject="s"), 5, ["zero", "one"])
    assert (stream.name, stream.created_ns) == ("s", 5)
    assert stream.partition(1) == "one"
    for number in (-1, 2):
        with pytest.raises(UnknownPartitionError, match="partitions 0 to 1"):
            stream.partition(number)


@pytest.mark.parametrize("is_checking", [False, True])
def test_partitions_check_values_if_the_stream_is_to(is_checking):
    """Against all versions there are; the same ones make no new check."""
    config = StreamConfig(name="s", subject="s", schema_validation=is_checking)
    partitions = [SimpleNamespace(schema_check=None) for _ in range(2)]
    stream = Stream(config, 5, partitions)
    first = next_version([], "id INT")
    stream.validate([first])
    checks = [each.schema_check for each in partitions]
    if not is_checking:
        assert checks == [None, None]
        return
    assert checks[0] is checks[1]
    assert checks[0].versions == [first]
    stream.validate([first])
    assert partitions[0].schema_check is checks[0]
    both = [first, next_version([first], "id INT, more STRING")]
    stream.validate(both)
    assert partitions[1].schema_check.versions == both
    stream.validate([])
    assert [each.schema_check for each in partitions] == [None, None]
