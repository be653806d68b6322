"""A Spark session with the settings that Strandline's guarantees and speed were measured with.

Rules: finds a Java, makes workers use this very Python, keeps streaming state in RocksDB with a
changelog, and leaves every setting to be overridden. Nothing in the data sources needs it: any
Spark 4.2+ session finds ``format("strandline")`` by itself. Must not know streams or tables.
"""

import os
import sys
import time
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.errors import UnavailableError
from strandline.spark.java import use_java
from strandline.spark.releases import refuse_old_spark

_STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_INITIALIZING = "Initializing sources"
"""What Spark says of a query that is starting."""
_STATUS_POLL_S = 0.1

RECOMMENDED: dict[str, str] = {
    # The default state store keeps everything on the heap and refuses transformWithState.
    "spark.sql.streaming.stateStore.providerClass": _STATE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Spark looks at the size of a batch after every row on its way to a Python sink, which with a
    # map among the columns (headers) takes five times as long as all the rest (measured on 4.3).
    # Few rows bound a batch instead, to 500 MiB if each has 1 MiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    # Frozen in a query's checkpoint at its first start; 200 tasks a batch suit no laptop.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}

LAPTOP: dict[str, str] = {
    # A third off the fixed cost of a micro-batch; its renames are as atomic as the local disk's.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For jobs of a minute or less, such as tests: compile less, start sooner. Half the speed later."""

QUICK_START: dict[str, str] = {"spark.driver.extraJavaOptions": QUICK_JAVA}


def spark_session(
    master: str = "local[*]",
    *,
    app_name: str = "strandline",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the session that runs.

    Args:
        master: ``local[*]``, ``local[2,4]`` (two cores, four attempts a task) or
            ``spark://host:port``.
        app_name: shown in Spark's pages.
        settings: Spark settings that come on top of, and override, the recommended ones.

    Raises:
        InvalidConfigError: this PySpark is too old.
        UnavailableError: no Java 17 or later was found, or Spark does not start.
    """
    refuse_old_spark()
    use_java()
    # Sources run in this Python on the driver and on executors: Spark 4.3 looks at the driver's
    # environment alone, and at PYSPARK_DRIVER_PYTHON first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = RECOMMENDED | (LAPTOP if master.startswith("local") else {}) | dict(settings or {})
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (Py4JJavaError, PySparkRuntimeError) as error:
        is_java = isinstance(error, Py4JJavaError)
        said = error.java_exception.toString() if is_java else f"{error} Java said why, above."
        raise UnavailableError(
            f"Spark does not start with master {master!r} and these settings: "
            f"{said.splitlines()[0]}"
        ) from error


def wait_for_sources(query: StreamingQuery, *, timeout_s: float = 60.0) -> None:
    """Wait until a query that was just started has its sources, or has failed.

    Spark starts a Python process for each and gives it 10 s to connect, however many start at once:
    "Python worker failed to connect back". So the next query is started after this.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not query.isActive or query.status["message"] != _INITIALIZING:
            return
        time.sleep(_STATUS_POLL_S)
