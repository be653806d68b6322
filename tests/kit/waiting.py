"""Waiting for conditions that have no event of their own."""

import asyncio
import time


def until(condition, what="it did not happen in time", *, seconds=60.0, retried=()):
    """Poll until a condition is true, and return its value.

    Args:
        condition: a function without arguments.
        what: the message of the failure.
        seconds: how long to wait at most.
        retried: exceptions of the condition that mean that it is not true yet.
    """
    deadline, error = time.monotonic() + seconds, None
    while True:
        try:
            if found := condition():
                return found
        except retried as raised:
            error = raised
        if time.monotonic() >= deadline:
            raise AssertionError(what) from error
        time.sleep(0.02)


async def until_async(condition, *, seconds=60.0):
    """Poll until a condition is true; the loop runs in between."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  the condition has no event
            await asyncio.sleep(0.002)
