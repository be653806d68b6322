"""A broker as a process: event loop, signals, exit code.

SIGTERM and SIGINT finish the turn, flush, stop the child nats-server and exit 0; a second one ends
the process at once, which loses nothing that was acked. SIGHUP has certificates looked at.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable

import uvloop

from strandline.allocator import keep_freed_memory
from strandline.clock import Clock
from strandline.config import BrokerConfig
from strandline.server.logs import configure_logging
from strandline.server.renewal import certificate_files
from strandline.server.wiring import BrokerApp, run_until
from strandline.storage.disk import Disk

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter when another wants it: a tenth of Python's default,
so that the sync thread and readers do not wait 5 ms for the loop (docs/adr/0003)."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_broker(
    config: BrokerConfig,
    *,
    on_ready: Callable[[dict[str, object]], None],
    clock: Clock | None = None,
    disk: Disk | None = None,
) -> int:
    """Serve until a signal.

    Args:
        config: settings.
        on_ready: told ports and pid once everything listens.
        clock: the time; by default the machine's.
        disk: the door to the file system; by default the machine's.

    Returns:
        the exit code of a clean stop, 0.

    Raises:
        StrandlineError: the broker could not start.
    """
    configure_logging(config.log_level, config.log_format)
    raise_open_files_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    relax_garbage_collector()
    keep_freed_memory()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def request_stop() -> None:
            stop.set()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, request_stop)
        app = BrokerApp(config, clock=clock, disk=disk)
        await app.start()
        if certificate_files(config):  # else it ends the process, as ever
            loop.add_signal_handler(signal.SIGHUP, app.look_at_certificates)
        on_ready({**app.ready_line(), "pid": os.getpid()})
        await run_until(app, stop)

    uvloop.run(main())
    return 0


def raise_open_files_limit() -> None:
    """Allow as many open files as the system lets us: every connection and segment takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def relax_garbage_collector() -> None:
    """Look for garbage in cycles a hundred times less often, and never among what is imported.

    A turn makes thousands of small objects that reference counting frees; the collector looked
    through them all the same, for a tenth of the time when records spread over many partitions.
    """
    gc.freeze()
    gc.set_threshold(70_000, 20, 50)
