"""The findings of ``strandline doctor``, one per check."""

from typing import Literal

import msgspec

Status = Literal["ok", "warning", "error"]


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    """What was checked."""
    status: Status
    """``error``: a broker cannot start or cannot guarantee durability; ``warning``: a broker can
    run."""
    detail: str
    """What the check has found, with values."""
    advice: str = ""
    """What to change; empty if nothing."""


def ok(check: str, detail: str) -> CheckFinding:
    """Return the finding of a check that passed."""
    return CheckFinding(check=check, status="ok", detail=detail)


def warning(check: str, detail: str, advice: str) -> CheckFinding:
    """Return the finding of a check that found something to improve."""
    return CheckFinding(check=check, status="warning", detail=detail, advice=advice)


def error(check: str, detail: str, advice: str) -> CheckFinding:
    """Return the finding of a check that found something that stops a broker."""
    return CheckFinding(check=check, status="error", detail=detail, advice=advice)
