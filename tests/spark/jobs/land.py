"""A job for tests that kill it: lands a stream in a table, batch by small batch.

    python land.py MASTER SERVER STREAM DIRECTORY [--to-the-end]

Writes one JSON line for each batch it has seen committed; ends when all is read, or never.
"""

import json
import sys
import time

from settings import settings_for

from strandline.spark.session import spark_session

master, server, stream, directory = sys.argv[1:5]
to_the_end = "--to-the-end" in sys.argv

spark = spark_session(master, app_name="land", settings=settings_for(master, is_light=True))
spark.sparkContext.setLogLevel("OFF")


def say(**line):
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


source = (
    spark.read.format("strandline").options(server=server, stream=stream).load()
    if master.startswith("spark:")
    else None
)
if source is not None:
    say(event="counted", rows=source.count(), tasks=source.rdd.getNumPartitions())

limit = 20_000 if to_the_end else 300
query = (
    spark.readStream.format("strandline")
    .options(server=server, stream=stream, maxRecordsPerTrigger=limit)
    .options(maxRecordsPerPartition=100 if not to_the_end else 10_000)
    .load()
    .writeStream.format("strandline-table")
    .option("checkpointLocation", f"{directory}/checkpoint")
    .trigger(**({"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}))
    .start(f"{directory}/table")
)
seen = -1
while query.isActive:
    progress = query.lastProgress
    if progress is not None and progress["batchId"] > seen:
        seen = progress["batchId"]
        say(event="batch", batch=seen, rows=progress["numInputRows"])
    time.sleep(0.02)
error = query.exception()
say(event="end", error=str(error) if error else None)
spark.stop()
