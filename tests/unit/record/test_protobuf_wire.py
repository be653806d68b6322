"""Protobuf's wire format by hand."""

import pytest

from strandline.record.protobuf_wire import (
    Scalar,
    WireError,
    put_field,
    put_varint,
    read_fields,
    read_varint,
)

FIELDS = {
    1: ("number", Scalar.INT),
    2: ("data", Scalar.BYTES),
    3: ("text", Scalar.STRING),
    4: ("pairs", Scalar.ENTRIES),
}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        ((1 << 63) - 1, "ffffffffffffffff7f"),
        (-1, "ffffffffffffffffff01"),
    ],
)
def test_varints(value, encoded):
    """Varints are written as protobuf's documentation shows them and read back."""
    out = bytearray()
    put_varint(out, value)
    assert out.hex() == encoded
    assert read_varint(bytes(out), 0) == (value & (1 << 64) - 1, len(out))


def test_fields_round_trip():
    """Every kind of field survives."""
    values = {"number": -5, "data": b"\x00\xff", "text": "é", "pairs": [("a", b"1"), ("b", b"")]}
    out = bytearray()
    for number, (name, scalar) in FIELDS.items():
        put_field(out, number, scalar=scalar, value=values[name])
    assert read_fields(bytes(out), FIELDS, entries_max=2) == values


def test_defaults_are_left_out():
    """Zero, empty bytes, empty text and no entries take no room."""
    out = bytearray()
    put_field(out, 1, scalar=Scalar.INT, value=0)
    put_field(out, 2, scalar=Scalar.BYTES, value=b"")
    put_field(out, 3, scalar=Scalar.STRING, value="")
    put_field(out, 4, scalar=Scalar.ENTRIES, value=[])
    assert out == b""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("0801 0802", {"number": 2}),  # the last of repeated scalars wins
        ("7801 0801", {"number": 1}),  # unknown varint
        ("7a0161 0801", {"number": 1}),  # unknown bytes
        ("790102030405060708 0801", {"number": 1}),  # unknown fixed64
        ("7d01020304 0801", {"number": 1}),  # unknown fixed32
        ("1001 0801", {"number": 1}),  # a known field of another wire type
        ("2200", {"pairs": [("", b"")]}),  # an entry without key and value
        ("22060a016b120131 22060a016b120132", {"pairs": [("k", b"2")]}),  # a key twice
    ],
)
def test_reading_as_protobuf_does(data, expected):
    """Unknown and repeated fields are treated as proto3 says."""
    assert read_fields(bytes.fromhex(data), FIELDS, entries_max=9) == expected


@pytest.mark.parametrize(
    "data",
    [
        "08",  # no value
        "08ffffffffffffffffffff01",  # varint of eleven bytes
        "12ff",  # length cut short
        "120561",  # bytes cut short
        "12ffffffffffffffff7f",  # a length beyond everything
        "1a01ff",  # not UTF-8
        "0b",  # start of a group
        "0c",  # end of a group
        "0e",  # wire type 6
        "00",  # field number 0
        "2203 0a01ff",  # an entry's key is not UTF-8
        "220112",  # an entry is cut short
        "7d0102",  # fixed32 cut short
    ],
)
def test_malformed_bytes_are_a_wire_error(data):
    """Anything malformed is the one typed error."""
    with pytest.raises(WireError):
        read_fields(bytes.fromhex(data), FIELDS, entries_max=9)


def test_entries_are_capped():
    """More map entries than the limit are rejected."""
    out = bytearray()
    put_field(out, 4, scalar=Scalar.ENTRIES, value=[("a", b""), ("b", b""), ("c", b"")])
    assert len(read_fields(bytes(out), FIELDS, entries_max=3)["pairs"]) == 3
    with pytest.raises(WireError, match="more than 2"):
        read_fields(bytes(out), FIELDS, entries_max=2)
