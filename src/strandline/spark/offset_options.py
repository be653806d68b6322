"""Offsets and times in options: one for all partitions, or JSON with one for each.

Rules: pure; an invalid text is an ``InvalidConfigError`` that names the option and the valid forms.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from strandline.errors import InvalidConfigError
from strandline.types import PartitionName

Edge = Literal["earliest", "latest"]
PartitionKey = int | PartitionName
"""A partition of a read: its number, or stream and number if the read has several streams."""
OffsetSpec = Edge | dict[PartitionKey, int | Edge]
"""Where to start or end: one word for all partitions, or an offset or word for each."""
TimeSpec = int | dict[PartitionKey, int]
"""A time to start or end at, in Unix nanoseconds, for all partitions or by partition."""

IDENTITY = "stream"
BEGAN_AT = "began at"
OUTPUT = "output"
CHECKPOINT_WORDS = (IDENTITY, BEGAN_AT, OUTPUT)
"""Keys of the offsets in a checkpoint that name no partition."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_NS_MAX = (1 << 63) - 1_000_000_000


def parse_timestamp(text: str, *, name: str = "startingTimestamp") -> int:
    """Parse an ISO 8601 time (UTC without a zone) or Unix milliseconds to Unix nanoseconds.

    Args:
        text: the time.
        name: the option, for the error.

    Raises:
        InvalidConfigError: the text is no such time, or is outside the years 1678 to 2261.
    """
    wrong = InvalidConfigError(
        f"option '{name}' must be an ISO 8601 time such as 2013-01-01T10:00:00Z, or Unix "
        "milliseconds, of the years 1678 to 2261, or JSON with one for each partition, got "
        f"{text!r}"
    )
    if text.isdecimal():
        found = int(text) * 1_000_000
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise wrong from error
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        found = (aware - _EPOCH) // timedelta(microseconds=1) * 1_000
    if abs(found) > _TIME_NS_MAX:
        raise wrong
    return found


def parse_offsets(name: str, text: str, *, stream: str | None) -> tuple[OffsetSpec, str | None]:
    """Parse offsets, also those of a checkpoint; return them and the stream identity in them.

    Args:
        name: the name of the option.
        text: its value.
        stream: the only stream of the read; None: the read has several.
    """
    if text.lower() in ("earliest", "latest"):
        return ("earliest" if text.lower() == "earliest" else "latest"), None
    example = '{"0": 120, "1": "latest"}' if stream else '{"orders/0": 120, "orders/1": "latest"}'
    wrong = InvalidConfigError(
        f"option '{name}' must be earliest, latest or JSON such as {example}, got {text!r}"
    )
    decoded = _json_object(text, wrong)
    identity = decoded.get(IDENTITY)
    places: dict[PartitionKey, int | Edge] = {}
    for key, value in decoded.items():
        if key in CHECKPOINT_WORDS and isinstance(value, str):
            continue
        is_edge = value in ("earliest", "latest")
        is_offset = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        partition = parse_partition(key, only=stream)
        if partition is None or not (is_edge or is_offset):
            raise wrong
        places[partition] = value
    if not places:
        raise wrong
    return places, identity


def parse_times(name: str, text: str | None, *, stream: str | None) -> TimeSpec | None:
    """Parse a time for all partitions, or JSON with a time for each.

    Args:
        name: the name of the option.
        text: its value.
        stream: the only stream of the read; None: the read has several.
    """
    if text is None or not text.startswith("{"):
        return parse_timestamp(text, name=name) if text else None
    example = '{"0": "2013-01-01T10:00:00Z"}' if stream else '{"orders/0": "2013-01-01T10:00:00Z"}'
    wrong = InvalidConfigError(
        f"option '{name}' must be a time, or JSON such as {example}, got {text!r}"
    )
    times: dict[PartitionKey, int] = {}
    for key, value in _json_object(text, wrong).items():
        partition = parse_partition(key, only=stream)
        if partition is None or isinstance(value, bool) or not isinstance(value, str | int):
            raise wrong
        times[partition] = parse_timestamp(str(value), name=name)
    return times


def _json_object(text: str, wrong: InvalidConfigError) -> dict[str, Any]:
    """Decode a JSON object that is not empty.

    Raises:
        InvalidConfigError: ``wrong``: the text is not such an object.
    """
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise wrong from error
    if not isinstance(decoded, dict) or not decoded:
        raise wrong
    return decoded


def parse_partition(text: str, *, only: str | None) -> PartitionKey | None:
    """Parse the name of a partition in offsets; None: the text is not such a name.

    Args:
        text: such as ``0`` or ``orders/0``.
        only: the only stream of the read; None: there are several, so the name needs the stream.
    """
    stream, _, number = text.rpartition("/")
    if not number.isdecimal():
        return None
    if only is None:
        return PartitionName(stream, int(number)) if stream else None
    return int(number) if stream in ("", only) else None
