"""Benchmarks are not run by the suite, but their imports must exist, and their page be current."""

import importlib
from pathlib import Path

import pytest

from benchmarks import page

ROOT = Path(__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py") and ".build" not in path.parts
]


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_can_be_imported(module):
    """Every name that it takes from the product exists."""
    importlib.import_module(module)


@pytest.mark.parametrize("shown", page.PAGES, ids=lambda path: path.stem)
def test_a_page_with_results_has_the_newest(shown):
    """`python -m benchmarks.page` changes nothing, so no figure is older than its results file."""
    text = shown.read_text()
    assert "<!-- results " in text
    assert page.refreshed(shown) == text
