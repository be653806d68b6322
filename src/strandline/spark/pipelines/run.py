"""Runs a pipeline from its description, to its end or until it is stopped.

Rules: one function for every kind; a Spark session is made if none is given. Must not know YAML or
the command line.
"""

import logging
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from strandline.errors import UnavailableError
from strandline.spark.pipelines.aggregate import start_aggregate
from strandline.spark.pipelines.clean import start_clean
from strandline.spark.pipelines.config import (
    Aggregate,
    Clean,
    Copy,
    Load,
    Merge,
    Pipeline,
    Repartition,
    Transform,
)
from strandline.spark.pipelines.copy import start_copy
from strandline.spark.pipelines.failures import (
    is_late_worker,
    refused_description,
    start_failure,
)
from strandline.spark.pipelines.load import start_load
from strandline.spark.pipelines.merge import start_merge
from strandline.spark.pipelines.outputs import removed_if_refused
from strandline.spark.pipelines.queries import Report, wait_for_end
from strandline.spark.pipelines.repartition import start_repartition
from strandline.spark.pipelines.transform import start_transform

logger = logging.getLogger(__name__)

_STARTS = 5
"""How often a pipeline is started whose Python processes came too late for Spark."""
_START: dict[type, Callable[..., list[StreamingQuery]]] = {
    Aggregate: start_aggregate,
    Clean: start_clean,
    Copy: start_copy,
    Load: start_load,
    Merge: start_merge,
    Repartition: start_repartition,
    Transform: start_transform,
}


def start_pipeline(spark: SparkSession, config: Pipeline) -> list[StreamingQuery]:
    """Start the queries of a pipeline; Spark runs them in the background.

    Raises:
        StrandlineError: the description does not fit the streams or tables that are there, or
            Spark cannot make sense of its SQL, or use its checkpoint.
    """
    try:
        with removed_if_refused():
            return _START[type(config)](spark, config)
    except AnalysisException as error:
        raise refused_description(error) from error
    except (IllegalArgumentException, Py4JJavaError) as error:
        raise start_failure(error) from error


def run_pipeline(spark: SparkSession, config: Pipeline, *, report: Report | None = None) -> None:
    """Run a pipeline to its end: ``available_now`` ends by itself, ``continuous`` by an error.

    Args:
        spark: where to run it.
        config: which pipeline.
        report: called with what each micro-batch did.

    Raises:
        StrandlineError: as ``start_pipeline``, or a query failed; run the pipeline again when what
            it says is mended, it goes on where it was.
    """
    for left in reversed(range(_STARTS)):
        try:
            wait_for_end(start_pipeline(spark, config), server=config.server, report=report)
            break
        except UnavailableError as error:
            if not is_late_worker(error) or left == 0:
                raise
            logger.warning("%s: starting it again", error.message)
