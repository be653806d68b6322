"""Conversion of JSON text to columns where Arrow's reader is wrong or limited: times, dates, bytes.

Rules: such columns are read as text and converted here, whole arrays at once; a text of another
kind is an error that names it. A fraction of a second is truncated to microseconds, as Spark keeps;
a date's day is the one written, whatever zone follows it; a time with a zone never becomes one
without. ``docs/pipelines.md`` has the table. Must not know records or streams.
"""

import base64
import binascii
import json

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_DATE = r"\d{4}-\d{2}-\d{2}"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?"
_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)"
DATE_TEXT = rf"^{_DATE}([T ]{_TIME}{_ZONE}?)?$"
LOCAL_TEXT = rf"^{_DATE}([T ]{_TIME})?$"
ZONED_TEXT = rf"^{_DATE}[T ]{_TIME}{_ZONE}$"
_VALUES = msgspec.json.Decoder(msgspec.Raw)


def check_one_value_each(lines: bytes, values: list[str]) -> None:
    """Check that each value is exactly one JSON value.

    Args:
        lines: the values, one per line.
        values: the same.

    Raises:
        ValueError: one is not.
    """
    try:
        if len(_VALUES.decode_lines(lines)) == len(values):
            return
    except (msgspec.DecodeError, RecursionError):
        pass  # NaN and Infinity, which Python and Arrow read, are looked at below
    try:
        for value in values:
            json.loads(value)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not one JSON value: {error}") from error


def text_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with text in place of what ``converted`` converts."""
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
        ValueError: a text is not of its column's kind.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = zip(array.flatten(), kind, strict=True)
        columns = [converted(part, field.type) for part, field in parts]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([array])  # without an offset, which a mask does not allow
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
    """Parse times: with a zone, or in UTC, if the type has one; else without a zone."""
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
