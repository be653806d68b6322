"""The options that a load gives to its table."""

import pytest
from pyspark.sql.types import LongType, StructType

from strandline.spark.options import parse_table_options
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.load import reads_of, table_options

LOAD = {"kind": "load", "streams": ["orders"], "into": "lake/{stream}", "checkpoint": "c"}
COLUMNS = StructType().add("id", LongType())


def options_of(columns=None, **config):
    """Return the table's options for a pipeline with these settings."""
    load = decode_pipeline({**LOAD, **config})
    [read] = reads_of(load)
    given = table_options(load, read, identity="orders@1", columns=columns)
    return parse_table_options({**given, "path": "lake/orders"})


def test_the_table_is_told_of_the_stream():
    """Its identity, so that a recreated stream is rejected, and its address."""
    options = options_of(server="127.0.0.1:4333", file_bytes=1 << 20)
    assert (options.stream, options.stream_identity) == ("orders", "orders@1")
    assert (options.server, options.file_bytes) == ("127.0.0.1:4333", 1 << 20)
    assert (options.values, options.value_schema, options.dead_letters) == ("raw", None, None)


@pytest.mark.parametrize("writer_schema", [None, '"int"'])
def test_both_schemas_of_avro_reach_the_table(writer_schema):
    """That of the columns, and that which values were written with if it is another."""
    schemas = {"schema": '"long"', "writer_schema": writer_schema}
    options = options_of(COLUMNS, values="avro", dead_letters="bad", **schemas)
    assert (options.avro_schema, options.avro_writer_schema) == ('"long"', writer_schema)
    assert (options.value_schema, options.dead_letters) == (COLUMNS.json(), "bad")


@pytest.mark.parametrize(
    ("settings", "is_dense"),
    [
        ({}, True),
        ({"fail_on_data_loss": False}, False),
        ({"fail_on_data_loss": False, "dense_offsets": True}, True),
        ({"dense_offsets": False}, False),
    ],
)
def test_gaps_are_accepted_where_losses_are(settings, is_dense):
    """Unless the pipeline says otherwise."""
    assert options_of(**settings).dense_offsets == is_dense
