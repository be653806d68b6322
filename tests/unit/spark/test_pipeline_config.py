"""Pipeline files: what they may say, and how mistakes are named."""

import pytest

from strandline.errors import InvalidConfigError
from strandline.spark.pipelines.config import Load, decode_pipeline

LOAD = {"kind": "load", "streams": ["orders"], "into": "lake/{stream}", "checkpoint": "c"}


def test_a_load_has_defaults():
    """Only what cannot be guessed is required."""
    found = decode_pipeline(LOAD)
    assert isinstance(found, Load)
    assert (found.format, found.values, found.trigger) == ("parquet", "raw", "available_now")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "lode"}, "'lode'; did you mean 'load'"),
        ({"kind": "window"}, "there are: load, copy, transform"),
        ({"kind": ["load"]}, "'load'"),
        ({"steams": []}, "'steams'; did you mean 'streams'"),
        ({"batch_records_max": 9}, "'batch_records_max'; did you mean 'batch_bytes_max'"),
        ({"format": "orc"}, "format"),
        ({"streams": "orders"}, "streams"),
    ],
)
def test_a_mistake_is_named(change, message):
    """An unknown kind or key is refused with the nearest there is, a wrong value with its key."""
    with pytest.raises(InvalidConfigError, match=message):
        decode_pipeline(LOAD | change)


def test_what_is_no_mapping_is_refused():
    """An empty file and a list are no pipelines."""
    for values in (None, [LOAD]):
        with pytest.raises(InvalidConfigError, match="not a pipeline"):
            decode_pipeline(values)
