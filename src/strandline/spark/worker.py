"""Helpers for Spark's Python workers.

Rule: these functions affect the whole process, so they are called only in tasks, never in a user's
own process.
"""

import gc

from pyspark import TaskContext

from strandline.errors import InvalidRequestError

_settled = False


def settle() -> None:
    """Exclude objects that exist before this worker's first task from garbage collection.

    Spark runs the garbage collector after every task. Mostly it scans loaded modules, which never
    become garbage, for 43 ms of CPU per task.
    """
    global _settled  # noqa: PLW0603  of the process, as the collector is
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()


def micro_batch() -> tuple[str, int]:
    """Return the query's id and the number of this task's micro-batch.

    Raises:
        InvalidRequestError: this is not a task of a streaming query.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise InvalidRequestError("a streaming write runs only inside a streaming query")
    return query, int(batch)
