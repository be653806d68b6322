"""A job for tests that kill it: runs several pipelines in one Spark session.

    python pipelines.py MASTER CONFIGS.json

Takes pipelines by their names. Writes a JSON line for each micro-batch that ended, and one at the
end with the error of each pipeline that did not come through; failures go to standard error. A
continuous pipeline that fails is started again, as a supervisor would.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.errors import PySparkException
from settings import settings_for

from strandline.errors import StrandlineError
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.queries import Watch
from strandline.spark.pipelines.run import start_pipeline
from strandline.spark.session import spark_session

BUSY_TIMEOUT_S = 120
RESTART_S = 1.0


def say(**line):
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Pipeline:
    """One pipeline and its query.

    Args:
        name: in what is reported.
        values: its description.
    """

    def __init__(self, name, values):
        self.name = name
        self.config = decode_pipeline(values)
        self.query = None
        self.watch = None
        self.error = None
        self.start()

    def start(self):
        """Start the query; wait until it has ended a batch.

        On a slow machine Spark gives up on Python processes that take ten seconds to start, and all
        queries at once would start dozens.
        """
        try:
            [self.query] = start_pipeline(spark, self.config)
            self.watch = Watch(self.query, self.config.server)
        except (StrandlineError, PySparkException) as error:
            self.fail(error)
            return
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while self.query.isActive and self.query.lastProgress is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def fail(self, error):
        """Note why it does not run."""
        self.query, self.error = None, str(error)
        first_line = (self.error.splitlines() or [""])[0]
        sys.stderr.write(f"FAILED {self.name}: {first_line}\n")
        sys.stderr.flush()

    def look(self):
        """Report new micro-batches; return whether it has ended."""
        if self.query is None:
            if self.config.trigger == "available_now":
                return True
            time.sleep(RESTART_S)
            self.start()
            return False
        is_over = not self.query.isActive
        for line in self.watch.news():
            say(**line, name=self.name)
        if is_over and (error := self.query.exception()) is not None:
            self.fail(error)
            return False
        if is_over:
            self.error = None
        return is_over


master, configs = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
# Others want more on executors: libraries of tables, or what Spark keeps state with.
is_light = all(each["kind"] == "copy" for each in configs.values())
settings = settings_for(master, is_light=is_light) | {
    "spark.sql.streaming.noDataProgressEventInterval": "1000"
}
spark = spark_session(master, app_name="pipelines", settings=settings)
spark.sparkContext.setLogLevel("OFF")
pipelines = [Pipeline(name, values) for name, values in configs.items()]
say(event="started")
left = pipelines
while left := [pipeline for pipeline in left if not pipeline.look()]:
    time.sleep(0.05)
say(event="end", errors={each.name: each.error for each in pipelines if each.error})
spark.stop()
