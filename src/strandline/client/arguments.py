"""Checks of user arguments: numbers, names, offsets and times.

Numbers may come from arrays and data frames: anything that Python accepts as an index is a number.
"""

import difflib
import inspect
import math
import operator
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from strandline.client.reader.results import EPOCH
from strandline.errors import InvalidRecordError, InvalidRequestError
from strandline.types import PartitionName

_TIME_NS_MAX = (1 << 63) - 1
_WAIT_S_MAX = 1e9
"""The longest wait in seconds: Python's locks accept no infinite timeout."""


def options_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's keyword-only arguments."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def check_options(method: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Reject options that a public method does not have, as Python does for its parameters.

    Raises:
        TypeError: there is such an option; the message names method, option, and the most similar
            one.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}; {hint}")


def whole_number(value: Any, what: str) -> int:
    """Convert a whole number to ``int``; errors name it by ``what``.

    Raises:
        InvalidRequestError: the value is not a whole number.
    """
    if not isinstance(value, bool):
        try:
            return int(operator.index(value))
        except TypeError:
            pass
    raise InvalidRequestError(f"{what} must be a whole number, got {value!r}")


def check_number(value: Any, what: str, *, least: float = 0) -> None:
    """Check that a number is at least ``least``; errors name it by ``what``.

    Raises:
        InvalidRequestError: the value is not a number, or is smaller.
    """
    try:
        is_good = bool(value >= least)  # False for NaN
    except TypeError:
        is_good = False
    if not is_good:
        raise InvalidRequestError(f"{what} must be a number of at least {least:g}, got {value!r}")


def wait(seconds: Any, what: str) -> float:
    """Convert a timeout to seconds, at least 0; errors name it by ``what``.

    Raises:
        InvalidRequestError: the value is not a number.
    """
    try:
        if seconds >= 0:
            return float(min(seconds, _WAIT_S_MAX))
        if seconds < 0:
            return 0.0
    except TypeError:
        pass
    raise InvalidRequestError(f"{what} must be a number of seconds, got {seconds!r}")


def milliseconds(seconds: Any, what: str) -> int:
    """Convert seconds to milliseconds, at least 1; errors name the time by ``what``.

    Raises:
        InvalidRequestError: the value is not a positive number.
    """
    try:
        if 0 < seconds < math.inf:
            return max(1, int(seconds * 1e3))
    except TypeError:
        pass
    raise InvalidRequestError(f"{what} must be a positive number of seconds, got {seconds!r}")


def text(name: Any, what: str) -> str:
    """Return a name if it is text (JSON would encode bytes as Base64); errors name it by ``what``.

    Raises:
        InvalidRequestError: the name is not text.
    """
    if not isinstance(name, str):
        raise InvalidRequestError(f"the name of {what} must be text, got {name!r}")
    return name


def listed(values: Any, what: str) -> list[Any]:
    """Convert an iterable to a list; reject a single text or bytes instead of several values.

    Raises:
        InvalidRequestError: the value is a single one, or not iterable.
    """
    if not isinstance(values, str | bytes):
        try:
            return list(values)
        except TypeError:
            pass
    raise InvalidRequestError(f"{what} must be a list, got {values!r}; write [{values!r}]")


def utf8(given: str, what: str) -> bytes:
    """Encode text as UTF-8; errors name it by ``what``.

    Raises:
        InvalidRecordError: the text has a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        return given.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecordError(
            f"a {what} has {given[error.start]!a}, half of a character, which UTF-8 cannot encode; "
            "give bytes, or the whole character"
        ) from error


def offsets_by_number(offsets: Any, what: str) -> dict[int, int]:
    """Convert offsets by partition number to plain integers; errors name them by ``what``.

    Raises:
        InvalidRequestError: the offsets are not a mapping of whole numbers.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidRequestError(
            f"{what} must be offsets by partition, e.g. {{0: 17}}, got {offsets!r}"
        )
    return {
        whole_number(number, "partition"): whole_number(at, "an offset")
        for number, at in offsets.items()
    }


def offsets_by_partition(offsets: Mapping[Any, Any]) -> dict[PartitionName, int]:
    """Convert offsets by stream and partition to plain integers.

    Raises:
        InvalidRequestError: the offsets are not a mapping of whole numbers.
    """
    try:
        given = [(text(name, "a stream"), number, at) for (name, number), at in offsets.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"offsets must be by stream and partition, e.g. {{('orders', 0): 17}}, got {offsets!r}"
        ) from error
    return {
        PartitionName(stream, whole_number(number, "a partition")): whole_number(at, "an offset")
        for stream, number, at in given
    }


def nanoseconds(moment: datetime) -> int:
    """Convert a time to Unix nanoseconds; a time without a zone is in UTC, on every machine.

    Raises:
        InvalidRequestError: the value is not a datetime, or does not fit into 64 bits.
    """
    if not isinstance(moment, datetime):
        raise InvalidRequestError(f"a time must be a datetime, got {moment!r}")
    try:
        plain = datetime.combine(moment.date(), moment.timetz())
    except ValueError as error:  # such as NaT of pandas
        raise InvalidRequestError(f"a time must be a datetime, got {moment!r}") from error
    aware = plain if plain.utcoffset() is not None else plain.replace(tzinfo=UTC)
    found = (aware - EPOCH) // timedelta(microseconds=1) * 1000
    if abs(found) > _TIME_NS_MAX:
        raise InvalidRequestError(
            f"timestamp out of range: {moment!r}; give a time of the years 1678 to 2261"
        )
    return found
