"""Where Spark finds ``format("strandline")``: it imports every top-level ``pyspark_*`` package.

Rules: nothing but the name Spark looks for; everything is in ``strandline.spark``.
"""

from strandline.spark.source import StrandlineSource as DefaultSource

__all__ = ["DefaultSource"]
