"""The package by which Spark finds ``format("strandline")``.

Spark imports every top-level ``pyspark_*`` package. Rules: nothing but the name that Spark looks
for; everything else is in ``strandline.spark``.
"""

from strandline.spark.source import StrandlineSource as DefaultSource

__all__ = ["DefaultSource"]
