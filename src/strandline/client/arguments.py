"""What users give as numbers and moments, checked where it is given.

Numbers come from arrays and data frames, too: whatever Python itself takes as an index is one.
"""

import math
import operator
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from strandline.client.results import EPOCH
from strandline.errors import InvalidRecordError, InvalidRequestError
from strandline.types import PartitionName

_TIME_NS_MAX = (1 << 63) - 1
_WAIT_S_MAX = 1e9
"""No lock of Python's waits for ever if it is given a time."""


def whole_number(value: Any, what: str) -> int:
    """A whole number as Python's own; ``what`` says which one it is.

    Raises:
        InvalidRequestError: it is none.
    """
    if not isinstance(value, bool):
        try:
            return int(operator.index(value))
        except TypeError:
            pass
    raise InvalidRequestError(f"{what} is a whole number, not {value!r}")


def check_number(value: Any, what: str, *, least: float = 0) -> None:
    """Refuse what is no number, or a smaller one; ``what`` says which it is.

    Raises:
        InvalidRequestError: it is.
    """
    try:
        is_good = bool(value >= least)  # no NaN
    except TypeError:
        is_good = False
    if not is_good:
        raise InvalidRequestError(f"{what} is a number from {least:g} on, not {value!r}")


def wait(seconds: Any, what: str) -> float:
    """How long to wait at most, in seconds; a time that is over is none. ``what`` says which it is.

    Raises:
        InvalidRequestError: it is no number.
    """
    try:
        if seconds >= 0:
            return float(min(seconds, _WAIT_S_MAX))
        if seconds < 0:
            return 0.0
    except TypeError:
        pass
    raise InvalidRequestError(f"{what} is a number of seconds, not {seconds!r}")


def milliseconds(seconds: Any, what: str) -> int:
    """A time in milliseconds, one at least; ``what`` says which one it is.

    Raises:
        InvalidRequestError: it is none, or no positive one.
    """
    try:
        if 0 < seconds < math.inf:
            return max(1, int(seconds * 1e3))
    except TypeError:
        pass
    raise InvalidRequestError(f"{what} is a positive number of seconds, not {seconds!r}")


def text(name: Any, what: str) -> str:
    """A name; ``what`` says of what. Others would be sent as something else: bytes as Base64.

    Raises:
        InvalidRequestError: it is no text.
    """
    if not isinstance(name, str):
        raise InvalidRequestError(f"the name of {what} is text, not {name!r}")
    return name


def listed(values: Any, what: str) -> list[Any]:
    """Several of something; ``what`` says of what. One alone is easily given in their place.

    Raises:
        InvalidRequestError: it is one, or nothing of which there could be several.
    """
    if not isinstance(values, str | bytes):
        try:
            return list(values)
        except TypeError:
            pass
    raise InvalidRequestError(f"{what} is a list; for one give [{values!r}]")


def utf8(said: str, what: str) -> bytes:
    """Text as bytes; ``what`` says which.

    Raises:
        InvalidRecordError: there are none, as half of a surrogate pair has no UTF-8.
    """
    try:
        return said.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"a {what} is not valid Unicode: {error}") from error


def offsets_by_number(offsets: Any, what: str) -> dict[int, int]:
    """Offsets of the partitions of a stream as Python's own numbers; ``what`` says which.

    Raises:
        InvalidRequestError: they are none.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidRequestError(f"{what} is offsets by partition, as {{0: 17}}, not {offsets!r}")
    return {
        whole_number(number, "partition"): whole_number(at, "an offset")
        for number, at in offsets.items()
    }


def offsets_by_partition(offsets: Mapping[Any, Any]) -> dict[PartitionName, int]:
    """Offsets of partitions as Python's own numbers.

    Raises:
        InvalidRequestError: they are none.
    """
    try:
        given = [(text(name, "a stream"), number, at) for (name, number), at in offsets.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"give offsets by stream and partition, such as {{('orders', 0): 17}}, not {offsets!r}"
        ) from error
    return {
        PartitionName(stream, whole_number(number, "a partition")): whole_number(at, "an offset")
        for stream, number, at in given
    }


def nanoseconds(moment: datetime) -> int:
    """Unix time in nanoseconds; a moment without a zone is in UTC.

    So it is for the command line and Spark: the same text means the same moment on every machine.

    Raises:
        InvalidRequestError: it is no moment, or beyond what 64 bits hold.
    """
    if not isinstance(moment, datetime):
        raise InvalidRequestError(f"a time is a datetime, not {moment!r}")
    try:
        plain = datetime.combine(moment.date(), moment.timetz())
    except ValueError as error:  # pandas' NaT
        raise InvalidRequestError(f"a time is a datetime, not {moment!r}") from error
    aware = plain if plain.utcoffset() is not None else plain.replace(tzinfo=UTC)
    found = (aware - EPOCH) // timedelta(microseconds=1) * 1000
    if abs(found) > _TIME_NS_MAX:
        raise InvalidRequestError(
            f"timestamp out of range: {moment!r}; give a time of the years 1678 to 2261"
        )
    return found
