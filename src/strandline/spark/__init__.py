"""Spark on Strandline: ``format("strandline")``, the exactly-once table, a session, the demo.

Rules: builds on ``strandline.client`` alone, so that an executor needs the light install; pyspark
is imported only by the modules that are Spark's own classes. Must not know broker or storage.
"""
