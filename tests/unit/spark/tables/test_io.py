"""Spark's writers of the table without Spark: which columns are kept, and tables without rows."""

import json

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DayTimeIntervalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    YearMonthIntervalType,
)

from strandline.errors import InvalidConfigError
from strandline.spark.options import TableOptions
from strandline.spark.table import read_table
from strandline.spark.tables.io import BatchTableWriter, StreamTableWriter, TableReader
from strandline.spark.tables.open import existing_store
from strandline.spark.tables.values import value_schema

LONGS = StructType([StructField("n", LongType())])
FORMATS = ["parquet", "delta", "iceberg"]


def options(directory, table_format, **more):
    """Options of a table in this directory."""
    (directory / "warehouse").mkdir(exist_ok=True)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    path = "lake.t" if table_format == "iceberg" else str(directory / "t")
    return TableOptions(path=path, table_format=table_format, catalog=catalog, **more)


def schema_of(kind):
    """Return a schema with a column of this type and one of numbers."""
    return StructType([StructField("n", LongType()), StructField("odd", kind)])


ODD = [
    ArrayType(NullType()),
    NullType(),
    MapType(StringType(), NullType()),
    StructType([]),
    CalendarIntervalType(),
    DayTimeIntervalType(),
    YearMonthIntervalType(),
    ArrayType(StructType([StructField("in", DayTimeIntervalType())])),
]


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.simpleString())
def test_a_column_that_a_table_cannot_keep_is_rejected(tmp_path, table_format, kind):
    """When the query starts, by name and type, instead of by an error of a library in a task."""
    for writer in (BatchTableWriter, StreamTableWriter):
        with pytest.raises(InvalidConfigError, match=r"column 'odd.*' is .*CAST"):
            writer(options(tmp_path, table_format), schema_of(kind))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("table_format", FORMATS)
def test_columns_of_a_frame_that_differ_by_case_alone_are_rejected(tmp_path, table_format):
    """Whatever is written into a table, not only decoded values: Spark could not open it."""
    twins = StructType([StructField("userId", LongType()), StructField("userid", LongType())])
    for writer in (BatchTableWriter, StreamTableWriter):
        with pytest.raises(InvalidConfigError, match="'userId' and 'userid' differ by case alone"):
            writer(options(tmp_path, table_format), twins)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_time_of_day_is_kept_by_parquet_alone(tmp_path, table_format):
    """Delta and Iceberg have no type that Spark's is written as."""
    with pytest.raises(InvalidConfigError, match="column 'odd' is time"):
        BatchTableWriter(options(tmp_path, table_format), schema_of(TimeType()))
    BatchTableWriter(options(tmp_path, "parquet"), schema_of(TimeType()))


def test_the_schema_of_decoded_values_is_checked_too(tmp_path):
    """A value's column has the same types as any other."""
    text = json.dumps(schema_of(YearMonthIntervalType()).jsonValue())
    given = options(tmp_path, "parquet", values="avro", value_schema=text)
    with pytest.raises(InvalidConfigError, match="column 'odd' is interval"):
        value_schema(given)


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("has_task", [True, False])
def test_a_frame_without_rows_makes_the_table(tmp_path, table_format, has_task):
    """Once: its columns are known then, and the next frame's rows are added."""
    given = options(tmp_path, table_format)
    for _ in range(2):
        writer = BatchTableWriter(given, LONGS)
        writer.commit([writer.write(iter([]))] if has_task else [])
    state = existing_store(given.path, table_format=table_format, catalog=given.catalog).load()
    assert state.state is not None
    assert state.state.sequence == 0, "the second one had nothing to commit"
    if table_format == "parquet":
        assert read_table(given.path).to_table().schema.names == ["n"]
        assert TableReader(given, LONGS).partitions() == []
    writer = BatchTableWriter(given, LONGS)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"n": [1, 2]})]))])
    loaded = existing_store(given.path, table_format=table_format, catalog=given.catalog).load()
    assert loaded.state.sequence == 1
