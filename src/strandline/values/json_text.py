"""Conversion of JSON text to columns where Arrow's reader is wrong or limited: times, dates, bytes.

Rules: such columns are read as text and converted here, whole arrays at once; a text that cannot be
converted is an error that names it. A fraction of a second is truncated to microseconds, as in
Spark; a date keeps the day as written, whatever zone follows; a time with a zone never becomes a
time without. ``docs/pipelines.md`` has a table of all cases. Must not know records or streams.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.values.years import check_days

_DATE = r"\d{4}-\d{2}-\d{2}"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?"
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)"
DATE_TEXT = rf"^{_DATE}([T ]{_TIME}{_ZONE}?)?$"
LOCAL_TEXT = rf"^{_DATE}([T ]{_TIME})?$"
ZONED_TEXT = rf"^{_DATE}[T ]{_TIME}{_ZONE}$"
_VALUES = msgspec.json.Decoder(msgspec.Raw)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_ODD_NUMBER = r"[0-9.][eE][+-]?[0-9]|\.[0-9]{30}"
_EXCERPT_CHARACTERS = 60
_DIGITS = 38
"""Digits of Arrow's decimals, which have 128 bits; appending zeros overflows without an error."""


class NumberText(str):
    """The text of a JSON number, kept to check it digit by digit."""

    __slots__ = ()


def excerpt(text: str) -> str:
    """Return the beginning of a text, for an error."""
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"


def is_deeper(document: Any, levels: int) -> bool:
    """Return whether a JSON document is nested more than so many levels deep."""
    level = [document]
    for _ in range(levels):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


def check_one_value_each(values: list[str]) -> None:
    """Check that each value is exactly one JSON value.

    Raises:
        ValueError: one is not.
    """
    lines = "\n".join([each.replace("\n", " ") for each in values])
    try:
        if len(_VALUES.decode_lines(lines.encode())) == len(values):
            values = [each for each in values if "\n" in each]  # may be invalid within a text
    except (msgspec.DecodeError, RecursionError):
        pass  # NaN and Infinity, which Python and Arrow accept, are checked below
    try:
        for value in values:
            json.loads(value)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not one JSON value: {error}") from error


def decimals_of(kind: pa.DataType) -> list[pa.Decimal128Type]:
    """Return the decimal types in a type and in its nested types."""
    if pa.types.is_decimal(kind):
        return [kind]
    return [each for i in range(kind.num_fields) for each in decimals_of(kind.field(i).type)]


def decimal_fits(text: str, kind: pa.Decimal128Type) -> bool:
    """Return whether a decimal type can hold a number without rounding."""
    if not _NUMBER.fullmatch(text):
        return False
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int), text
    written = len(text.lower().partition("e")[0].partition(".")[2])
    # Arrow counts zeros at both ends, too, and its tables have no more than ``precision`` places.
    if max(len(digits), -exponent, written) + max(exponent, 0) > kind.precision:
        return False
    whole, places = len(digits) + exponent, -exponent
    while digits and not digits[-1]:
        digits, places = digits[:-1], places - 1
    return not digits or bool(whole <= kind.precision - kind.scale and places <= int(kind.scale))


def check_decimals(values: Iterable[str], kind: pa.DataType) -> None:
    """Check numbers with which Arrow would read beyond its tables, or overflow.

    Args:
        values: JSON values.
        kind: the struct of their columns.

    Raises:
        ValueError: a decimal cannot hold its number; the message has the number.
    """
    pattern, decimals = _ODD_NUMBER, decimals_of(kind)
    whole = [
        each.precision - each.scale for each in decimals if each.precision + each.scale > _DIGITS
    ]
    if whole:
        pattern += f"|[0-9]{{{min(whole) + 1}}}"
    is_odd = re.compile(pattern).search
    for value in values if decimals else ():
        if is_odd(value):
            number = json.loads(value, parse_float=NumberText, parse_int=NumberText)
            _check_decimals(number, kind)


def _check_decimals(part: Any, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind) and isinstance(part, dict):
        for field in kind:
            _check_decimals(part.get(field.name), field.type)
    elif pa.types.is_list(kind) and isinstance(part, list):
        for each in part:
            _check_decimals(each, kind.value_type)
    elif pa.types.is_decimal(kind) and isinstance(part, str) and not decimal_fits(part, kind):
        raise ValueError(f"{part[:40]} is not a number of decimal({kind.precision},{kind.scale})")


def check_ranges(array: pa.Array) -> None:
    """Check the digits of decimals, with the zeros that Arrow adds, and the years of times.

    Arrow checks neither. Most readers support only the years 1 to 9999.

    Raises:
        ValueError: a decimal has too many digits, or a year is not supported.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for part in array.flatten():
            check_ranges(part)
    elif pa.types.is_list(kind):
        check_ranges(array.flatten())
    elif pa.types.is_decimal(kind) and array.null_count < len(array):
        for found in pc.min_max(array).as_py().values():
            if abs(found) >= 10 ** (kind.precision - kind.scale):
                raise ValueError(f"{found} is not a number of {kind}")
    elif (pa.types.is_date(kind) or pa.types.is_timestamp(kind)) and array.null_count < len(array):
        days = pc.min_max(array.cast(pa.date32()).cast(pa.int32())).as_py()
        check_days(days["min"], days["max"])


def text_type(kind: pa.DataType) -> pa.DataType:
    """Return a type in which the parts that ``converted`` converts are text."""
    if _is_text_in_json(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(text_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_type(kind.value_type)))
    return kind


def converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array of ``text_type(kind)`` to ``kind``.

    Raises:
        ValueError: a text cannot be converted to its column's type.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = zip(array.flatten(), kind, strict=True)
        columns = [converted(part, field.type) for part, field in parts]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([array])  # removes the array's offset, which masks do not allow
        items = converted(whole.values, kind.value_type)
        return pa.ListArray.from_arrays(whole.offsets, items, type=kind, mask=whole.is_null())
    if pa.types.is_date32(kind):
        _check_all_match(array, DATE_TEXT, "a date such as 2024-01-31")
        return pc.utf8_slice_codeunits(array, 0, 10).cast(kind)
    if pa.types.is_timestamp(kind):
        return _times(array, kind)
    return pa.array([_decoded(text) for text in array.to_pylist()], kind)


def _is_text_in_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_binary(kind))


def _times(array: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Parse times. If the type has a zone, a text without one is UTC; else none may have one."""
    if kind.tz is None:
        _check_all_match(array, LOCAL_TEXT, "a time without a zone such as 2024-01-31T12:00:00")
    else:
        known = f"{ZONED_TEXT}|{LOCAL_TEXT}"
        _check_all_match(array, known, "a time such as 2024-01-31T12:00:00Z")
    cut = pc.replace_substring_regex(array, r"(\.\d{6})\d+", r"\1")
    if kind.tz is None:
        return cut.cast(kind)
    is_zoned = pc.match_substring_regex(array, ZONED_TEXT)
    has_time = pc.match_substring_regex(array, r"[T ]")
    zone = pc.if_else(is_zoned, "", pc.if_else(has_time, "Z", "T00:00Z"))
    return pc.binary_join_element_wise(cut, zone, "").cast(kind)


def _check_all_match(array: pa.Array, pattern: str, wanted: str) -> None:
    fits = pc.match_substring_regex(array, pattern)
    if not pc.all(fits).as_py() and pc.any(pc.invert(fits)).as_py():
        wrong = array.filter(pc.invert(fits))[0].as_py()
        raise ValueError(f"{wrong!r} is not {wanted}")


def _decoded(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text[:40]!r} is not Base64: {error}") from error
