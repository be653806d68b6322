"""A batch job on Spark: read a stream, aggregate, and append the result to another stream.

After examples/producer.py: python examples/spark_batch.py [host:port]
"""

import sys

from pyspark.sql import functions as f

import strandline
from strandline.errors import StreamExistsError
from strandline.spark.session import spark_session

server = sys.argv[1] if len(sys.argv) > 1 else "localhost:9293"

with strandline.connect(server) as client:
    try:
        client.create_stream("averages")
    except StreamExistsError:
        print("appending to the stream 'averages'")

spark = spark_session("local[*]", app_name="averages")
readings = (
    spark.read.format("strandline")
    .option("server", server)
    .option("stream", "readings")
    .schema("value BINARY")  # the schema is the list of columns to fetch
    .load()
)
parsed = f.from_json(f.col("value").cast("string"), "sensor STRING, value DOUBLE")
averages = (
    readings.select(parsed.alias("r")).groupBy("r.sensor").agg(f.avg("r.value").alias("mean"))
)
averages.orderBy("sensor").show()

(
    averages.select(
        f.to_json(f.struct("sensor", "mean")).alias("value"),
        f.col("sensor").alias("key"),
    )
    .write.format("strandline")
    .option("server", server)
    .option("stream", "averages")
    .mode("append")
    .save()
)
spark.stop()
