"""The findings of ``strandline doctor``, one per check."""

from typing import Literal

import msgspec

Status = Literal["ok", "warning", "error"]


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of this machine."""

    check: str
    """What was checked."""
    status: Status
    """``error``: a broker would not start or not keep its promises; ``warning``: it would run."""
    found: str
    """What was seen, with values."""
    advice: str = ""
    """What to change; empty where all is well."""


def ok(check: str, found: str) -> CheckFinding:
    """Return the finding of a check that passed."""
    return CheckFinding(check=check, status="ok", found=found)


def warning(check: str, found: str, advice: str) -> CheckFinding:
    """Return the finding of something to improve."""
    return CheckFinding(check=check, status="warning", found=found, advice=advice)


def error(check: str, found: str, advice: str) -> CheckFinding:
    """Return the finding of something that stops a broker."""
    return CheckFinding(check=check, status="error", found=found, advice=advice)
