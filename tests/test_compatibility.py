"""docs/compatibility.md names tests: each is there, and runs on three brokers where it says so."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
ON_BOTH = {
    "liftbridge": {"lift", "api", "bare", "stream", "quick"},
    "beam": {"beam", "log"},
}
"""Fixtures that come with one broker and with three, by folder of ``integration``."""
SAME = "the same"


def all_tests(folder):
    """Every test function below a folder, by name: its fixtures."""
    return {
        node.name: {argument.arg for argument in node.args.args}
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_")
    }


def rows():
    """The tables' cells: what, on one, on three."""
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3:
            yield cells


def named(text):
    return re.findall(r"`(test_\w+)`", text)


def test_every_test_that_the_page_names_is_there():
    """Renaming a test renames it there, too."""
    known = all_tests(ROOT / "tests")
    assert len(list(rows())) > 60
    assert [name for name in named(PAGE.read_text("utf-8")) if name not in known] == []


def test_what_runs_on_three_brokers_too_does():
    """Where the page says so, the test takes a client of one broker and of three."""
    right = {
        name
        for folder, on_both in ON_BOTH.items()
        for name, fixtures in all_tests(ROOT / "tests" / "integration" / folder).items()
        if fixtures & on_both
    }
    same = [name for _, one, three in rows() if three == SAME for name in named(one)]
    assert [name for name in same if name not in right] == []
