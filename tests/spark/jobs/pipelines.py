"""A job for tests that kill it: runs several pipelines in one Spark session.

    python pipelines.py MASTER CONFIGS.json

Writes a JSON line for each micro-batch that ended, and one at the end.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.errors import PySparkException

from strandline.errors import StrandlineError
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.queries import wait_for_end
from strandline.spark.pipelines.run import start_pipeline
from strandline.spark.session import QUICK_START, spark_session

master, configs = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())


def say(line):
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def wait_until_busy(started):
    """Until each query has ended a batch: on a slow machine Spark gives up on Python processes
    that take ten seconds to start, and all queries at once would start dozens.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if all(query.lastProgress is not None or not query.isActive for query in started):
            return
        time.sleep(0.1)


spark = spark_session(master, app_name="pipelines", settings=QUICK_START)
spark.sparkContext.setLogLevel("OFF")
error = None
try:
    queries = []
    for config in configs:
        started = start_pipeline(spark, decode_pipeline(config))
        queries += started
        wait_until_busy(started)
    wait_for_end(queries, report=say)
except (StrandlineError, PySparkException) as failed:
    error = str(failed)
say({"event": "end", "error": error})
spark.stop()
