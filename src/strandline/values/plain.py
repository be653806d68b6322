"""Decoded values without what JSON cannot express: NaN, infinities and pandas' times become text.

Rules: pure. The result has only types that msgspec encodes by itself.
"""

import math
from datetime import datetime, timedelta
from typing import Any


def plain(value: Any) -> Any:
    """Return a decoded value without what JSON cannot express.

    NaN and the infinities become ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, pandas' times, in
    which Arrow gives nanoseconds, their ISO 8601 text.
    """
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime | timedelta) and type(value) not in (datetime, timedelta):
        return value.isoformat()  # type: ignore[union-attr]  # pandas' Timedelta has it, too
    return value
