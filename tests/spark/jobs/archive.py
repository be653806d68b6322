"""A job that archives the Java classes that a driver loads, for faster starts of others.

    python archive.py FILE

It does a little of what tests do: reads a stream, counts over windows of time, writes a table.
Java 13 and later write such an archive when they exit, which this waits for.
"""

import os
import sys
import tempfile

from pyspark.sql import functions as f

import strandline
from strandline.spark.session import QUICK_START, spark_session
from strandline.testing import Server

os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={sys.argv[1]} -Xlog:disable"
spark = spark_session("local[2]", app_name="archive", settings=QUICK_START)
spark.sparkContext.setLogLevel("OFF")
with Server() as server, tempfile.TemporaryDirectory() as directory:
    with strandline.connect(server) as client:
        client.create_stream("orders")
        client.append("orders", b"one espresso")
    options = {"server": server, "stream": "orders"}
    assert spark.read.format("strandline").options(**options).load().count() == 1
    query = (
        spark.readStream.format("strandline")
        .options(**options)
        .load()
        .withWatermark("timestamp", "1 hour")
        .groupBy(f.window("timestamp", "1 hour").alias("hour"), "subject")
        .agg(f.count("value").alias("n"))
        .selectExpr("hour.start hour", "subject", "n")
        .writeStream.format("strandline-table")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{directory}/table")
    )
    query.awaitTermination()
    java = spark.sparkContext._gateway.proc
    spark.stop()
java.stdin.close()
java.wait()
