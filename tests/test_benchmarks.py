"""Benchmarks are not run by the suite, but their imports must exist."""

import importlib
from pathlib import Path

import pytest

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
