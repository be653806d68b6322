"""A streaming job on Spark: write a stream to a table of Parquet files, each record exactly once.

After examples/producer.py: python examples/spark_stream.py [host:port] [directory]
Run it again, or kill it and run it again: the table continues where it ended.
"""

import sys
from pathlib import Path

from strandline.spark.session import spark_session
from strandline.spark.table import read_table, table_summary

server = sys.argv[1] if len(sys.argv) > 1 else "localhost:9293"
directory = Path(sys.argv[2] if len(sys.argv) > 2 else "lake").absolute()

spark = spark_session("local[*]", app_name="landing")
query = (
    spark.readStream.format("strandline")
    .option("server", server)
    .option("stream", "readings")
    .option("maxRecordsPerTrigger", 100_000)
    .load()
    .writeStream.format("strandline-table")
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True)  # omit to run without end
    .start(str(directory / "readings"))
)
query.awaitTermination()
spark.stop()

print(table_summary(str(directory / "readings")))
print(read_table(str(directory / "readings")).head(3).to_pandas())
