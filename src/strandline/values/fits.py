"""The check whether a single value fits a stream's schema, for ``schema_validation``.

Rules: ``decode`` can read every value that fits. A value is checked in Python, in a few
microseconds, because its publisher waits; ``decode`` takes a hundred times as long for a single
value. A value that does not fit costs no more than one that does. A record without a value (a
tombstone) fits.
"""

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa

from strandline.values.columns import arrow_schema, type_text
from strandline.values.decode import json_judge
from strandline.values.frame import json_unframer
from strandline.values.json_text import (
    DATE_TEXT,
    LOCAL_TEXT,
    ZONED_TEXT,
    NumberText,
    decimal_fits,
    decimals_of,
    excerpt,
)
from strandline.values.schema import SchemaVersion, names_by_column

Reason = str | None
"""The reason why a value does not fit; None: it fits."""
Test = Callable[[Any], bool]
"""A function that returns whether a decoded part of a value fits a column."""

_INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_DATE, _LOCAL, _ZONED = map(re.compile, (DATE_TEXT, LOCAL_TEXT, ZONED_TEXT))
_ZONE = re.compile(r"[+-](\d{2})(?::?(\d{2}))?$")
_SURROGATE_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HOURS_MAX, _MINUTES_MAX = 23, 59
_DAY_MINUTES = 24 * 60
_LARGE = re.compile(rb"[0-9][eE]\+?[0-9]{3}")
_EXPONENT_MAX = 308
"""The largest exponent of a double; Arrow's parser rejects a larger one, even of zero."""
_FAST_NAMES_MAX = 32


class _Constant(float):
    """NaN or an infinity that was read from a value; standard JSON has neither."""

    __slots__ = ()


