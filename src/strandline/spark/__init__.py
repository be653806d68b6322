"""Spark on Strandline: ``format("strandline")``, the exactly-once table, a session, the demo.

Rules: builds on ``strandline.client`` alone, so that an executor needs only the light install;
pyspark is imported only by modules that define Spark's classes. Must not know broker or storage.
"""
