"""Pipeline files: valid settings, and errors that name the mistake."""

import pytest

from strandline.errors import InvalidConfigError
from strandline.spark.pipelines.config import LoadPipeline, decode_pipeline
from strandline.spark.pipelines.load import check_load

LOAD = {"kind": "load", "streams": ["orders"], "into": "lake/{stream}", "checkpoint": "c"}


def test_a_load_has_defaults():
    """Only settings without a sensible default are required."""
    found = decode_pipeline(LOAD)
    assert isinstance(found, LoadPipeline)
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
        ({"file_bytes": 0}, "file_bytes"),
        ({"batch_bytes_max": -1}, "batch_bytes_max"),
        ({"into": ""}, "into"),
        ({"checkpoint": ""}, "checkpoint"),
        ({"interval_ms": -1}, "interval_ms"),
        ({"batch_delay_ms_max": -1}, "batch_delay_ms_max"),
        ({"snapshot_age_ms": -1}, "snapshot_age_ms"),
    ],
)
def test_a_mistake_is_named(change, message):
    """An unknown kind or key is rejected with the nearest one, a wrong value with its key."""
    with pytest.raises(InvalidConfigError, match=message):
        decode_pipeline(LOAD | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"catalog": {"type": "sql"}}, "'catalog' is for 'format: iceberg', and 'format' is delta"),
        ({"storage": {"region": "r"}}, "'storage' is for an object store.*lake/orders"),
        ({"checkpoint": "lake/orders"}, "'checkpoint' is lake/orders, in the directory"),
        ({"checkpoint": "lake/../lake/orders/c"}, "'checkpoint' is .*, in the directory"),
        ({"checkpoint": "t/c", "into": "t"}, "'checkpoint' is t/c, in the directory of the table"),
    ],
)
def test_places_that_do_not_go_together_are_rejected(change, message):
    """Before the broker is asked; beside the table is a place for a checkpoint."""
    with pytest.raises(InvalidConfigError, match=message):
        check_load(decode_pipeline(LOAD | {"format": "delta"} | change))
    for fine in ({"checkpoint": "lake/c"}, {"checkpoint": "hdfs://h/c"}, {"into": "s3://b/t"}):
        check_load(decode_pipeline(LOAD | {"format": "delta"} | fine))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ({"kind": "copy", "stream": "a", "into": "a"}, "'into' is 'a'.*without end"),
        (
            {"kind": "copy", "stream": "a", "into": "a", "into_server": "127.0.0.1:9293"},
            "'into' is 'a'",
        ),
        ({"kind": "clean", "stream": "a", "into": "a"}, "'into' is 'a'"),
        ({"kind": "repartition", "stream": "a", "into": "a", "key": "key"}, "'into' is 'a'"),
        (
            {"kind": "aggregate", "stream": "a", "into": "a", "key": "k", "columns": {}},
            "'into' is 'a'",
        ),
        ({"kind": "merge", "streams": ["a", "b"], "into": "b"}, "'into' is 'b'"),
        ({"kind": "merge", "streams": ["a", "b", "a"], "into": "c"}, "'a' twice"),
        ({"kind": "merge", "streams": [], "into": "c"}, "'streams' is empty"),
        ({"kind": "load", "streams": [], "into": "t"}, "'streams' is empty"),
        ({"kind": "load", "streams": ["a", "a"], "into": "t/{stream}"}, "'a' twice"),
        ({"kind": "load", "streams": ["a", "__groups"], "into": "t"}, "'__groups'.*without end"),
        ({"kind": "copy", "stream": "__transactions", "into": "a"}, "'__transactions' is the brok"),
        ({"kind": "copy", "stream": "a", "into": "__groups"}, "'into' is '__groups', the broker's"),
        (
            {"kind": "load", "streams": ["a"], "into": "t", "dead_letters": "__groups"},
            "'dead_letters' is '__groups', the broker's",
        ),
        (
            {"kind": "load", "stream_pattern": "*", "into": "t", "dead_letters": "__x"},
            "'dead_letters' is '__x', the broker's",
        ),
        (
            {"kind": "load", "streams": ["a"], "into": "t", "dead_letters": "a"},
            "'dead_letters' is 'a'",
        ),
    ],
)
def test_a_pipeline_that_feeds_on_itself_is_rejected(pipeline, message):
    """Nor may one read a stream twice, or none."""
    with pytest.raises(InvalidConfigError, match=message):
        decode_pipeline({"checkpoint": "c"} | pipeline)


def test_a_mirror_may_have_the_name_of_its_stream():
    """On another cluster it is another stream."""
    mirror = {"kind": "copy", "stream": "a", "into": "a", "into_server": "10.1.0.7:9293"}
    assert decode_pipeline({"checkpoint": "c"} | mirror).into == "a"


def test_what_is_no_mapping_is_rejected():
    """An empty file and a list are no pipelines."""
    for values in (None, [LOAD]):
        with pytest.raises(InvalidConfigError, match="not a pipeline"):
            decode_pipeline(values)
