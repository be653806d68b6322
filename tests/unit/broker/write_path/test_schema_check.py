"""The check of values before they are accepted."""

import pyarrow as pa
import pytest

from strandline.broker.write_path.schema_check import SchemaCheck, SchemaVerdict
from strandline.errors import SchemaMismatchError
from strandline.values.evolution import next_version


@pytest.fixture
def check():
    return SchemaCheck("orders", [next_version([], "id INT NOT NULL")])


def batch(*values):
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def test_a_value_fits_or_the_reason_is_given(check):
    """The error names the stream, the version, the field and the remedy; no value is no misfit."""
    assert check.value(b'{"id":1}') is None
    assert check.value(None) is None
    error = check.value(b'{"id":"x"}')
    assert isinstance(error, SchemaMismatchError)
    for part in ("version 1", "'orders'", "'id' is int", "strandline stream schema show orders"):
        assert part in error.message
    assert "Strandline-Tombstone" in check.value(b"").message


def test_the_first_row_that_does_not_fit_is_named(check):
    """A batch of one row is that row."""
    assert check.values([b'{"id":1}', None]) is None
    assert check.values([b'{"id":1}', None, b"nothing", b"{"]).row == 2
    alone = check.values([b"nothing"])
    assert alone is not None
    assert alone.row is None


def test_a_verdict_spares_the_work_only_for_the_check_that_gave_it(check):
    """Another version may have come since: then the batch is checked again."""
    good, bad = batch(b'{"id":1}'), batch(b"nothing")
    assert check.error_of(bad, None) is not None
    assert check.error_of(bad, SchemaVerdict(check, None)) is None
    other = SchemaCheck("orders", check.versions)
    assert check.error_of(bad, SchemaVerdict(other, None)) is not None
    error = SchemaMismatchError("no")
    assert check.error_of(good, SchemaVerdict(check, error)) is error
    assert check.error_of(good, other.batch(bad)) is None
    assert check.batch(good) == (check, None)
