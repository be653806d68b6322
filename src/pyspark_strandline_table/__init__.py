"""The package by which Spark finds ``format("strandline-table")``.

A package can offer one format only. Rules: nothing but the name that Spark looks for; everything
else is in ``strandline.spark``.
"""

from strandline.spark.tables.source import StrandlineTable as DefaultSource

__all__ = ["DefaultSource"]
