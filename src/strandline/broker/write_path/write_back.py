"""The disk is given what a log has written a part at a time (docs/adr/0031, 0034).

A sync of the journal, for which publishers wait, has to wait for one part then, not for all of it.
"""

import asyncio

from strandline.storage.log import Log


async def write_back(log: Log, *, pause_s: float, parts_max: int | None = None) -> None:
    """Let the disk begin with what was written, beside the loop.

    Args:
        log: of which at least a part is new, or nothing is done.
        pause_s: after each part.
        parts_max: leave the rest for later; None: all of it.
    """
    parts = 0
    while log.can_write_back and parts != parts_max:
        await asyncio.to_thread(log.write_back)
        await asyncio.sleep(pause_s)
        parts += 1
