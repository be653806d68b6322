"""The years that values may have: 1 to 9999, as most readers have no others."""

from datetime import date
from typing import Final

NOT_IN_YEARS: Final = "a date or time is not in the years 1 to 9999"
_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = ((day - _EPOCH).days for day in (date.min, date.max))


def check_days(first: int, last: int) -> None:
    """Check that a range of days, counted from 1970, is within these years.

    Raises:
        ValueError: it is not.
    """
    if first < _FIRST_DAY or last > _LAST_DAY:
        raise ValueError(NOT_IN_YEARS)
