"""Slices of ``make crash-pipelines``: pipelines at once, killed, doubled, then judged."""

import os
import sys
from pathlib import Path

import pytest

from strandline.spark.demo.processes import Child

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
RUNS = os.environ.get("PIPELINE_KILLS", "1")
HARNESS = Path(__file__).parent / "crash"


@pytest.fixture
def crash(tmp_path):
    """A function: make crash runs with these arguments; the page of results."""

    def crash(*arguments):
        command = [sys.executable, str(HARNESS), "--runs", RUNS, "--out", str(tmp_path)]
        command += ["--executors", "0", *arguments]
        harness = Child(command, log=tmp_path / "harness.log")
        try:
            harness.finish(timeout_s=3500)
        finally:
            harness.kill()
        assert harness.exit_code == 0, harness.tail(60)
        [page] = tmp_path.glob("*-crash-pipelines.md")
        return page.read_text()

    return crash


def test_killed_pipelines_give_the_function_of_their_input(crash):
    """Driver, Python workers, nats-server or broker killed -9, two drivers at once: no record is
    lost, doubled or out of order, in any stream or table.
    """
    page = crash("--kinds", "delta", "--seed", "1")
    assert "| delta | 1 |" in page


def test_pipelines_outlive_the_leaders_of_their_streams(crash):
    """Three brokers, three copies of each stream, a leader killed -9 while pipelines run: they go
    on at its successor, and no record is lost, doubled or out of order.
    """
    page = crash(
        *("--brokers", "3", "--kinds", "copy,parquet", "--victims", "leader", "--drivers", "1"),
        *("--seed", "1"),
    )
    assert "| copy | 3 |" in page
