"""A load in a process of its own, which is killed.

Rules: the process is forked from one that has imported everything and started no thread, so that a
life begins in a tenth of a second. It reports what it has done, and may be killed at any moment.
"""

import contextlib
import multiprocessing
import os
import signal
import time

import deltalake  # noqa: F401 - imported once, for all lives
import obstore  # noqa: F401
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401

from strandline.errors import StrandlineError
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.tables import io as table_io
from strandline.spark.tables.delta import DeltaStore
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.iceberg import IcebergStore
from tests.kit.object_stores import ENVIRONMENT

from .kinds import MERGED_FILES_MAX

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class LoadLife:
    """A process that runs a load until it ends or is killed.

    Args:
        config: of the pipeline.
        log: the file of its standard error.
    """

    def __init__(self, config, log):
        self._ours, theirs = _context.Pipe(duplex=False)
        given = (config, str(log), ENVIRONMENT, theirs)
        self._process = _context.Process(target=_live, args=given, daemon=True)
        self._process.start()
        theirs.close()
        self.counts = dict.fromkeys(("batch", "merged", "expired"), 0)
        """What it reported."""
        self.error = None
        """The error that it ended with: class, whether it is retriable, message."""

    @property
    def is_running(self):
        return self._process.is_alive()

    def wait(self, what=None, number=1, *, seconds):
        """Take in reports until there are so many of a kind, or it ended, or the time is over."""
        deadline = time.monotonic() + seconds
        while what is None or self.counts[what] < number:
            if not self._ours.poll(max(0.0, deadline - time.monotonic())):
                return
            try:
                self._take(self._ours.recv())
            except (EOFError, OSError):
                self._process.join()
                return

    def _take(self, report):
        kind, value = report
        if kind == "error":
            self.error = value
        else:
            self.counts[kind] += value

    def signal(self, number):
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def kill(self):
        """Send SIGKILL; return whether it was running."""
        was_running = self.is_running
        self.signal(signal.SIGKILL)
        self._process.join()
        self.wait(seconds=5)
        self._ours.close()
        if self.error is None and self._process.exitcode not in (0, -signal.SIGKILL):
            code = self._process.exitcode
            self.error = ("Exception", False, f"exit code {code}; its log has the reason")
        return was_running and self.error is None


def _live(config, log, environment, reports):
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)

    def reported(kind, act):
        def call(*args, **options):
            number = act(*args, **options)
            if number:
                reports.send((kind, number))
            return number

        return call

    table_io.compact.__kwdefaults__["files_max"] = MERGED_FILES_MAX
    table_io.compact = reported("merged", table_io.compact)
    for store in (TableFiles, DeltaStore, IcebergStore):
        store.expire = reported("expired", store.expire)
    try:
        run_local(decode_pipeline(config), report=lambda _: reports.send(("batch", 1)))
    except StrandlineError as error:
        reports.send(("error", (type(error).__name__, error.retriable, str(error))))
