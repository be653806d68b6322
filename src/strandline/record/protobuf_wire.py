"""The part of Protobuf's wire format that flat messages need: varints, bytes, strings, one map.

Rules: strict and bounded. A varint has at most ten bytes, a length never exceeds the remaining
bytes, a string is UTF-8, groups are rejected, the last of repeated scalars wins. As in protobuf,
unknown fields and known ones of another wire type are skipped. Anything else is a ``WireError``.
Must not know the messages it decodes.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

VARINT_BYTES_MAX = 10
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MASK64 = (1 << 64) - 1
_SIGN64 = 1 << 63


class WireError(ValueError):
    """Bytes that are not the protobuf message they claim to be."""


class Scalar(Enum):
    """The ways to read and write a field's value."""

    INT = auto()
    """int32, int64 or an enum: a two's complement varint."""
    BYTES = auto()
    STRING = auto()
    ENTRIES = auto()
    """map<string, bytes>, as a list of pairs in the order of first appearance."""


Fields = Mapping[int, tuple[str, Scalar]]
"""Field number → (name, kind), in ascending order of numbers."""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned varint (modulo 2^64) and the position after it.

    Raises:
        WireError: the varint is incomplete, or longer than ten bytes.
    """
    value = shift = 0
    for index in range(position, min(position + VARINT_BYTES_MAX, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, index + 1
        shift += 7
    raise WireError("varint is incomplete or too long")


def put_varint(out: bytearray, value: int) -> None:
    """Append a varint; negative numbers as 64-bit two's complement."""
    value &= _MASK64
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_fields(data: bytes, fields: Fields, *, entries_max: int) -> dict[str, Any]:
    """Decode a message.

    Args:
        data: the bytes of the message.
        fields: the known fields; others are skipped.
        entries_max: most entries of its map.

    Returns:
        Name → value of the fields present.

    Raises:
        WireError: not such a message.
    """
    found: dict[str, Any] = {}
    entries: dict[str, bytes] = {}
    entries_name = ""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or number >= 1 << 29:
            raise WireError(f"impossible field number {number}")
        raw, position = _read_value(data, position, wire_type)
        name, scalar = fields.get(number, ("", None))
        if scalar is None or wire_type != (_VARINT if scalar is Scalar.INT else _LENGTH):
            continue
        if scalar is not Scalar.ENTRIES:
            found[name] = _convert(raw, scalar)
            continue
        key, value = _read_entry(raw)
        entries[key] = value
        if len(entries) > entries_max:
            raise WireError(f"more than {entries_max} map entries")
        entries_name = name
    if entries:
        found[entries_name] = list(entries.items())
    return found


def _read_value(data: bytes, position: int, wire_type: int) -> tuple[Any, int]:
    """Return the raw value at ``position`` (int for a varint, else bytes), and where it ends."""
    if wire_type == _VARINT:
        return read_varint(data, position)
    if wire_type == _LENGTH:
        length, position = read_varint(data, position)
    elif wire_type in (_FIXED64, _FIXED32):
        length = 8 if wire_type == _FIXED64 else 4
    else:
        raise WireError(f"unknown wire type {wire_type}")
    end = position + length
    if end > len(data):
        raise WireError("field is incomplete")
    return data[position:end], end


def _convert(raw: Any, scalar: Scalar) -> int | bytes | str:
    """Return the Python value of a raw scalar."""
    if scalar is Scalar.INT:
        number = int(raw)
        return number - (1 << 64) if number & _SIGN64 else number
    if scalar is Scalar.STRING:
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise WireError("string is not UTF-8") from error
    return bytes(raw)


_ENTRY: Fields = {1: ("key", Scalar.STRING), 2: ("value", Scalar.BYTES)}


def _read_entry(raw: bytes) -> tuple[str, bytes]:
    """Decode a map entry; an absent key or value is empty."""
    entry = read_fields(raw, _ENTRY, entries_max=0)
    return entry.get("key", ""), entry.get("value", b"")


def put_field(out: bytearray, number: int, *, scalar: Scalar, value: Any) -> None:
    """Append a field; as in proto3, nothing if the value is the default."""
    if scalar is Scalar.ENTRIES:
        for key, content in value:
            entry = bytearray()
            put_field(entry, 1, scalar=Scalar.STRING, value=key)
            put_field(entry, 2, scalar=Scalar.BYTES, value=content)
            _put_bytes(out, number, bytes(entry))
    elif scalar is Scalar.INT:
        if value:
            put_varint(out, number << 3 | _VARINT)
            put_varint(out, value)
    elif value:
        _put_bytes(out, number, value.encode() if scalar is Scalar.STRING else value)


def _put_bytes(out: bytearray, number: int, value: bytes) -> None:
    put_varint(out, number << 3 | _LENGTH)
    put_varint(out, len(value))
    out += value
