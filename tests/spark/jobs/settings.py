"""Spark settings of the jobs here: on a cluster of small executors, or in one process."""

from strandline.spark.session import QUICK_START

CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "20",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.4",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "200ms",
}
"""Executors that die are replaced without end, and slow tasks run twice."""


def settings_for(master):
    """What a job on this master is started with."""
    return QUICK_START | (CLUSTER if master.startswith("spark:") else {})
