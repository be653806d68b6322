"""A slice of ``make crash-pipelines``: two pipelines at once, killed, doubled, then judged."""

import os
import sys
from pathlib import Path

import pytest

from strandline.spark.demo.processes import Child

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
RUNS = os.environ.get("PIPELINE_KILLS", "1")
HARNESS = Path(__file__).parent / "crash_pipelines.py"


def test_killed_pipelines_give_the_function_of_their_input(tmp_path):
    """Driver, Python workers or broker killed -9, two drivers at once: no record is lost, doubled
    or out of order, in any stream or table.
    """
    out = tmp_path / "results.md"
    command = [sys.executable, str(HARNESS), "--runs", RUNS, "--seed", "1", "--out", str(out)]
    command += ["--kinds", "copy,delta"]
    harness = Child(command, log=tmp_path / "harness.log")
    try:
        harness.finish(timeout_s=3500)
    finally:
        harness.kill()
    assert out.exists(), harness.tail(40)
    assert "| delta | " in out.read_text()
