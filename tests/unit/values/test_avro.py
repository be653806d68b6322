"""Avro values by a stream's versions: framed or plain, whole or not."""

import contextlib
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidConfigError
from strandline.values.avro import fingerprint, value_reader, versions_reader
from strandline.values.evolution import next_version

ONE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "customer", "type": "string"}],
}
TWO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "client", "type": "string", "aliases": ["customer"]},
        {"name": "price", "type": ["null", "double"], "default": None},
    ],
}
OLD, NEW = {"id": 1, "customer": "ada"}, {"id": 2, "client": "bob", "price": 1.5}
OLD_READ = {"id": 1, "client": "ada", "price": None}


def encoded(schema, row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


@pytest.fixture(scope="module")
def read():
    """A reader of two versions, the first with a registry's id."""
    one = next_version([], json.dumps(ONE), registry_id=0x01020304)
    return versions_reader([one, next_version([one], json.dumps(TWO))])


def test_plain_values_of_each_version_are_read_as_the_newest(read):
    """Without a frame the newest version that fits is the value's."""
    assert read(encoded(ONE, OLD)) == OLD_READ
    assert read(encoded(TWO, NEW)) == NEW


def test_a_frame_names_the_version(read):
    """Avro's single-object encoding by fingerprint, a registry's by its id."""
    for schema, row, wanted in ((ONE, OLD, OLD_READ), (TWO, NEW, NEW)):
        framed = b"\xc3\x01" + fingerprint(json.dumps(schema)) + encoded(schema, row)
        assert read(framed) == wanted
    assert read(b"\x00\x01\x02\x03\x04" + encoded(ONE, OLD)) == OLD_READ
    with pytest.raises(ValueError, match="value ends early"):
        read(b"\x00\x01\x02\x03\x04" + encoded(ONE, OLD)[:-1])


def test_a_value_that_fits_no_version_says_so(read):
    """With the reason of the newest, and what is known of its frame."""
    with pytest.raises(ValueError, match=r"^it fits no version of the schema; not Avro of this"):
        read(b"\xff")
    with pytest.raises(ValueError, match="no version has the registry's id 9 of its frame"):
        read(b"\x00\x00\x00\x00\x09" + encoded(ONE, OLD))
    with pytest.raises(ValueError, match="the fingerprint of its frame is of no version"):
        read(b"\xc3\x01" + bytes(8) + encoded(ONE, OLD))


def test_fingerprints_are_those_of_the_specification():
    """The CRC-64 of "int" is 0x7275d51a3f395c8f, its bytes in a frame least significant first."""
    assert fingerprint('"int"').hex() == "8f5c393f1ad57572"


EVERYTHING = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "big", "type": "long"},
        {"name": "half", "type": "float"},
        {"name": "whole", "type": "double"},
        {"name": "data", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 4}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "maybe", "type": ["null", "long"]},
        {"name": "last", "type": "double"},
    ],
}
ROW = {
    "flag": True,
    "small": 1,
    "big": 1 << 40,
    "half": 0.5,
    "whole": 0.25,
    "data": b"\x00\xff",
    "text": "é",
    "state": "B",
    "code": b"1234",
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "day": date(2026, 11, 27),
    "at": datetime(2026, 11, 27, tzinfo=UTC),
    "id": "0fd1c0c6-2e4c-4b6b-9d0b-8c8a5f5ef1d0",
    "sum": Decimal("12.34"),
    "maybe": 7,
    "last": 2.0,
}
WHOLE = encoded(EVERYTHING, ROW)
READ_ALL = value_reader(json.dumps(EVERYTHING), None)


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_truncated_value_is_refused_in_words(size):
    """At whatever byte it ends, of whatever type."""
    assert READ_ALL(WHOLE)["last"] == 2.0
    with pytest.raises(ValueError, match=r"not Avro of this schema: .* ends early|bytes follow"):
        READ_ALL(WHOLE[:size])


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_hostile_bytes_are_refused_as_values(tail, size):
    """Any bytes are a value or a ValueError with a reason."""
    with contextlib.suppress(ValueError):
        assert READ_ALL(WHOLE[:size] + tail).keys() == ROW.keys()


def test_a_value_cannot_make_more_than_its_bytes():
    """An array whose items take no bytes could claim any number of them."""
    for items in ("null", {"type": "fixed", "name": "F", "size": 0}):
        schema = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": {"type": "array", "items": items}}],
        }
        with pytest.raises(InvalidConfigError):
            next_version([], json.dumps(schema))


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ({"name": "x"}, "Record field 'x' is missing 'type'"),
        ({"name": "x", "type": "strng"}, "unknown type 'strng'"),
        ({"name": "x", "type": {"type": "array"}}, "a type lacks 'items'"),
        ({"name": "x", "type": {"type": "enum", "name": "E"}}, "a type lacks 'symbols'"),
        ({"name": "x", "type": {"type": "bytes", "logicalType": "decimal"}}, "lacks 'precision'"),
    ],
)
def test_what_is_wrong_with_a_schema_is_said_in_words(field, told):
    """Not as the exception of a library."""
    schema = {"type": "record", "name": "R", "fields": [field]}
    with pytest.raises(InvalidConfigError, match=f"is not an Avro schema: .*{told}"):
        next_version([], json.dumps(schema))
