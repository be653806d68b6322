"""Query a stream by its view under Spark Connect: server, then what to expect in each stream."""

import sys

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
sys.stdout.write(f"{type(spark).__module__}\n{found}\n")
spark.stop()
