"""Which Java and which Python a session gets."""

import os
import shutil
import subprocess
import sys

import pytest

from strandline.spark.java import wheel_java_home

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCRIPT = """
import json, pyspark, sys
from strandline.spark.session import QUICK_START, spark_session
spark = spark_session("local[1]", settings=QUICK_START)
server, stream = sys.argv[1:]
frame = spark.read.format("strandline").options(server=server, stream=stream).load()
workers = spark.sparkContext.parallelize([1], 1)
found = workers.map(lambda _: __import__("pyspark").__file__).collect()
assert found == [pyspark.__file__], found
system = spark._jvm.System
print(json.dumps([frame.count(), system.getProperty("java.home")]))
"""


def test_spark_runs_on_the_wheel(log, monkeypatch, tmp_path):
    """With the wheel's Java forced, Spark starts and reads a stream, on that Java; Python workers
    import the installed PySpark, whose bytecode is kept, not that of Spark's zip.
    """
    home = wheel_java_home()
    stream = log.new_stream(100)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, log.server, stream],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f'[100, "{home}"]'


PLAIN = (
    "from pyspark.sql import SparkSession\n"
    "spark = SparkSession.builder.master('local[1]').getOrCreate()"
)
OURS = "from strandline.spark.session import spark_session; spark = spark_session('local[1]')"


@pytest.mark.parametrize("session", [PLAIN, OURS], ids=["plain", "ours"])
def test_only_our_session_finds_the_source_without_an_environment(log, tmp_path, session):
    """As docs/spark.md says: Spark starts ``python3`` on the PATH, if none is activated."""
    (tmp_path / "python3").symlink_to(shutil.which("python3", path=f"{sys.base_prefix}/bin"))
    script = (
        f"{session}\n"
        f"options = {{'server': {log.server!r}, 'stream': {log.new_stream(7)!r}}}\n"
        "print(spark.read.format('strandline').options(**options).load().count())\n"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if session is OURS:
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["7"]), done.stderr[-3000:]
    else:
        assert "ClassNotFoundException: strandline.DefaultSource" in done.stderr
