"""A standalone master and two workers from the PyPI install: batch, stream, executors killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from strandline.spark.demo.processes import Child
from strandline.spark.demo.story import free_port
from strandline.spark.java import find_java_home

JOB = Path(__file__).parent / "jobs" / "land.py"
KILLS = int(os.environ.get("EXECUTOR_KILLS", "2"))

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path):
    """The master's URL and the workers; different addresses, or Spark would never speculate."""
    home = Path(pyspark.__file__).parent
    environment = {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    port = free_port()
    launcher, deploy = str(home / "bin" / "spark-class"), "org.apache.spark.deploy"

    def daemon(name, *arguments, host):
        command = [launcher, f"{deploy}.{name}", "--host", host, *arguments]
        variables = environment | {"SPARK_LOCAL_IP": host}
        return Child(command, log=tmp_path / f"{host}-{name[:6]}.log", environment=variables)

    master = daemon("master.Master", "--port", str(port), "--webui-port", "0", host="127.0.0.1")
    url = f"spark://127.0.0.1:{port}"
    workers = []
    for host in ("127.0.0.1", "127.0.0.2"):
        options = ["--port", "0", "--webui-port", "0", "-c", "1", "-m", "1g"]
        options += ["-d", str(tmp_path / f"work-{host}"), url]
        workers.append(daemon("worker.Worker", *options, host=host))
    yield url, workers
    for child in (*workers, master):
        child.kill()


def executors(workers):
    """Process ids of the executors that the workers run now."""
    parents = {worker.pid for worker in workers}
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in listed.stdout.splitlines())
    return [int(pid) for pid, parent in pairs if int(parent) in parents]


def test_a_cluster_lands_each_record_once_though_executors_die(cluster, log, landed, tmp_path):
    """Batch and stream run on two workers with speculation; executors killed -9 in the middle of
    batches are replaced, and the table equals the log.
    """
    url, workers = cluster
    stream = log.new_stream(3000, size=100)
    moments = random.Random(3)
    command = [sys.executable, str(JOB), url, log.server, stream, str(tmp_path)]
    job = Child(command, log=tmp_path / "job.log")
    try:
        counted = job.wait_for("counted", timeout_s=120)
        assert (counted["rows"], counted["tasks"]) == (3000, 2)
        killed = set()
        for round_number in range(KILLS):
            job.wait_for("batch", timeout_s=120)
            first = 3000 + 1000 * round_number
            log.append(stream, range(first, first + 1000), size=100)
            time.sleep(moments.uniform(0, 1.5))
            victim = moments.choice(executors(workers))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        total = 3000 + 1000 * KILLS
        while len(landed(tmp_path / "table")) < total:
            job.wait_for("batch", timeout_s=120)
    finally:
        job.kill()
    assert len(killed) == KILLS
    assert landed(tmp_path / "table") == log.records(stream)
