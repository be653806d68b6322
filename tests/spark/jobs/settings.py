"""Spark settings of the jobs here: on a cluster of small executors, or in one process."""

import os
from pathlib import Path

from strandline.spark.session import QUICK_JAVA, QUICK_START

CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": f"{QUICK_JAVA} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
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


LIGHT_CLIENT = Path(__file__).parent / "light_client"


def settings_for(master, *, is_light=False):
    """Return the settings of a job on this master; on a cluster perhaps with light executors."""
    if not master.startswith("spark:"):
        return QUICK_START
    path = [str(LIGHT_CLIENT)] * is_light + [os.environ.get("PYTHONPATH", "")]
    return QUICK_START | CLUSTER | {"spark.executorEnv.PYTHONPATH": os.pathsep.join(path)}
