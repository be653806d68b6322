"""Starts Spark for benchmarks, so that its workers find their modules and keep what they cache."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = {
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    # Fresh memory is slow on a virtual machine; no run shall pay for it.
    "spark.driver.extraJavaOptions": "-XX:+AlwaysPreTouch",
}
CACHING: Final = {"spark.driver.memory": "3g"}
"""For benchmarks whose rows come from the JVM's memory: they have to fit there."""


def start_spark(cores: int, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the source and sink in memory as `format("ceiling")`."""
    from strandline.spark.session import spark_session

    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    chosen = SETTINGS | dict(settings or {})
    spark = spark_session(f"local[{cores}]", app_name="bench", settings=chosen)
    spark.sparkContext.setLogLevel("ERROR")
    # Registered under its importable name, so that workers keep its rings between tasks.
    spark.dataSource.register(importlib.import_module("benchmarks.spark.memory").CeilingSource)
    return spark
