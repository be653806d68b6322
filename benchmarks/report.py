"""Writes results: a JSON file with every run, and a Markdown page a person can judge.

Rules: files are dated, and a later run of the same day replaces the earlier one; every row names
its ack class, settings and version; ratios are only formed within one ack class.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Never

from benchmarks.aims import AIM_HEAD, Aim, aim_rows
from benchmarks.machine import Machine, machine_of
from benchmarks.peers.system import Ack, Place, System
from benchmarks.runner import RESULTS_DIR, Point, Summary
from benchmarks.syncs import SyncCount


@dataclass(frozen=True)
class Report:
    """Everything one invocation measured. `x_name` is what was varied."""

    name: str
    title: str
    x_name: str
    intro: str
    machine: Machine
    systems: list[System]
    points: list[Point]
    summaries: list[Summary]
    syncs: dict[str, SyncCount]
    versions: dict[str, str]
    unavailable: dict[str, str]
    module: str
    sections: list[str] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def by_key(summaries: Sequence[Summary]) -> dict[tuple[str, int], Summary]:
    """Summaries by system and x."""
    return {(each.system, each.x): each for each in summaries}


def xs_of(summaries: Sequence[Summary]) -> list[int]:
    """The values of x, ascending."""
    return sorted({each.x for each in summaries})


def _cell(summary: Summary | None, *, spread: bool) -> str:
    if summary is None:
        return "-"
    text = f"{summary.median_per_s:,.0f}"
    if spread and summary.runs > 1:
        text += f" ({summary.min_per_s:,.0f}..{summary.max_per_s:,.0f})"
    return text + ("!" if summary.errors else "")


def rate_table(report: Report) -> str:
    """Median appends/s (min-max) of each system at each x; `!` marks runs with errors."""
    found, xs = by_key(report.summaries), xs_of(report.summaries)
    rows = []
    for system in report.systems:
        cells = [_cell(found.get((system.name, x)), spread=True) for x in xs]
        if any(cell != "-" for cell in cells):
            rows.append([system.label, system.ack.value[0], *cells])
    return table(["appends/s", "ack", *(f"{report.x_name}={x}" for x in xs)], rows)


def latency_table(report: Report) -> str:
    """Median p50 / p99 in milliseconds, and the server's CPU in microseconds per append."""
    found, xs = by_key(report.summaries), xs_of(report.summaries)
    rows = []
    for system in report.systems:
        cells = []
        for x in xs:
            each = found.get((system.name, x))
            if each is None:
                cells.append("-")
            else:
                latency = f"{each.p50_us / 1e3:.2f} / {each.p99_us / 1e3:.2f}"
                cells.append(f"{latency}, {each.server_cpu_us:.0f}")
        if any(cell != "-" for cell in cells):
            rows.append([system.label, *cells])
    head = ["p50 / p99 ms, server CPU µs", *(f"{report.x_name}={x}" for x in xs)]
    return table(head, rows)


def ratio_table(report: Report, pairs: Sequence[tuple[str, str]]) -> str:
    """Quotients of medians for pairs of system names (numerator, denominator)."""
    found, xs = by_key(report.summaries), xs_of(report.summaries)
    labels = {system.name: system.label for system in report.systems}
    rows = []
    for over, under in pairs:
        cells = []
        for x in xs:
            top, bottom = found.get((over, x)), found.get((under, x))
            if top and bottom and bottom.median_per_s > 0:
                cells.append(f"{top.median_per_s / bottom.median_per_s:.2f}x")
            else:
                cells.append("-")
        if any(cell != "-" for cell in cells):
            rows.append([f"{labels[over]} ÷ {labels[under]}", *cells])
    return table(["ratio of medians", *(f"{report.x_name}={x}" for x in xs)], rows)


def peer_pairs(systems: Sequence[System], ours: str = "strandline") -> list[tuple[str, str]]:
    """Pairs (ours, peer) within one ack class."""
    mine = [system for system in systems if system.name.startswith(ours)]
    others = [system for system in systems if not system.name.startswith(ours)]
    return [(a.name, b.name) for a in mine for b in others if a.ack == b.ack]


def systems_table(report: Report) -> str:
    """What each system promises, its settings and version, and how often it synced."""
    rows = []
    for system in report.systems:
        syncs = report.syncs.get(system.name)
        version = report.versions.get(system.name, "-")
        proof = syncs.describe() if syncs else "not measured"
        rows.append([system.label, system.ack.value, system.settings, version, proof])
    return table(["system", "an ack survives", "settings", "version", "syncs per append"], rows)


