"""Texts at the edges of what an Avro schema may be."""

import json

import pytest

from strandline.errors import InvalidConfigError
from strandline.values.avro import DEPTH_MAX, parsed_schema


def nested(depth):
    """A record whose one column has arrays in each other."""
    column = "long"
    for _ in range(depth):
        column = {"type": "array", "items": column}
    record = {"type": "record", "name": "R", "fields": [{"name": "x", "type": column}]}
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "need their schema"),
        ("", "need their schema"),
        ("id BIGINT", "is not an Avro schema: Expecting value"),
        ('{"type": "record"', "is not an Avro schema: Expecting"),
        ("[" * 100_000, f"nested more than {DEPTH_MAX} deep"),
        ("{}", 'an object with the "type" "record" is needed'),
        (nested(DEPTH_MAX - 3), f"nested more than {DEPTH_MAX} deep"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_in_words(text, told):
    """Before a value is read; no text ends in another error."""
    with pytest.raises(InvalidConfigError, match=told):
        parsed_schema(text)


def test_a_schema_as_deep_as_is_allowed_is_read():
    """The limit is of what fastavro could not take; three levels are the record's own."""
    assert parsed_schema(nested(DEPTH_MAX - 4))
