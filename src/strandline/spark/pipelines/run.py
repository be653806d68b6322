"""Runs a pipeline from its description, to its end or until it is stopped.

Rules: one function for all kinds. Must not know YAML or the command line.
"""

import logging
import threading
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.errors import InvalidConfigError, UnavailableError
from strandline.spark.connection import stopped_by
from strandline.spark.pipelines.aggregate import start_aggregate
from strandline.spark.pipelines.clean import start_clean
from strandline.spark.pipelines.config import (
    AggregatePipeline,
    CleanPipeline,
    CopyPipeline,
    LoadPipeline,
    MergePipeline,
    Pipeline,
    RepartitionPipeline,
    TransformPipeline,
)
from strandline.spark.pipelines.copy import start_copy
from strandline.spark.pipelines.failures import (
    is_late_worker,
    naming_keys,
    refused_description,
    start_failure,
)
from strandline.spark.pipelines.load import start_load
from strandline.spark.pipelines.merge import start_merge
from strandline.spark.pipelines.outputs import removed_if_refused
from strandline.spark.pipelines.queries import Report, wait_for_end
from strandline.spark.pipelines.repartition import start_repartition
from strandline.spark.pipelines.transform import start_transform
from strandline.spark.progress import failure_noted

logger = logging.getLogger(__name__)

_STARTS = 5
"""How often a pipeline is started if its Python processes are too slow for Spark."""
_START: dict[type, Callable[..., list[StreamingQuery]]] = {
    AggregatePipeline: start_aggregate,
    CleanPipeline: start_clean,
    CopyPipeline: start_copy,
    LoadPipeline: start_load,
    MergePipeline: start_merge,
    RepartitionPipeline: start_repartition,
    TransformPipeline: start_transform,
}


def start_pipeline(spark: SparkSession, config: Pipeline) -> list[StreamingQuery]:
    """Start the queries of a pipeline; Spark runs them in the background.

    Raises:
        StrandlineError: the description does not fit the existing streams or tables, or Spark
            rejects its SQL or its checkpoint.
    """
    if isinstance(config, LoadPipeline) and config.engine == "local":
        raise InvalidConfigError(
            "'engine' is local: run it without Spark, by strandline.spark.pipelines.local.run_local"
        )
    logger.info("starting the queries of the pipeline")
    try:
        with naming_keys(), removed_if_refused():
            return _START[type(config)](spark, config)
    except AnalysisException as error:
        raise refused_description(error) from error
    except (IllegalArgumentException, Py4JJavaError) as error:
        raise start_failure(error) from error


def run_pipeline(
    spark: SparkSession,
    config: Pipeline,
    *,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a pipeline to its end: ``available_now`` ends by itself, ``continuous`` by an error.

    Args:
        spark: the session.
        config: the pipeline.
        report: called with a line for each micro-batch.
        stop: set to end the pipeline; the running batch is abandoned.

    Raises:
        StrandlineError: an error of ``start_pipeline``, or a query failed. Run the pipeline again
            once the cause is resolved; it resumes where it stopped.
    """
    stop = stop or threading.Event()
    queries: list[StreamingQuery] = []
    for left in reversed(range(_STARTS)):
        if stop.is_set():
            continue
        try:
            with stopped_by(stop):
                queries = start_pipeline(spark, config)
            with failure_noted(config.server, _groups(config, queries), stop):
                wait_for_end(queries, server=config.server, report=report, stop=stop)
            break
        except UnavailableError as error:
            if stop.is_set() and not queries:
                continue  # the user no longer waits for the broker
            if not is_late_worker(error) or left == 0:
                raise
            logger.warning("%s: starting it again", error.message)
    else:
        logger.info("stopped before the first batch: nothing was committed")


def _groups(config: Pipeline, queries: list[StreamingQuery]) -> set[str]:
    """Return the consumer groups to which the queries commit their progress."""
    return {config.group} if config.group else {query.name for query in queries}
