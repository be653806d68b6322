"""Background tasks that do not die in silence.

A task here runs until it is cancelled; if it ends by an exception that is a bug of ours, and it is
logged when it happens, not when somebody awaits the task.
"""

import asyncio
import logging
from collections.abc import Coroutine

logger = logging.getLogger(__name__)


def start_task(coroutine: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
    """Run ``coroutine`` in the background; the caller keeps the task."""
    task = asyncio.create_task(coroutine, name=name)
    task.add_done_callback(_report)
    return task


async def end_task(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task and wait for its end; None and ended tasks are fine."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("task %s crashed", task.get_name(), exc_info=task.exception())
