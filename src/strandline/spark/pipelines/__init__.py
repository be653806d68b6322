"""Pipelines over streams: ``strandline pipeline run``, or from Python.

Rules: a pipeline is a frozen description (``config``) and a function that starts Spark queries from
it; exactly-once is up to the source and the sinks. Must not know the broker's internals.
"""
