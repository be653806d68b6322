"""Figures and findings: what benchmarks other than appends/s report, as JSON and Markdown.

Rules: files are dated, and a later run of the same day and label replaces the earlier one; every
figure keeps the value of each run and shows their median; aims stand beside what was measured.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.aims import AIM_HEAD, Aim, aim_rows, number
from benchmarks.machine import Machine
from benchmarks.report import command, machine_text, table


@dataclass(frozen=True)
class Figure:
    """One measured quantity of one system, over several runs."""

    case: str
    system: str
    unit: str
    values: Sequence[float]
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary, for a results file."""
        return {**asdict(self), "median": self.median}

    def row(self) -> list[str]:
        """Cells of the table of figures."""
        spread = "-"
        if len(self.values) > 1:
            spread = f"{number(min(self.values))}..{number(max(self.values))}"
        median = number(self.median, self.unit)
        return [self.case, self.system, median, spread, str(len(self.values)), self.note]


@dataclass(frozen=True)
class Findings:
    """Everything one invocation measured."""

    name: str
    title: str
    intro: str
    machine: Machine
    settings: dict[str, Any]
    figures: list[Figure]
    aims: list[Aim]
    module: str
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    sections: list[str] = field(default_factory=list)


def find(figures: Sequence[Figure], case: str, system: str) -> Figure | None:
    """The figure of a system in a case, if there is one."""
    return next((f for f in figures if f.case == case and f.system == system), None)


def ratio_rows(figures: Sequence[Figure], ours: str) -> list[list[str]]:
    """Medians of `ours` over those of every other system, case by case."""
    rows = []
    for mine in figures:
        others = [f for f in figures if f.case == mine.case and f.system != ours]
        if mine.system == ours:
            rows += [
                [mine.case, f"{ours} ÷ {other.system}", f"{mine.median / other.median:.2f}x"]
                for other in others
                if other.median > 0 and other.unit == mine.unit
            ]
    return rows


def markdown(findings: Findings) -> str:
    """The whole page."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    parts = [f"# {findings.title}, {today}", findings.intro, machine_text(findings.machine)]
    parts += [f"`{command(findings.module)}`", "## Aims", table(AIM_HEAD, aim_rows(findings.aims))]
    head = ["case", "system", "median", "min..max", "runs", ""]
    parts += ["## Figures", table(head, [figure.row() for figure in findings.figures])]
    parts += findings.sections
    settings = {**findings.settings, **findings.versions}
    rows = [[name, str(value)] for name, value in settings.items()]
    parts += ["## Settings", table(["setting", "value"], rows)]
    if findings.unavailable:
        lines = [f"- {name}: {why.splitlines()[0]}" for name, why in findings.unavailable.items()]
        parts += ["## Not on this machine", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def write(findings: Findings, folder: Path, label: str = "") -> tuple[Path, Path]:
    """Writes the dated JSON and Markdown files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    suffix = f"-{label}" if label else ""
    json_path = folder / f"{date}-{findings.name}{suffix}.json"
    values = {
        "name": findings.name,
        "date": date,
        "command": command(findings.module),
        "machine": asdict(findings.machine),
        "settings": findings.settings,
        "versions": findings.versions,
        "unavailable": findings.unavailable,
        "aims": [aim.to_dict() for aim in findings.aims],
        "figures": [figure.to_dict() for figure in findings.figures],
    }
    json_path.write_text(json.dumps(values, indent=1, default=str) + "\n")
    markdown_path = json_path.with_suffix(".md")
    markdown_path.write_text(markdown(findings))
    return json_path, markdown_path


def publish(findings: Findings, folder: Path, label: str = "") -> None:
    """Writes the files, prints the page, and says where it is."""
    paths = write(findings, folder, label)
    print(markdown(findings))
    print(f"written: {paths[0].name}, {paths[1].name} in {folder}")
