"""The Arrow shape of records: which columns there are, in which order, and which may be null."""

import pytest

from strandline.errors import InvalidRequestError
from strandline.record.schema import COLUMNS, RECORD_SCHEMA, project


def test_only_key_value_and_headers_may_be_null():
    """Spark plans queries by the nullability."""
    nullable = {field.name for field in project(None, with_partition=True) if field.nullable}
    assert nullable == {"key", "value", "headers"}


def test_columns_come_in_the_order_that_is_asked_for():
    """The partition first where it is added, and where it was asked for if it was."""
    assert project(None).equals(RECORD_SCHEMA)
    assert project(["value", "offset"]).names == ["value", "offset"]
    assert project(["value"], with_partition=True).names == ["partition", "value"]
    assert project(["value", "partition"], with_partition=True).names == ["value", "partition"]
    assert project(None, with_partition=True).names == ["partition", *COLUMNS]


@pytest.mark.parametrize(
    ("columns", "why"), [(["valu"], "unknown column 'valu'"), (["key", "key"], "twice")]
)
def test_columns_that_cannot_be_are_rejected(columns, why):
    """With those that can."""
    with pytest.raises(InvalidRequestError, match=why):
        project(columns)
