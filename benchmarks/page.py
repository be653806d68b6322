"""Puts the tables of results into the pages that show them.

Run it from the root of the repository when there are new results: `python -m benchmarks.page`. A
table of the page stands between two comments, and is written anew:

    <!-- results curve-peers: rates compared -->
    <!-- end -->

The name is that of a results file without its date; the newest one is taken. The words say which
tables. A test fails if the page has other figures than the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.aims import number
from benchmarks.figures import Figure
from benchmarks.machine import machine_of
from benchmarks.runner import RESULTS_DIR

_DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final = (_DOCS / "reference" / "benchmarks.md", _DOCS / "size-a-machine.md")
_BLOCK: Final = re.compile(r"(<!-- results ([\w-]+): ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(page: Path) -> str:
    """Return a page with the tables of the newest results."""
    link = Path(*[".."] * len(page.relative_to(_DOCS).parts), *RESULTS_DIR.parts[-2:])

    def filled(block: re.Match[str]) -> str:
        beginning, name, kinds, end = block.groups()
        return f"{beginning}\n{tables(name, kinds.split(), link)}\n\n{end}"

    return _BLOCK.sub(filled, page.read_text())


def tables(name: str, kinds: list[str], link: Path) -> str:
    """Return tables of one results file, and what was run where."""
    path = report.newest(name)
    values = json.loads(path.read_text())
    parts = [_table(kind, values) for kind in kinds]
    about = machine_of(values["machine"])
    parts.append(
        f"[{values['date']}]({link}/{path.stem}.md): `{values['command']}`. {about.cpu}, "
        f"{about.cores} cores, {about.file_system}; a write and fdatasync of "
        f"{about.sync.size_bytes} bytes took {about.sync.overwrite_p50_us:.0f} µs; load average "
        f"before, from others: {about.load_average}."
    )
    return "\n\n".join(parts)


def _table(kind: str, values: dict[str, Any]) -> str:
    if kind == "figures":
        return _by_case([_figure(each) for each in values["figures"]])
    found = report.read(values)
    match kind:
        case "rates":
            return report.rate_table(found)
        case "ratios":
            return report.ratio_table(found, report.peer_pairs(found.systems))
        case "latency":
            return report.latency_table(found)
        case "compared":
            return report.systems_table(found)
    raise ValueError(f"no such table: {kind}")


def _figure(values: dict[str, Any]) -> Figure:
    return Figure(**{key: value for key, value in values.items() if key != "median"})


def _by_case(found: list[Figure]) -> str:
    """Return a table with a row for each case and a column for each system."""
    systems = list(dict.fromkeys(each.system for each in found))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for each in found:
        cell = number(each.median)
        if len(each.values) > 1:
            cell += f" ({number(min(each.values))}..{number(max(each.values))})"
        rows.setdefault((each.case, each.unit), {})[each.system] = cell
    head = ["median (min..max)", "unit", *systems]
    body = [
        [case, unit, *(cells.get(system, "-") for system in systems)]
        for (case, unit), cells in rows.items()
    ]
    return report.table(head, body)


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        page.write_text(refreshed(page))
        print(f"written: {page.name}, from {RESULTS_DIR.name}")


if __name__ == "__main__":
    main()
