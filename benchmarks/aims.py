"""Aims: what a benchmark should reach, beside what it measured.

Rules: an aim that is missed is a figure, not an error; an aim that could not be measured (a peer is
not on this machine) says so. A ratio of 1 or more means met, whichever direction is good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

UNIT_DIGITS: Final = 3
BIG: Final = 1000


@dataclass(frozen=True)
class Aim:
    """One promise. With `at_most`, less is better. `measured` is None if it could not be had."""

    name: str
    wanted: float
    measured: float | None
    unit: str
    at_most: bool = False

    @property
    def ratio(self) -> float | None:
        """Return measured over wanted, or the inverse where less is better."""
        if self.measured is None:
            return None
        over, under = (self.wanted, self.measured) if self.at_most else (self.measured, self.wanted)
        return over / under if under > 0 else math.inf

    @property
    def is_met(self) -> bool | None:
        """Whether it is met; None if it was not measured."""
        return None if self.ratio is None else self.ratio >= 1

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary, for a results file."""
        ratio = self.ratio if self.ratio is None or math.isfinite(self.ratio) else None
        return {**asdict(self), "ratio": ratio, "is_met": self.is_met}


def number(value: float, unit: str = "") -> str:
    """A figure as a person reads it: thousands separated, or three significant digits."""
    text = f"{value:,.0f}" if abs(value) >= BIG else f"{value:.{UNIT_DIGITS}g}"
    return f"{text} {unit}".strip()


def verdict(aim: Aim) -> str:
    """`met`, `missed` or `not measured`."""
    return {True: "met", False: "**missed**", None: "not measured"}[aim.is_met]


def aim_rows(aims: Sequence[Aim]) -> list[list[str]]:
    """Cells of the table of aims."""
    rows = []
    for aim in aims:
        sign = "≤" if aim.at_most else "≥"
        measured = "-" if aim.measured is None else number(aim.measured, aim.unit)
        ratio = "-" if aim.ratio is None else f"{aim.ratio:.2f}"
        wanted = f"{sign} {number(aim.wanted, aim.unit)}"
        rows.append([aim.name, wanted, measured, verdict(aim), ratio])
    return rows


AIM_HEAD: Final = ("aim", "wanted", "measured", "", "ratio (1 or more is met)")
