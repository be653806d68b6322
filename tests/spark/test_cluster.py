"""A standalone master and two workers from the PyPI install: executors and drivers killed.

The executors have the light client alone: ``jobs/light_client`` keeps the extras from them.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from strandline.spark.demo.processes import Child

JOBS = Path(__file__).parent / "jobs"
KILLS = int(os.environ.get("EXECUTOR_KILLS", "2"))
PATIENCE_S = 400

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


def test_a_cluster_lands_each_record_once_though_executors_die(
    spark_cluster, log, landed, tmp_path
):
    """Batch and stream run on two workers with speculation; executors killed -9 in the middle of
    batches are replaced, and the table equals the log.
    """
    url = spark_cluster.url
    total, more = 1200, 600
    stream = log.new_stream(total, size=100)
    moments = random.Random(3)
    command = [sys.executable, str(JOBS / "land.py"), url, log.server, stream, str(tmp_path)]
    job = Child(command, log=tmp_path / "job.log")
    try:
        counted = job.wait_for("counted", timeout_s=PATIENCE_S)
        assert (counted["rows"], counted["tasks"]) == (total, 2)
        killed = set()
        for _ in range(KILLS):
            job.wait_for("batch", timeout_s=PATIENCE_S)
            log.append(stream, range(total, total + more), size=100)
            total += more
            time.sleep(moments.uniform(0, 1.5))
            victim = moments.choice(spark_cluster.executors())
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        while len(landed(tmp_path / "table")) < total:
            job.wait_for("batch", timeout_s=PATIENCE_S)
    finally:
        job.kill()
    assert len(killed) == KILLS
    assert landed(tmp_path / "table") == log.records(stream)


def test_a_cluster_publishes_each_record_once_though_executors_and_drivers_die(
    spark_cluster, log, tmp_path
):
    """The exactly-once stream sink on two workers: an executor and the driver are killed -9 in the
    middle of batches, and the copy has every record once, in order.
    """
    url = spark_cluster.url
    total, more = 200, 200
    source = log.new_stream(total)
    copy, file = f"{source}-copy", tmp_path / "copy.json"
    config = {"kind": "copy", "stream": source, "into": copy, "server": log.server}
    config |= {"trigger": "continuous", "batch_records_max": 100}
    file.write_text(json.dumps({"copy": config | {"checkpoint": str(tmp_path / "checkpoint")}}))
    command = [sys.executable, str(JOBS / "pipelines.py"), url, str(file)]
    moments = random.Random(5)
    job = Child(command, log=tmp_path / "job.log")
    try:
        for victim in ("executor", "driver"):
            job.wait_for("batch", timeout_s=PATIENCE_S)
            log.append(source, range(total, total + more))
            total += more
            time.sleep(moments.uniform(0, 0.5))
            if victim == "executor":
                os.kill(moments.choice(spark_cluster.executors()), signal.SIGKILL)
            else:
                job.kill()
                job = Child(command, log=tmp_path / "job.log")
        while len(log.records(copy)) < total:
            job.wait_for("batch", timeout_s=PATIENCE_S)
    finally:
        job.kill()

    def in_order(stream):
        return [(partition, value) for partition, _, value in log.records(stream)]

    assert in_order(copy) == in_order(source)
