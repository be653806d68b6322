"""Values as text for people: sizes, durations, counts, times, and bytes that may be hostile.

Rules: pure. Units are parsed as in the CLI. Characters that could control a terminal, are
    invisible,
or change the direction of text are shown as escapes.
"""

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Final

from strandline.errors import InvalidRequestError

SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
DURATION_UNITS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")
_KEPT = "\n\t"
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Categories of Unicode characters that are shown as escapes."""


def size(size_bytes: float) -> str:
    """Return a number of bytes in the largest fitting binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    used = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(used[:2]) or "0 s"


def number(value: float) -> str:
    """Return a number with separators, and with one decimal if it is small."""
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def format_time(at_ns: int) -> str:
    """Return a Unix time in nanoseconds as UTC, to the millisecond."""
    try:
        return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"


def format_time_ns(at_ns: int) -> str:
    """Return a Unix time as ISO 8601 with nine decimals of the second, as in the CLI."""
    seconds, rest = divmod(at_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"


def escape_hidden(text: str) -> str:
    """Return text with every invisible or control character as an escape."""
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if char not in _KEPT and unicodedata.category(char) in _HIDDEN else char
        for char in text
    )


def parse_size(text: str, what: str) -> int:
    """Parse a size in bytes, such as ``64MiB``.

    Raises:
        InvalidRequestError: the text is not a size.
    """
    return _scaled(text, SIZE_UNITS, f"{what}: {text!r} is not a size; write for example 64MiB")


def parse_duration(text: str, what: str) -> int:
    """Parse a duration to milliseconds, such as ``7d``; the default unit is ms.

    Raises:
        InvalidRequestError: the text is not a duration.
    """
    hint = f"{what}: {text!r} is not a duration; write for example 7d, 12h or 30s"
    return _scaled(text, DURATION_UNITS, hint)


def parse_count(text: str, what: str) -> int:
    """Parse a whole number of at least 0.

    Raises:
        InvalidRequestError: the text is not such a number.
    """
    plain = text.strip().replace(",", "")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 18):
        raise InvalidRequestError(f"{what} must be a whole number, got {text!r}")
    return int(plain)


def parse_time(text: str, now_ns: int) -> datetime:
    """Parse a time (UTC unless it has a zone), or ``-15m`` for 15 minutes ago.

    Raises:
        InvalidRequestError: the text is neither.
    """
    hint = f"{text!r} is not a time; write for example 2026-11-21T12:00:00Z, or -15m"
    try:
        if text.startswith("-"):
            ago = timedelta(milliseconds=parse_duration(text[1:], "time"))
            return datetime.fromtimestamp(now_ns / 1e9, UTC) - ago
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, InvalidRequestError) as error:
        raise InvalidRequestError(hint) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _scaled(text: str, units: dict[str, int], refusal: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise InvalidRequestError(refusal)
    scale = units[match[2].lower()]
    return int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
