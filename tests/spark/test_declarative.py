"""Spark Declarative Pipelines: the example, run twice by ``spark-pipelines``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.spark.java import find_java_home

pytest.importorskip("grpc_status", reason="spark-pipelines needs pyspark[pipelines]")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"


def run(directory, server):
    """Run the example with storage of its own."""
    environment = {
        "STRANDLINE_SERVER": server,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    spec = directory / "spark-pipeline.yml"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", str(spec)],
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_declared_example_publishes_each_order_once(log, tmp_path):
    """Two runs with new orders between: the sink has the large ones, each once."""
    shutil.copytree(EXAMPLE, tmp_path / "p")
    spec = tmp_path / "p" / "spark-pipeline.yml"
    text = spec.read_text().replace("file:///tmp/strandline-declarative", f"file://{tmp_path}/s")
    spec.write_text(text)
    for stream in ("orders", "large-orders"):
        log.client.create_stream(stream)
    for first in (0, 200):
        for amount in range(first, first + 200, 10):
            log.client.append("orders", b'{"amount": %d}' % amount)
        run(tmp_path / "p", log.server)
    found = [value for *_, value in log.records("large-orders")]
    assert found == [b'{"amount": %d}' % amount for amount in range(110, 400, 10)]
