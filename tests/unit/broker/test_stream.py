"""A stream's partitions, by number, and the check of their values."""

from types import SimpleNamespace

import msgspec
import pytest

from strandline.broker.stream import Stream
from strandline.config import StreamConfig
from strandline.core.metadata.image import StreamImage
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
    """Against all versions there are; the same ones make no new check; and it can be changed."""
    config = StreamConfig(name="s", subject="s", schema_validation=is_checking)
    partitions = [SimpleNamespace(schema_check=None) for _ in range(2)]
    stream = Stream(config, 5, partitions)

    def checks(*versions, config=config):
        stream.validate(StreamImage(config=config, created_ns=5, partitions=(), schema=versions))
        return [each.schema_check for each in partitions]

    first = next_version([], "id INT")
    found = checks(first)
    if not is_checking:
        assert found == [None, None]
        config = msgspec.structs.replace(config, schema_validation=True)
        found = checks(first, config=config)
    assert stream.config.schema_validation
    assert found[0] is found[1]
    assert found[0].versions == (first,)
    assert checks(first, config=config)[0] is found[0]
    both = (first, next_version([first], "id INT, more STRING"))
    assert checks(*both, config=config)[1].versions == both
    assert checks(config=config) == [None, None]
    checks(first, config=config)
    off = msgspec.structs.replace(config, schema_validation=False)
    assert checks(first, config=off) == [None, None]
    assert not stream.config.schema_validation
