"""The result page of the mutation run: how many mistakes were noticed where, and each survivor."""

import tomllib
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CORES = ("record", "metadata", "consensus", "replication", "groups", "transactions", "types.py")
STRICT = (*CORES, "storage", "broker")
VERDICTS = Path(__file__).with_name("survivors.toml")
AIMS = {"cores, storage, broker": 0.95, "elsewhere": 0.90}


def area_of(path: str) -> str:
    """Which aim a file has."""
    folder = path.removeprefix("src/strandline/").partition("/")[0]
    return "cores, storage, broker" if folder in STRICT else "elsewhere"


def verdicts() -> dict[tuple[str, str, str], dict[str, str]]:
    """What was decided of survivors, by file and the changed line before and after."""
    judged = tomllib.loads(VERDICTS.read_text()).get("survivor", [])
    return {(each["file"], each["before"], each["after"]): each for each in judged}


def page(trials: list[dict[str, Any]], *, seed: int, command: str) -> str:
    """The page in Markdown."""
    judged = verdicts()
    counted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    rows = []
    for each in trials:
        counts = counted[area_of(each["file"])]
        verdict = judged.get((each["file"], each["before"], each["after"]), {})
        if each["noticed"] or verdict.get("verdict") == "a test was added":
            counts[0] += 1
        elif verdict.get("verdict") == "makes no difference":
            counts[1] += 1
        else:
            counts[2] += 1
        if not each["noticed"]:
            said = "not judged yet"
            if verdict:
                said = f"{verdict['verdict']}: {verdict['reason']}"
            elif each.get("mirrors_only"):
                said = "not judged yet; only the tests that mirror the file were run"
            change = f"`{_cell(each['before'])}` → `{_cell(each['after'])}`"
            rows.append(f"| `{each['file']}:{each['line']}` | {change} | {said} |")
    partly = sum(bool(each.get("mirrors_only")) and not each["noticed"] for each in trials)
    intro = (
        f"{datetime.now(UTC):%Y-%m-%d}, `{command}`: {len(trials)} mistakes from seed {seed}, each "
        "alone in a copy of the tree. The tests that mirror the file ran first, then the "
        "integration tests that go through it. A mistake that makes no difference to behaviour "
        "counts for neither side."
        + (f" Of those not noticed {partly} have not met the integration tests yet." * bool(partly))
    )
    lines = [
        "# Single mistakes, and whether a test notices",
        "",
        intro,
        "",
        "| Area | Noticed | Makes no difference | Not noticed | Share | Aim |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for area, aim in AIMS.items():
        noticed, equal, missed = counted[area]
        share = noticed / (noticed + missed) if noticed + missed else 1.0
        lines.append(f"| {area} | {noticed} | {equal} | {missed} | {share:.1%} | {aim:.0%} |")
    stages: dict[str, int] = defaultdict(int)
    for each in trials:
        if each["noticed"]:
            stages[each["by"].partition(":")[0]] += 1
    told = ", ".join(f"{count} by {stage} tests" for stage, count in sorted(stages.items()))
    lines += [
        "",
        f"Noticed in the run itself: {sum(stages.values())} of {len(trials)} ({told or 'none'}).",
        "The table also counts a mistake as noticed if a test was added for it afterwards.",
    ]
    lines += ["", "## Not noticed in the run", ""]
    if rows:
        lines += ["| Where | Change | Verdict |", "|---|---|---|", *sorted(rows)]
    else:
        lines.append("None.")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
