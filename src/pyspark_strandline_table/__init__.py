"""Where Spark finds ``format("strandline-table")``: one package can offer one format only.

Rules: nothing but the name Spark looks for; everything is in ``strandline.spark``.
"""

from strandline.spark.table_source import StrandlineTable as DefaultSource

__all__ = ["DefaultSource"]
