"""The result page of the mutation runs: how many mistakes were noticed where, and each survivor."""

import tomllib
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trials import TIMED_OUT

CORES = ("record", "core", "types.py")
STRICT = (*CORES, "storage", "broker")
STRICT_AREA = "cores, storage, broker"
AIMS = {STRICT_AREA: 0.95, "elsewhere": 0.90}
VERDICTS = Path(__file__).with_name("survivors.toml")
ADDED = "a test was added"
EQUIVALENT = "makes no difference"
BY_HAND = "noticed by hand"
"""By a test that the tool had no time for."""
METHOD = """\
Each mistake was alone in a copy of the tree. Three stages of tests were run until one failed: those
that mirror or import the file; unit tests near it; the eight tests of whole processes that share
the most words with the line, its function and its file. A failure counts if it comes again with the
mistake and not without it; so does a test that waits for ever, which the tool ends after a minute.
A survivor for which a test was added was tried again, and counts as noticed since only if it then
was; so does one that was tried by hand with a test which takes longer than the tool was given. The
shares are of the mistakes that make a difference: of those noticed at once, and of those and the
ones noticed since."""
HEAD = (
    "| Area | Drawn | Noticed at once | Noticed since | Makes no difference "
    "| Not noticed | Share at once | Share since | Aim |"
)


def area_of(path: str) -> str:
    """Which aim a file has."""
    folder = path.removeprefix("src/strandline/").partition("/")[0]
    return STRICT_AREA if folder in STRICT else "elsewhere"


def key_of(named: dict[str, Any]) -> tuple[str, str, str]:
    """A mistake, wherever it stands in the file by now."""
    return named["file"], named["before"], named["after"]


def verdicts() -> dict[tuple[str, str, str], dict[str, str]]:
    """What was decided of survivors."""
    return {key_of(each): each for each in tomllib.loads(VERDICTS.read_text()).get("survivor", [])}


def page(
    trials: list[dict[str, Any]], *, at_once: set[tuple[str, str, str]], commands: list[str]
) -> str:
    """The page in Markdown.

    Args:
        trials: the newest of each mistake.
        at_once: the mistakes that were noticed when they were tried for the first time.
        commands: what was run.
    """
    judged = verdicts()
    counted: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
    survived, caught = [], []
    for each in trials:
        key = key_of(each)
        verdict = judged.get(key, {})
        decided = verdict.get("verdict")
        said = f"{decided}: {verdict['reason']}" if verdict else "not judged yet"
        counts = counted[area_of(each["file"])]
        counts[0] += 1
        if each["noticed"] or decided == BY_HAND:
            counts[1 if key in at_once else 2] += 1
        else:
            counts[3 if decided == EQUIVALENT else 4] += 1
        change = f"`{_cell(each['before'])}` → `{_cell(each['after'])}`"
        place = f"`{each['file'].removeprefix('src/strandline/')}:{each['line']}`"
        if not each["noticed"]:
            survived.append(f"| {place} | {change} | {said} |")
        elif key not in at_once:
            caught.append(f"| {place} | {change} | `{each['by'].partition(': ')[2]}` |")
    stages: dict[str, int] = defaultdict(int)
    for each in trials:
        if each["noticed"]:
            stages[each["by"].partition(":")[0]] += 1
    told = ", ".join(f"{count} in the stage '{stage}'" for stage, count in sorted(stages.items()))
    waited = sum(each["noticed"] and each["by"].endswith(TIMED_OUT) for each in trials)
    told += f"; {waited} of them by a test that waited for ever" if waited else ""
    lines = [
        "# Single mistakes, and whether a test notices",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}: {len(trials)} mistakes, drawn by",
        "",
        *(f"- `{command}`" for command in commands),
        "",
        METHOD,
        "",
        HEAD,
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for area, aim in AIMS.items():
        drawn, at_first, since, equal, missed = counted[area]
        matters = drawn - equal
        shares = [
            f"{noticed / matters:.1%}" if matters else "-"
            for noticed in (at_first, at_first + since)
        ]
        cells = (area, drawn, at_first, since, equal, missed, *shares, f"{aim:.0%}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", f"Noticed: {told or 'none'}.", "", "## Not noticed", ""]
    if survived:
        lines += ["| Where | Change | Verdict |", "|---|---|---|", *sorted(survived)]
    else:
        lines.append("None.")
    if caught:
        lines += ["", "## Noticed by a test added since", ""]
        lines += ["| Where | Change | Noticed by |", "|---|---|---|", *sorted(caught)]
    lines += ["", "## Before", "", tomllib.loads(VERDICTS.read_text())["earlier"].strip()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
