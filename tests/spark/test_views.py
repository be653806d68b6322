"""Streams by name in SQL."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from strandline.errors import InvalidConfigError
from strandline.spark.java import spark_home
from strandline.spark.views import register_views

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
JOB = Path(__file__).parent / "jobs" / "views.py"


def test_a_stream_is_a_name_in_sql(spark, log):
    """Selected from, described and listed; a name that SQL would not take is quoted; registered
    again, it has newer records.
    """
    stream = log.new_stream()
    odd = f"{stream}.it's-`odd`"
    for name in (stream, f"{stream}.odd-name"):
        if name != stream:
            log.client.create_stream(name)
        log.client.append_batch(name, pa.table({"value": [b"1", b"2"]}))
    names = register_views(spark, log.server, pattern=f"{stream}*")
    assert names == [f"strandline.{quoted(stream)}", f"strandline.`{stream}.odd-name`"]
    for name in names:
        assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 2
    assert [
        row.viewName for row in spark.sql("SHOW VIEWS IN strandline LIKE '*odd-name'").collect()
    ]
    described = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE {names[0]}").collect()}
    assert described["value"] == "binary"
    log.client.append_batch(stream, pa.table({"value": [b"3"]}))
    assert spark.sql(f"SELECT count(*) FROM {names[0]}").collect()[0][0] == 2, "docs/spark.md"
    register_views(spark, log.server, pattern=stream, options={"endingOffsets": "latest"})
    other = spark.newSession()
    assert other.sql(f"SELECT count(*) FROM {names[0]}").collect()[0][0] == 3
    with pytest.raises(InvalidConfigError, match="startingOffsets"):
        register_views(spark, log.server, pattern=stream, options={"startingOffset": "earliest"})
    assert register_views(spark, log.server, pattern=odd) == []


def quoted(name):
    return name if name.isidentifier() else f"`{name}`"


def test_a_stream_is_a_name_under_connect(log):
    """The same call, with a session that has no Java of its own; a wrong option is refused."""
    stream = log.new_stream()
    log.client.append_batch(stream, pa.table({"value": [b"1", b"2", b"3"]}))
    environment = {
        key: value
        for key, value in os.environ.items()
        if "SPARK" not in key or key == "SPARK_SUBMIT_OPTS"
    }
    environment["SPARK_HOME"] = str(spark_home(Path(pyspark.__file__).parent))
    done = subprocess.run(
        [sys.executable, str(JOB), log.server, stream],
        capture_output=True,
        text=True,
        timeout=400,
        # With SPARK_TESTING, Spark Connect's server takes a free port, not 15002.
        env=environment | {"PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.strip().splitlines()
    assert "connect" in lines[-2]
    assert lines[-1] == "3"
    assert re.search(r"unknown option 'assign'.*did you mean 'stream'", done.stdout)
