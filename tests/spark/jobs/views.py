"""Query a stream by its view under Spark Connect, and give an option that is not ours."""

import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.spark.java import use_java
from strandline.spark.views import register_views

use_java()
settings = {
    "spark.sql.globalTempDatabase": "strandline",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
spark = SparkSession.builder.remote("local[1]").config(map=settings).getOrCreate()
names = register_views(spark, sys.argv[1], pattern=sys.argv[2])
found = spark.sql(f"SELECT count(*) FROM {names[0]}").collect()[0][0]
refused = "nothing was refused"
try:  # Spark Connect asks only when something is done with a frame
    _ = spark.read.format("strandline").options(server=sys.argv[1], assign="1").load().schema
except PySparkException as error:
    refused = str(error)
sys.stdout.write(f"{refused}\n{type(spark).__module__}\n{found}\n")
spark.stop()