def machine_text(machine: Machine) -> str:
    """The machine in a few sentences."""
    sync = machine.sync
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB, Linux {machine.kernel}, "
        f"{machine.file_system}, Python {machine.python}. One {sync.size_bytes}-byte write and "
        f"fdatasync: p50 {sync.overwrite_p50_us:.0f} µs (p99 {sync.overwrite_p99_us:.0f}) over "
        f"preallocated space, p50 {sync.append_p50_us:.0f} µs (p99 {sync.append_p99_us:.0f}) when "
        f"the file grows. Touching memory: {machine.touch_first_ms:.2g} ms per MiB at first, "
        f"{machine.touch_again_ms:.2g} again. Load average before the run, from others: "
        f"{machine.load_average:.1f}. All processes share the machine over loopback."
    )


def command(module: str) -> str:
    """The command of this run, with paths of this machine left out."""
    words = [word if "/" not in word else "<path>" for word in sys.argv[1:]]
    return shlex.join(["python", "-m", module, *words])


def markdown(report: Report) -> str:
    """The whole page."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    parts = [f"# {report.title}, {today}", report.intro, machine_text(report.machine)]
    parts += [f"`{command(report.module)}`"]
    if report.aims:
        parts += ["## Aims", table(AIM_HEAD, aim_rows(report.aims))]
    parts += ["## Rates", rate_table(report)]
    parts += report.sections
    if report.syncs or report.versions:
        parts += ["## What is compared", systems_table(report)]
    skipped = [f"- {name}: {why.splitlines()[0]}" for name, why in report.unavailable.items()]
    failed = [
        f"- {p.system}, {report.x_name}={p.x}, run {p.run + 1}: {p.error.splitlines()[0]}"
        for p in report.points
        if p.error and p.system not in report.unavailable
    ]
    if skipped:
        parts += ["## Not on this machine", "\n".join(skipped)]
    if failed:
        parts += ["## Errors", "\n".join(failed)]
    parts += ["## Latency and CPU", latency_table(report)]
    return "\n\n".join(parts) + "\n"


def write(report: Report, folder: Path, label: str = "") -> tuple[Path, Path]:
    """Writes the dated JSON and Markdown files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    suffix = f"-{label}" if label else ""
    json_path = folder / f"{date}-{report.name}{suffix}.json"
    values = {
        "name": report.name,
        "date": date,
        "command": command(report.module),
        "machine": asdict(report.machine),
        "systems": [
            {"name": s.name, "label": s.label, "ack": s.ack.value, "settings": s.settings}
            for s in report.systems
        ],
        "aims": [aim.to_dict() for aim in report.aims],
        "versions": report.versions,
        "unavailable": report.unavailable,
        "syncs": {name: asdict(count) for name, count in report.syncs.items()},
        "summaries": [asdict(summary) for summary in report.summaries],
        "points": [point.to_dict() for point in report.points],
    }
    json_path.write_text(json.dumps(values, indent=1) + "\n")
    markdown_path = json_path.with_suffix(".md")
    markdown_path.write_text(markdown(report))
    return json_path, markdown_path


def newest(name: str, folder: Path = RESULTS_DIR) -> Path:
    """The newest JSON file of results with this name, which includes its label."""
    dated = re.compile(rf"\d{{4}}-\d\d-\d\d-{re.escape(name)}\.json")
    found = sorted(path for path in folder.glob(f"*-{name}.json") if dated.fullmatch(path.name))
    if not found:
        raise FileNotFoundError(f"no results {name} in {folder.name}")
    return found[-1]


def read(values: dict[str, Any]) -> Report:
    """What a JSON file of results has of a report; its points and its prose are left out."""
    acks = {ack.value: ack for ack in Ack}
    return Report(
        name=values["name"],
        title="",
        x_name="P" if values["name"] == "partitions" else "N",
        intro="",
        machine=machine_of(values["machine"]),
        systems=[
            System(each["name"], each["label"], acks[each["ack"]], each["settings"], _not_open)
            for each in values["systems"]
        ],
        points=[],
        summaries=[Summary(**each) for each in values["summaries"]],
        syncs={name: SyncCount(**count) for name, count in values["syncs"].items()},
        versions=values["versions"],
        unavailable=values["unavailable"],
        module="",
    )


def _not_open(_: Place) -> Never:
    raise NotImplementedError("a system of stored results is not run")
