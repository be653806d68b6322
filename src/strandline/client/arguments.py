"""What users give as numbers and moments, checked where it is given.

Numbers come from arrays and data frames, too: whatever Python itself takes as an index is one.
"""

import operator
from datetime import datetime, timedelta
from typing import Any

from strandline.client.results import EPOCH
from strandline.errors import InvalidRequestError


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


def nanoseconds(moment: datetime) -> int:
    """Unix time in nanoseconds; a naive moment is in local time, as everywhere in Python.

    Raises:
        InvalidRequestError: it is no moment.
    """
    if not isinstance(moment, datetime):
        raise InvalidRequestError(f"a time is a datetime, not {moment!r}")
    plain = datetime.combine(moment.date(), moment.timetz())  # pandas' own knows no local time
    return (plain.astimezone() - EPOCH) // timedelta(microseconds=1) * 1000