class _Repeating(dict[str, Any]):
    """An object in which names are there twice."""

    __slots__ = ("names",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.names = {name for name in names if names.count(name) > 1}


def misfit_finder(versions: Sequence[SchemaVersion]) -> Callable[[bytes | None], Reason]:
    """Return a function that says why a value does not fit the versions of a schema.

    Args:
        versions: ascending, at least one.
    """
    if versions[-1].format == "avro":
        return _avro_finder(versions)
    if versions[-1].format == "protobuf":
        return _protobuf_finder(versions)
    return _JsonFinder(versions)


def _avro_finder(versions: Sequence[SchemaVersion]) -> Callable[[bytes | None], Reason]:
    from strandline.values.avro import versions_reader

    read, kind = versions_reader(versions), pa.struct(list(arrow_schema(versions[-1].columns)))

    def find(value: bytes | None) -> Reason:
        try:
            if value is not None:
                pa.array([read(value)], kind)
        except (ValueError, ArithmeticError, pa.ArrowException) as error:
            return str(error)
        return None

    return find


def _protobuf_finder(versions: Sequence[SchemaVersion]) -> Callable[[bytes | None], Reason]:
    from strandline.values.protobuf import message_check

    check = message_check(versions)

    def find(value: bytes | None) -> Reason:
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            return str(error)
        return None

    return find


class _JsonFinder:
    """Checks JSON values by the columns of the newest version, under all names they ever had."""

    def __init__(self, versions: Sequence[SchemaVersion]) -> None:
        newest, known = versions[-1].columns, names_by_column(versions)
        self._unframed, self._judge = json_unframer(versions), json_judge(versions)
        schema = arrow_schema(newest)
        self._columns = [
            (name, field.type, _test_of(field.type))
            for field in schema
            for name in known[field.name]
        ]
        self._required = [known[column.name] for column in newest if not column.nullable]
        self._names = {*known}
        names = {*_names(schema), *known}
        self._quoted = [b'"%b"' % name.encode() for name in names]
        has_decimals = any(decimals_of(kind) for kind in schema.types)
        # With many names, the search for repeated ones takes longer than Python's parser.
        is_slow = has_decimals or len(names) > _FAST_NAMES_MAX
        self._decode_fast = None if is_slow else msgspec.json.Decoder().decode
        self._decode = json.JSONDecoder(
            object_pairs_hook=_object,
            parse_float=_number_text if has_decimals else lambda text: float(_number_text(text)),
            parse_constant=_Constant,
        ).decode

    def __call__(self, value: bytes | None) -> Reason:
        if value is None:
            return None
        try:
            return self._reason(self._unframed(value))
        except UnicodeDecodeError:
            return "the value is not UTF-8"
        except UnicodeEncodeError:
            return "a text has half a character, written as one \\u escape of two"
        except RecursionError:
            return "JSON that is nested too deeply"
        except ValueError as error:
            return str(error)

    def _reason(self, value: bytes) -> Reason:
        try:
            parsed = self._parsed(value)
        except (UnicodeDecodeError, UnicodeEncodeError):
            raise
        except ValueError as error:
            raise ValueError(f"not one JSON value: {error}") from error
        reason = self._misfit(parsed)
        return self._judge(value) if reason is None and self._judge else reason

    def _parsed(self, value: bytes) -> Any:
        if (
            self._decode_fast is not None
            and b"\\" not in value
            and not _LARGE.search(value)
            and all(value.count(name) < 2 for name in self._quoted)
        ):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                return self._decode_fast(value)
            # A value that msgspec rejects has NaN or Infinity, which Arrow accepts, or is not JSON.
        text = value.decode()
        found = self._decode(text)
        if "\\u" in text and _SURROGATE.search(_SURROGATE_PAIR.sub("", text)):
            json.dumps(found, ensure_ascii=False).encode()
        return found

    def _misfit(self, value: Any) -> Reason:
        if value is None:
            value = {}
        if not _has_once(value, self._names):
            return f"the value is {_excerpt(value)}, not a JSON object"
        for name, kind, fits in self._columns:
            part = value.get(name)
            if part is not None and not fits(part):
                return f"column {name!r} is {type_text(kind)}, which cannot hold {_excerpt(part)}"
        for names in self._required:
            if all(value.get(name) is None for name in names):
                return f"{names[0]!r}, which the schema requires, is missing or null"
        return None


def _excerpt(part: Any) -> str:
    return excerpt(str(part) if isinstance(part, NumberText) else json.dumps(part, default=str))


def _number_text(text: str) -> NumberText:
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and int(exponent) > _EXPONENT_MAX + len(mantissa.partition(".")[2]):
        raise ValueError(f"the number {excerpt(text)} is too large")
    return NumberText(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeating(pairs)


def _has_once(part: Any, names: Collection[str]) -> bool:
    """Return whether this is an object.

    Raises:
        ValueError: which of two values of a column counts would depend on the reader.
    """
    if type(part) is not _Repeating:
        return type(part) is dict
    if twice := part.names.intersection(names):
        raise ValueError(f"{min(twice)!r} is there twice in one object")
    return True


def _names(fields: Iterable[pa.Field]) -> Iterable[str]:
    """Yield the names of columns and of their nested fields."""
    for field in fields:
        yield field.name
        kind = field.type
        yield from _names(kind.field(i) for i in range(kind.num_fields))


def _test_of(kind: pa.DataType) -> Test:
    """Return the test of a type of column."""
    if kind in _INTEGERS:
        limit = 1 << _INTEGERS[kind]
        return lambda part: type(part) is int and -limit <= part < limit
    if pa.types.is_floating(kind):
        return _is_number
    if pa.types.is_boolean(kind):
        return lambda part: type(part) is bool
    if pa.types.is_string(kind):
        return lambda part: type(part) is str
    if pa.types.is_decimal(kind):
        return _decimal_test(kind)
    if pa.types.is_binary(kind):
        return _is_base64
    if pa.types.is_date(kind):
        return lambda part: _is_time(part, _DATE)
    if pa.types.is_timestamp(kind):
        patterns = (_LOCAL,) if kind.tz is None else (_ZONED, _LOCAL)
        return lambda part: _is_time(part, *patterns)
    if pa.types.is_list(kind):
        return _list_test(kind)
    assert pa.types.is_struct(kind), kind
    return _struct_test(kind)


def _is_number(part: Any) -> bool:
    return type(part) in (int, float, NumberText, _Constant)


def _decimal_test(kind: pa.Decimal128Type) -> Test:
    return lambda part: type(part) in (int, str, NumberText) and decimal_fits(str(part), kind)


def _is_base64(part: Any) -> bool:
    if type(part) is not str:
        return False
    try:
        base64.b64decode(part.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_time(part: Any, *patterns: re.Pattern[str]) -> bool:
    if type(part) is not str or not part.isascii() or part.endswith("\n"):
        return False
    if not any(pattern.match(part) for pattern in patterns):
        return False
    try:
        day = date(int(part[:4]), int(part[5:7]), int(part[8:10]))
    except ValueError:
        return False  # no such day, or the year 0, which no Python reader has
    zone = None if _DATE in patterns else _ZONE.search(part, 16)
    if not zone:
        return True  # of a date the day is the one written
    hours, minutes = int(zone[1]), int(zone[2] or 0)
    if hours > _HOURS_MAX or minutes > _MINUTES_MAX:
        return False
    shift = (hours * 60 + minutes) * (1 if zone[0][0] == "-" else -1)
    in_utc = int(part[11:13]) * 60 + int(part[14:16]) + shift
    return not (day == date.min and in_utc < 0) and not (day == date.max and in_utc >= _DAY_MINUTES)


def _list_test(kind: pa.ListType) -> Test:
    fits = _test_of(kind.value_type)
    return lambda part: type(part) is list and all(each is None or fits(each) for each in part)


def _struct_test(kind: pa.StructType) -> Test:
    tests = [(field.name, _test_of(field.type)) for field in kind]
    own = {field.name for field in kind}
    return lambda part: (
        _has_once(part, own)
        and all(part.get(name) is None or fits(part[name]) for name, fits in tests)
    )
