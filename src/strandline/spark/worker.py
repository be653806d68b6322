"""A Python worker of Spark, as the tasks in it see it.

Rules: what is done here concerns the worker's whole process, so it happens in tasks only: never in
the process of a user who calls the same code.
"""

import gc

from pyspark import TaskContext

from strandline.errors import InvalidRequestError

_settled = False


def settle() -> None:
    """Spare this worker's garbage collector what was there before its first task of ours.

    Spark lets every worker collect garbage after every task. Most of what it looks through are the
    modules that are loaded, which never become garbage: 43 ms of CPU a task, for nothing.
    """
    global _settled  # noqa: PLW0603  of the process, as the collector is
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()


def micro_batch() -> tuple[str, int]:
    """The query's id and the number of the micro-batch that this task works for.

    Raises:
        InvalidRequestError: this is no task of a streaming query.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise InvalidRequestError("a streaming write runs only inside a streaming query")
    return query, int(batch)
