"""Parsing and formatting of sizes and durations, and parsing of offsets.

Rules: pure. An invalid value raises ``typer.BadParameter``, which is a usage error.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

import typer

SIZE_UNITS = {"": 1, "B": 1}
SIZE_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}
SIZE_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
DURATION_UNITS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)")

OffsetSpec = Literal["earliest", "latest"] | int | datetime


def parse_size(text: str | int) -> int:
    """Parse a size in bytes: ``4096``, ``64MiB``, ``10GB``."""
    return _scaled(str(text), SIZE_UNITS, "a size such as 64MiB")


def parse_duration(text: str | int) -> int:
    """Parse a duration to milliseconds: ``500ms``, ``30s``, ``7d``; the default unit is ms."""
    return _scaled(str(text), {"": 1, **DURATION_UNITS}, "a duration such as 7d, 12h or 30s")


def size_text(size: int) -> str:
    """Format a size: ``64MiB`` if that is exact, else rounded to one decimal, as ``1.4GiB``."""
    for letter in "TGMK":
        unit = SIZE_UNITS[f"{letter}iB"]
        if size >= unit:
            whole, rest = divmod(size, unit)
            return f"{whole if rest == 0 else format(size / unit, '.1f')}{letter}iB"
    return f"{size}B"


def exact_size_text(size: int) -> str:
    """Format a size exactly, in the largest unit that divides it: ``1536MiB``, ``1000B``."""
    for letter in "TGMK":
        unit = SIZE_UNITS[f"{letter}iB"]
        if size and size % unit == 0:
            return f"{size // unit}{letter}iB"
    return f"{size}B" if size else "0"


def duration_text(duration_ms: int) -> str:
    """Format a duration exactly, in the largest unit that divides it: ``7d``, ``90s``, ``1500ms``.

    ``parse_duration`` accepts the result, as ``parse_size`` accepts an exact size.
    """
    for unit in ("d", "h", "min", "s"):
        if duration_ms and duration_ms % DURATION_UNITS[unit] == 0:
            return f"{duration_ms // DURATION_UNITS[unit]}{unit}"
    return f"{duration_ms}ms" if duration_ms else "0"


def setting_text(name: str, value: object) -> object:
    """Return a setting for display; its name's unit shows that it is a size or a duration."""
    if isinstance(value, int) and name.endswith("_bytes"):
        return exact_size_text(value)
    if isinstance(value, int) and name.endswith("_ms"):
        return duration_text(value)
    return value


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Name an option in usage errors that are raised within the context."""
    try:
        yield
    except typer.BadParameter as error:
        error.param_hint = f"'{option}'"
        raise


def parse_offset(text: str, now: datetime | None = None) -> OffsetSpec:
    """Parse an offset: ``earliest``, ``latest``, a number, a time or ``-15m`` (ago).

    Args:
        text: the text; a time without a zone is UTC.
        now: the time to which ``-15m`` is relative; by default the present.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    if text.startswith("-"):
        try:
            ago = timedelta(milliseconds=parse_duration(text[1:]))
            return (now or datetime.now(UTC)) - ago
        except OverflowError as error:
            raise typer.BadParameter(
                f"{text!r} is out of range; give a shorter duration"
            ) from error
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not an offset; give earliest, latest, a number, "
            "a time such as 2026-11-21T12:00:00Z, or -15m for 15 minutes ago"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_header(text: str) -> tuple[str, bytes]:
    """Parse a header: ``name: value``, or ``name=value`` with the value unchanged."""
    name, separator, value = text.partition("=" if "=" in text else ":")
    if not separator or not name.strip():
        raise typer.BadParameter(f"{text!r} is not a header; give name=value")
    return name.strip(), (value if separator == "=" else value.lstrip(" ")).encode()


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not {expected}")
    number, unit = match.groups()
    by_lower = {name.lower(): scale for name, scale in units.items()}
    if unit.lower() not in by_lower:
        raise typer.BadParameter(f"{unit!r} of {text!r} is not a known unit; give {expected}")
    return (
        int(float(number) * by_lower[unit.lower()])
        if "." in number
        else (int(number) * by_lower[unit.lower()])
    )
