"""What columns a table has after the versions of a schema, whichever its loads have seen."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.spark.tables.columns import conformed, followed_type, following_columns, follows
from strandline.values.columns import arrow_schema, parse_columns, parse_type
from strandline.values.evolution import next_version

FORMATS = ("parquet", "delta", "iceberg")
ONE = '[{"name":"a","type":"int"},{"name":"s","type":"struct<x:int>"}]'
TWO = """[{"name":"n","type":"int"},{"name":"s","type":"struct<x:int,z:int>","id":2},
{"name":"b","type":"int","id":1}]"""
THREE = """[{"name":"c","type":"bigint","id":1},{"name":"o","type":"string"},
{"name":"s","type":"struct<y:int,x:bigint,z:int>"},{"name":"n","type":"int","id":3}]"""
"""Versions that add, widen, rename and reorder columns."""


def versions_of(*texts):
    found = []
    for text in texts:
        found.append(next_version(found, text))
    return found


@given(seen=st.sets(st.integers(1, 3)), table_format=st.sampled_from(["parquet", "iceberg"]))
def test_the_columns_do_not_depend_on_the_versions_that_were_seen(seen, table_format):
    """A load that was away while versions were set ends with the columns of one that was not."""
    versions = versions_of(ONE, TWO, THREE)
    columns = arrow_schema(versions[0].columns)
    wanted = following_columns(columns, versions, table_format=table_format).schema
    for last in sorted(seen):
        before = columns
        found = following_columns(columns, versions[:last], table_format=table_format)
        assert follows(found.schema, before, found.names)
        columns = found.schema
    assert following_columns(columns, versions, table_format=table_format).schema == wanted


@pytest.mark.parametrize(
    ("table_format", "names", "kept"),
    [
        ("parquet", ["a", "s", "m", "o"], []),
        ("delta", ["a", "s", "m", "o"], ["a int", "s struct<x:int,z:int,y:int>"]),
        ("iceberg", ["c", "s", "m", "o"], []),
    ],
)
def test_each_format_does_what_it_can(table_format, names, kept):
    """Iceberg renames, Delta Lake does not widen, and says what it keeps, under its own names."""
    versions = versions_of(ONE, TWO, THREE.replace('"n"', '"m"'))
    found = following_columns(
        arrow_schema(versions[0].columns), versions, table_format=table_format
    )
    assert found.schema.names == names
    assert found.kept == kept
    renames = {"a": "c", "b": "c", "n": "m"} if table_format == "iceberg" else {}
    assert found.names == renames


def test_a_column_that_the_schema_has_otherwise_stays():
    """It is one that was made before there was a schema, of another or a wider type."""
    columns = parse_columns("a string, b bigint")
    found = following_columns(columns, versions_of("a int, b int"), table_format="parquet")
    assert found.schema == columns


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("int", "bigint", "bigint"),
        ("bigint", "int", "bigint"),
        ("int", "string", "int"),
        ("decimal(5,2)", "decimal(9,2)", "decimal(9,2)"),
        ("decimal(5,2)", "decimal(9,3)", "decimal(5,2)"),
        ("array<int>", "array<bigint>", "array<bigint>"),
        ("map<string,int>", "map<string,bigint>", "map<string,bigint>"),
        ("struct<a:int>", "struct<b:int,a:bigint>", "struct<a:bigint,b:int>"),
        ("struct<a:int>", "array<int>", "struct<a:int>"),
    ],
)
def test_a_type_becomes_wider_and_never_another(old, new, wanted):
    """Types within types, too."""
    assert followed_type(parse_type(old), parse_type(new), widens=True) == parse_type(wanted)


def test_columns_follow_if_each_is_still_there():
    """In its place, as wide or wider, under its name or the new one."""
    old = parse_columns("a int, b string")
    assert follows(parse_columns("a bigint, b string, c int"), old, {})
    assert follows(parse_columns("x int, b string"), old, {"a": "x"})
    for other in ("b string, a int", "a int", "x int, b string", "a string, b string"):
        assert not follows(parse_columns(other), old, {})


def test_rows_get_the_columns_of_a_schema():
    """Cast, renamed, and nulls for what they lack, within structs as well."""
    rows = pa.RecordBatch.from_pylist([{"a": 1, "s": {"x": 2}}])
    schema = parse_columns("b string, c bigint, s struct<x:bigint,y:int>")
    assert conformed(rows, schema, {"a": "c"}).to_pylist() == [
        {"b": None, "c": 1, "s": {"x": 2, "y": None}}
    ]
