"""Decimals in JSON: what Arrow's parser takes, and what would make it read beyond its tables."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.values.columns import parse_columns
from strandline.values.decode import value_decoder
from strandline.values.json_text import decimal_fits


def decoded(kind, text):
    """The number that a column has of a text; None: the value is rejected."""
    found = value_decoder("json", parse_columns(f"a {kind}"))(
        pa.array([b'{"a":%b}' % text.encode()], pa.binary())
    )
    return None if found.bad else found.rows[0].as_py()["a"]


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        ("decimal(38,2)", "1e-99999999", None),
        ("decimal(38,2)", '"1e-99999999"', None),
        ("decimal(38,2)", "1e-41", None),
        ("decimal(38,2)", "0." + "0" * 60, None),
        ("decimal(38,2)", "1e99999999", None),
        ("decimal(38,2)", "0e-100", None),
        ("decimal(5,2)", "1e-2", "0.01"),
        ("decimal(5,2)", "1E2", "100.00"),
        ("decimal(5,2)", "0.001e1", "0.01"),
        ("decimal(5,2)", "1000", None),
        ("decimal(5,2)", '"1000.0"', None),
        ("decimal(5,2)", "999.99", "999.99"),
        ("array<decimal(38,2)>", "[1e-99999999]", None),
        ("struct<b: decimal(38,2)>", '{"b": 1e-99999999}', None),
        ("struct<b: decimal(5,2)>", '{"b": 1000}', None),
    ],
)
def test_a_decimal_holds_its_number_or_rejects_it(kind, text, number):
    """With an exponent of many digits, too: Arrow ended the process."""
    assert decoded(kind, text) == (None if number is None else Decimal(number))


def test_a_text_that_looks_like_such_a_number_is_a_text():
    """In another column of the same value."""
    decode = value_decoder("json", parse_columns("a decimal(38,2), b string"))
    found = decode(pa.array([b'{"a": 1.5, "b": "1e-99999999"}'], pa.binary()))
    assert found.rows.to_pylist() == [{"a": Decimal("1.50"), "b": "1e-99999999"}]


@given(
    kind=st.sampled_from([(5, 2), (5, 0), (38, 2), (38, 38), (1, 1)]),
    text=st.from_regex(
        r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,7})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
    ),
)
def test_the_test_of_a_number_is_that_of_the_column(kind, text):
    """What fits is decoded, and no number is changed."""
    found = decoded("decimal({},{})".format(*kind), text)
    assert found is not None or not decimal_fits(text, pa.decimal128(*kind))
    assert found is None or found == Decimal(text)
