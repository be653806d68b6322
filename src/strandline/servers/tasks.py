"""Background tasks that log unexpected exceptions at once.

A task runs until it is cancelled. An exception that ends it is a bug, and is logged when it
happens, not when the task is awaited.
"""

import asyncio
import logging
from collections.abc import Coroutine

logger = logging.getLogger(__name__)


def start_task(coroutine: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
    """Run a coroutine in the background; the caller must keep the returned task."""
    task = asyncio.create_task(coroutine, name=name)
    task.add_done_callback(_report)
    return task


async def end_task(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task and wait until it has ended; accepts None and finished tasks."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("task %s crashed", task.get_name(), exc_info=task.exception())
