"""Orders above 100 into a stream of their own: declared, and run by ``spark-pipelines``.

Source and sink are found by their names. Each run takes what is new and publishes it once.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

SERVER = os.environ.get("STRANDLINE_SERVER", "127.0.0.1:9293")

dp.create_sink("large", "strandline", {"server": SERVER, "stream": "large-orders"})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    spark = SparkSession.active()
    orders = spark.readStream.format("strandline").options(server=SERVER, stream="orders").load()
    amount = "CAST(get_json_object(CAST(value AS STRING), '$.amount') AS DOUBLE) > 100"
    return orders.where(amount).select("value", "key")
