"""The demo on real data: flights through NATS and the log into a table, through two crashes.

    strandline demo

Rules: the parts are those of a user (``strandline serve``, a NATS publisher, a Spark job);
``runner`` starts, kills and restarts them, ``check`` compares the result with the source.
"""

from strandline.spark.demo.runner import run_demo

__all__ = ["run_demo"]
