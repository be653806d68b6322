"""Why a value does not fit a stream's schema, in words that name the column."""

import io
import json
import re

import fastavro
import pytest

from strandline.values.decode import value_by_schema
from strandline.values.evolution import next_version

COLUMNS = (
    "id BIGINT NOT NULL, name STRING, day DATE, at TIMESTAMP, data BINARY, ratio DOUBLE, "
    "sum DECIMAL(5,2), tags ARRAY<STRING>, place STRUCT<city: STRING>"
)


@pytest.fixture(scope="module")
def read():
    """A reader of JSON values."""
    return value_by_schema([next_version([], COLUMNS)])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b'{"id": "a"}', "column 'id' is bigint, which cannot hold \"a\""),
        (b'{"id": 1.0}', "column 'id' is bigint, which cannot hold 1.0"),
        (b'{"id": ' + b"9" * 5000 + b"}", "column 'id' is bigint, which cannot hold 99999"),
        (b'{"id": NaN}', "column 'id' is bigint, which cannot hold NaN"),
        (b'{"id": 1, "name": 5}', "column 'name' is string, which cannot hold 5"),
        (b'{"id": 1, "day": "2024-13-45"}', "column 'day' is date, which cannot hold"),
        (b'{"id": 1, "day": "soon"}', "column 'day': 'soon' is not a date such as 2024-01-31"),
        (
            b'{"id": 1, "day": "0000-01-01"}',
            "column 'day': a date or time is not in the years 1 to 9999",
        ),
        (b'{"id": 1, "at": 5}', "column 'at' is timestamp, which cannot hold 5"),
        (b'{"id": 1, "data": "!"}', "column 'data': '!' is not Base64"),
        (b'{"id": 1, "ratio": 1e999}', "Number too big to be stored in double."),
        (b'{"id": 1, "name": "\\ud800"}', "The surrogate pair in string is invalid."),
        (b'{"id": 1, "sum": "1.555"}', "column 'sum' is decimal(5,2), which cannot hold \"1.555\""),
        (b'{"id": 1, "tags": [1]}', "column 'tags' is array<string>, which cannot hold [1]"),
        (b'{"id": 1, "place": 1}', "column 'place' is struct<city:string>, which cannot hold 1"),
        (b'{"id": 1, "id": 2}', "'id' is there twice in one object"),
        (
            b'{"id": 1, "place": {"city": "a", "city": "b"}}',
            "'place.city' is there twice in one object",
        ),
        (b'{"id": 1, "name": "\xff"}', "the value is not UTF-8"),
        (b"[1]", "the value is [1], not a JSON object"),
        (b"{}", "'id', which the schema requires, is missing or null"),
        (b'{"id": 1} x', "not one JSON value: Extra data"),
    ],
)
def test_a_reason_names_the_column_and_what_it_has(read, value, told):
    """A user knows columns, and not Arrow's reader."""
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        read(value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"day": (1 << 31) - 1}, "a date or time is not in the years 1 to 9999"),
        ({"at": 1 << 62}, "a date or time is not in the years 1 to 9999"),
        ({"name": b"\xff"}, "a text is not UTF-8"),
    ],
)
def test_a_reason_of_avro_is_in_words(fields, told):
    """Neither Python's codec nor its calendar."""
    kinds = {
        "day": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "name": "string",
    }
    plain = {"day": "int", "at": "long", "name": "bytes"}
    ours, theirs = (
        {
            "type": "record",
            "name": "A",
            "fields": [{"name": n, "type": kind} for n, kind in each.items()],
        }
        for each in (kinds, plain)
    )
    out = io.BytesIO()
    row = {"day": 1, "at": 1, "name": b"x"} | fields
    fastavro.schemaless_writer(out, fastavro.parse_schema(theirs), row)
    with pytest.raises(ValueError, match=told):
        value_by_schema([next_version([], json.dumps(ours))])(out.getvalue())
