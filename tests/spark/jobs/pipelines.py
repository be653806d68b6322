"""A job for tests that kill it: runs several pipelines in one Spark session.

    python pipelines.py MASTER CONFIGS.json

Writes a JSON line for each micro-batch that ended, and one at the end.
"""

import json
import sys
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


spark = spark_session(master, app_name="pipelines", settings=QUICK_START)
spark.sparkContext.setLogLevel("OFF")
error = None
try:
    pipelines = [decode_pipeline(config) for config in configs]
    queries = [query for each in pipelines for query in start_pipeline(spark, each)]
    wait_for_end(queries, report=say)
except (StrandlineError, PySparkException) as failed:
    error = str(failed)
say({"event": "end", "error": error})
spark.stop()
