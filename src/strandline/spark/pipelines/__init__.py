"""Pipelines over streams, each a small module: ``strandline pipeline run``, or from Python.

Rules: a pipeline is a frozen description (``config``) and a function that starts Spark queries from
it; what makes it exactly-once is in the source and the sinks, never here. Must not know the inside
of the broker.
"""
