"""kill -9 of the whole Spark driver at random moments: the table still equals the log.

``KILLS`` sets how often (2 by default), ``KILL_SEED`` which moments.
"""

import os
import random
import sys
import time
from pathlib import Path

import pytest

from strandline.spark.demo.processes import Child
from strandline.spark.table import table_summary

ROUNDS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILL_SEED", "1"))
PATIENCE_S = 300
JOB = Path(__file__).parent / "jobs" / "land.py"
SLOW_COMMITS = JOB.parent / "slow_commits"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600 + 300 * ROUNDS)]


def start(log, stream, directory, *, slow, to_the_end=False):
    """Start the job in a process group of its own."""
    command = [sys.executable, str(JOB), "local[2,4]", log.server, stream, str(directory)]
    path = [str(SLOW_COMMITS)] if slow else []
    environment = {"PYTHONPATH": os.pathsep.join([*path, os.environ["PYTHONPATH"]])}
    return Child(
        command + ["--to-the-end"] * to_the_end,
        log=directory / "job.log",
        environment=environment,
    )


def test_a_driver_killed_at_random_moments_lands_each_record_once(log, landed, tmp_path):
    """Killed while starting, reading, writing and committing, and started again each time, the job
    never shows a record twice or out of place, and in the end has them all.
    """
    moments = random.Random(SEED)
    stream, table = log.new_stream(2000, size=100), tmp_path / "table"
    appended, killed_after_commits = 2000, 0
    for _ in range(ROUNDS):
        before = table_summary(str(table)).commits
        job = start(log, stream, tmp_path, slow=True)
        try:
            if moments.random() < 0.2:
                time.sleep(moments.uniform(0, 6))
            else:
                job.wait_for("batch", timeout_s=PATIENCE_S)
                time.sleep(moments.uniform(0, 1.5))
        finally:
            job.kill()
        appended += 1500
        log.append(stream, range(appended - 1500, appended), size=100)
        summary = table_summary(str(table))
        killed_after_commits += summary.commits > before
        if summary.commits:
            assert set(landed(table)) <= set(log.records(stream))
            assert len(landed(table)) == summary.rows
    job = start(log, stream, tmp_path, slow=False, to_the_end=True)
    end = job.wait_for("end", timeout_s=PATIENCE_S)
    job.kill()
    assert end["error"] is None
    assert landed(table) == log.records(stream)
    assert killed_after_commits >= ROUNDS // 2
