"""Spark Declarative Pipelines: the example, run by ``spark-pipelines``."""

import os
import shutil
import sys
from pathlib import Path

import pyspark
import pytest

from strandline.spark.demo.processes import Child
from strandline.spark.java import find_java_home, spark_home

pytest.importorskip("grpc_status", reason="spark-pipelines needs pyspark[pipelines]")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"


def run(directory, server):
    """Run the example with storage of its own."""
    environment = {
        "STRANDLINE_SERVER": server,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(spark_home(Path(pyspark.__file__).parent)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run"]
    command += ["--spec", str(directory / "spark-pipeline.yml")]
    # A child of its own group: it starts a JVM, which has to end with it.
    job = Child(command, log=directory / "job.log", environment=environment)
    job.finish(timeout_s=600)
    assert job.exit_code == 0, job.tail(60)


def test_the_declared_example_publishes_each_order_once(log, tmp_path):
    """The sink has the large orders, each once and in order."""
    shutil.copytree(EXAMPLE, tmp_path / "p")
    spec = tmp_path / "p" / "spark-pipeline.yml"
    text = spec.read_text().replace("file:///tmp/strandline-declarative", f"file://{tmp_path}/s")
    spec.write_text(text)
    for stream in ("orders", "large-orders"):
        log.client.create_stream(stream)
    for amount in range(0, 400, 10):
        log.client.append("orders", b'{"amount": %d}' % amount)
    run(tmp_path / "p", log.server)
    found = [value for *_, value in log.records("large-orders")]
    assert found == [b'{"amount": %d}' % amount for amount in range(110, 400, 10)]
