"""A Spark session with the settings that Strandline's guarantees and speed were measured with.

Rules: finds a Java, makes workers use this Python, keeps streaming state in RocksDB with a
changelog; every setting can be overridden. The data sources do not need it: any Spark 4.2+ session
finds ``format("strandline")``. Must not know streams or tables.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.errors import UnavailableError
from strandline.spark.java import spark_home, use_java
from strandline.spark.releases import check_spark_version

logger = logging.getLogger(__name__)

_PACKAGE = Path(pyspark.__file__).parent
_STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_INITIALIZING = "Initializing sources"
"""Spark's status message for a query that is starting."""
_STATUS_POLL_S = 0.1
_STDERR = 2
_CHUNK_BYTES = 1 << 16
_is_silent = threading.Event()
"""Set once Java's standard error is no longer forwarded."""

RECOMMENDED: dict[str, str] = {
    # The default state store keeps everything on the heap and rejects transformWithState.
    "spark.sql.streaming.stateStore.providerClass": _STATE,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Spark checks a batch's size after every row for a Python sink, which with a map column
    # (headers) takes five times as long as everything else (measured on 4.3). A limit of rows
    # bounds the batch instead, to 500 MiB for rows of 1 MiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    # Fixed in a query's checkpoint; Spark's default of 200 is too many for one machine.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # So that SELECT ... FROM strandline.orders finds the views of ``register_views``.
    "spark.sql.globalTempDatabase": "strandline",
    "spark.ui.showConsoleProgress": "false",
}

LAPTOP: dict[str, str] = {
    # Saves a third of a micro-batch's fixed cost; renames are as atomic as the file system's.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Settings for jobs of a minute or less, such as tests: a faster start, half the speed later."""

QUICK_START: dict[str, str] = {"spark.driver.extraJavaOptions": QUICK_JAVA}


def spark_session(
    master: str = "local[*]",
    *,
    app_name: str = "strandline",
    settings: Mapping[str, str] | None = None,
    own_group: bool = False,
) -> SparkSession:
    """Start Spark, or return the running session.

    Args:
        master: ``local[*]``, ``local[2,4]`` (two cores, four attempts per task) or
            ``spark://host:port``.
        app_name: shown in Spark's pages.
        settings: Spark settings that override the recommended ones.
        own_group: whether Java gets a process group of its own, so that Ctrl-C at a terminal and
            signals to our group do not stop it and its Python processes before we do.

    Raises:
        InvalidConfigError: this PySpark is too old.
        UnavailableError: no Java 17 or later was found, or Spark does not start.
    """
    check_spark_version()
    use_java()
    # Sources run in this Python on driver and executors: Spark 4.3 reads only the driver's
    # environment, PYSPARK_DRIVER_PYTHON first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = RECOMMENDED | (LAPTOP if master.startswith("local") else {}) | dict(settings or {})
    builder = SparkSession.builder.master(master).appName(app_name).config(map=chosen)
    logger.info("starting Spark with master %s", master)
    _use_spark_home(chosen)
    started_s = time.monotonic()
    try:
        if own_group and SparkContext._gateway is None:  # noqa: SLF001 - as PySpark asks itself
            conf = SparkConf().setMaster(master).setAppName(app_name).setAll([*chosen.items()])
            SparkContext(conf=conf, gateway=_launch_in_group(conf))
        session = builder.getOrCreate()
    except (Py4JJavaError, PySparkRuntimeError) as error:
        is_java = isinstance(error, Py4JJavaError)
        reason = error.java_exception.toString() if is_java else f"{error} See Java's output above."
        raise UnavailableError(
            f"Spark does not start with master {master!r} and these settings: "
            f"{reason.splitlines()[0]}"
        ) from error
    elapsed_s = time.monotonic() - started_s
    logger.info("Spark %s is running, after %.1f s", pyspark.__version__, elapsed_s)
    return session


def _use_spark_home(settings: Mapping[str, str]) -> None:
    """Set ``SPARK_HOME`` to a home whose Python processes start sooner, unless it is set.

    Not if workers run another Python, which may have no PySpark except the one in Spark's home.
    """
    pythons = {
        os.environ["PYSPARK_PYTHON"],
        os.environ["PYSPARK_DRIVER_PYTHON"],
        settings.get("spark.pyspark.python", sys.executable),
    }
    if pythons == {sys.executable} and (_PACKAGE / "jars").is_dir():
        os.environ.setdefault("SPARK_HOME", str(spark_home(_PACKAGE)))


def _launch_in_group(conf: SparkConf) -> JavaGateway:
    """Start Java as the leader of a process group, and forward its standard error."""
    gateway = launch_gateway(conf, popen_kwargs={"process_group": 0, "stderr": subprocess.PIPE})
    source = gateway.proc.stderr.fileno()
    threading.Thread(target=_forward, args=(source,), name="spark-stderr", daemon=True).start()
    return gateway


def _forward(source: int) -> None:
    """Write what Java and its Python processes print to our standard error, unless silenced."""
    while text := os.read(source, _CHUNK_BYTES):
        if not _is_silent.is_set():
            os.write(_STDERR, text)


def silence_spark(spark: SparkSession) -> None:
    """Stop forwarding Java's standard error, for a session that is about to be stopped.

    Spark and its Python processes report each task that is abandoned with a stack trace.
    """
    spark.sparkContext.setLogLevel("OFF")
    _is_silent.set()


def kill_spark() -> None:
    """Kill the Java of a session with ``own_group``; its Python processes end without it."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no other way to its process
    if gateway is not None and gateway.proc is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(gateway.proc.pid, signal.SIGKILL)


def wait_for_sources(query: StreamingQuery, *, timeout_s: float = 60.0) -> None:
    """Wait until the sources of a query that was just started run, or the query has failed.

    Spark starts a Python process for each source and gives it 10 s to connect, however many start
    at once ("Python worker failed to connect back"). So start the next query after this wait.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not query.isActive or query.status["message"] != _INITIALIZING:
            return
        time.sleep(_STATUS_POLL_S)
