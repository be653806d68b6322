"""A broker as a process: event loop, signals, exit code.

SIGTERM and SIGINT finish the current group commit, flush, stop the child nats-server and exit with
0, also during the start. A second signal ends the process at once, which loses no acknowledged
record. SIGHUP checks the certificates for changes.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable

import uvloop

from strandline import arrow_compute
from strandline.clock import Clock
from strandline.config import BrokerConfig
from strandline.errors import StrandlineError, UnavailableError
from strandline.malloc_tuning import keep_freed_memory
from strandline.process.logs import logging_to_stderr
from strandline.process.renewal import certificate_files
from strandline.process.watchdog import LoopWatchdog
from strandline.process.wiring import BrokerApp, run_until
from strandline.storage.descriptors import STORAGE_DESCRIPTORS
from strandline.storage.disk import Disk
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.without_pandas import keep_pandas_out

logger = logging.getLogger(__name__)

EXIT_ERROR = 1
SWITCH_INTERVAL_S = 0.0005
"""The time that a thread keeps the interpreter when another waits for it: a tenth of Python's
default, so that the sync thread and readers do not wait 5 ms for the loop (docs/adr/0037)."""
OPEN_FILES_MIN = 256
"""The lowest usable limit: about 30 files are open after the start."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_broker(
    config: BrokerConfig,
    *,
    on_ready: Callable[[dict[str, object]], None],
    clock: Clock | None = None,
    disk: Disk | None = None,
) -> int:
    """Serve until a signal arrives.

    Args:
        config: the broker's settings.
        on_ready: called with ports and process id once all listeners are open.
        clock: the clock; by default the machine's.
        disk: the file system; by default the machine's.

    Returns:
        0 after a clean stop; 1 after an error that was logged as JSON.

    Raises:
        StrandlineError: the broker could not start (only if logs are text).
    """
    with logging_to_stderr(config.log_level, config.log_format):
        try:
            return _run(config, on_ready=on_ready, clock=clock, disk=disk)
        except StrandlineError as error:
            if config.log_format == "text":
                raise
            logger.critical("%s (%s)", error.message, error.code)
            return EXIT_ERROR


def _run(
    config: BrokerConfig,
    *,
    on_ready: Callable[[dict[str, object]], None],
    clock: Clock | None,
    disk: Disk | None,
) -> int:
    raise_open_files_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    relax_garbage_collector()
    keep_freed_memory()
    keep_pandas_out()
    arrow_compute.reserve = STORAGE_DESCRIPTORS.reserve

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def request_stop(number: signal.Signals) -> None:
            logger.info("stopping after signal %s", number.name)
            stop.set()
            for each in STOP_SIGNALS:
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, request_stop, number)
        app = BrokerApp(config, clock=clock, disk=disk)
        if not await _start(app, stop):
            return
        watchdog = LoopWatchdog()
        if certificate_files(config):  # without a handler SIGHUP ends the process
            loop.add_signal_handler(signal.SIGHUP, app.look_at_certificates)
        ready = {**app.ready_line(), "pid": os.getpid()}
        logger.info("ready, with pid %d and Arrow Flight on port %d", ready["pid"], app.flight_port)
        on_ready(ready)
        try:
            await run_until(app, stop)
        finally:
            watchdog.stop()

    uvloop.run(main())
    logger.info("stopped")
    return 0


async def _start(app: BrokerApp, stop: asyncio.Event) -> bool:
    """Start; return False, with nothing left running, if ``stop`` was set during the start.

    Raises:
        StrandlineError: the broker cannot start.
    """
    starting = asyncio.create_task(app.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


def raise_open_files_limit() -> None:
    """Raise the limit of open files as far as allowed, and set the share for storage.

    Raises:
        UnavailableError: the limit is too low even for a broker without streams.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < OPEN_FILES_MIN:
        raise UnavailableError(
            f"only {hard} files may be open at a time, and a broker needs {OPEN_FILES_MIN} or "
            "more: raise the limit with 'ulimit -n' (systemd: LimitNOFILE) and start again"
        )
    MAPPED_SEGMENTS.maps_max = STORAGE_DESCRIPTORS.begin().maps


def relax_garbage_collector() -> None:
    """Run the cyclic garbage collector a hundred times less often, never on imported modules.

    A group commit creates thousands of small objects, which reference counting frees. The collector
    traversed them nevertheless, which took a tenth of the time when records went to many
    partitions.
    """
    gc.freeze()
    gc.set_threshold(70_000, 20, 50)
