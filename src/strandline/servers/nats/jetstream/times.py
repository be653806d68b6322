"""Times and durations as JetStream writes them: RFC 3339 with nanoseconds. Pure."""

import calendar
import re
from datetime import UTC, datetime
from typing import Final

from strandline.types import TimestampNs

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
ZERO_TIME: Final = "0001-01-01T00:00:00Z"
"""Go's zero time."""
SECONDS_LENGTH: Final = len("0001-01-01T00:00:00")
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?"
    r"(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))",
    re.ASCII,
)


def format_time(time_ns: int) -> str:
    """Return a Unix time in nanoseconds in Go's format, without trailing zeros."""
    seconds, fraction = divmod(time_ns, NS_PER_S)
    text = datetime.fromtimestamp(seconds, UTC).isoformat()[:SECONDS_LENGTH]
    digits = f"{fraction:09}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def parse_time(text: str) -> TimestampNs:
    """Return the Unix time in nanoseconds.

    Raises:
        ValueError: the text is not a time.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"not a time: {text[:40]!r}")
    *parts, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = map(int, parts)
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    seconds = calendar.timegm(moment.timetuple())
    if sign:
        ahead = int(hours) * 3600 + int(minutes) * 60
        seconds -= ahead if sign == "+" else -ahead
        datetime.fromtimestamp(seconds, UTC)  # raises if the year is out of range
    nanoseconds = int(((fraction or "") + "0" * 9)[:9])
    return TimestampNs(seconds * NS_PER_S + nanoseconds)


def ms_of(duration_ns: int) -> int:
    """Return a duration in milliseconds, rounded up."""
    return -(-duration_ns // NS_PER_MS)
