"""A pipeline is stopped by signals, as a service manager or a terminal sends them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from strandline.spark.session import QUICK_START

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

STRANDLINE = str(Path(sys.executable).parent / "strandline")
SPARK = [word for each in QUICK_START.items() for word in ("--conf", "=".join(each))]
PATIENCE_S = 400
AT_ONCE_S = 10


class Run:
    """A pipeline's process, which leads a process group as at a terminal, and its output."""

    def __init__(self, directory, *options):
        command = [STRANDLINE, "pipeline", "run", "load.yaml", "--master", "local[2]", *SPARK]
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out, self.err = [], []
        self.changed = threading.Condition()
        self.readers = [
            threading.Thread(target=self.read, args=each)
            for each in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()

    def read(self, source, lines):
        with source:
            for line in source:
                with self.changed:
                    lines.append(line)
                    self.changed.notify_all()

    def wait_for(self, words, lines):
        """Wait until one of the lines has these words."""
        with self.changed:
            found = self.changed.wait_for(lambda: any(words in line for line in lines), PATIENCE_S)
        assert found, (words, self.out, self.err)

    def signal(self, number):
        """Send a signal to the whole group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def end(self, timeout_s=PATIENCE_S):
        """Wait for its end, and that of everything that has its outputs; return its code."""
        try:
            code = self.process.wait(timeout_s)
            for reader in self.readers:
                reader.join(timeout_s)
                assert not reader.is_alive(), "a process of it is still running"
        finally:
            self.process.kill()
        return code

    def is_without_traces(self):
        return not [line for line in self.err if line.startswith(("\tat ", "Traceback", "  File"))]


@pytest.fixture
def load(log, tmp_path):
    """A stream that grows, its load, and a function that changes the load's trigger."""
    stream = log.new_stream(2000)

    def write(trigger):
        config = {"kind": "load", "server": log.server, "streams": [stream], "into": "table"}
        config |= {"checkpoint": "checkpoint", "trigger": trigger}
        (tmp_path / "load.yaml").write_text(yaml.safe_dump(config))

    write("continuous")
    ended = threading.Event()

    def feed():
        # Few: until Spark has started, on a busy machine, these are what the second run loads.
        for first in range(2000, 10**9, 20):
            log.append(stream, range(first, first + 20))
            if ended.wait(0.1):
                return

    feeding = threading.Thread(target=feed)
    feeding.start()

    def finish():
        ended.set()
        feeding.join()
        write("available_now")

    yield stream, finish
    ended.set()
    feeding.join()


def stopped(directory, number):
    """A load that was sent a signal after its first batch, as a terminal or a manager sends it.

    It says what it does before its first batch and what it has committed at its end, prints no
    stack trace, and exits with 0.
    """
    run = Run(directory, "--output", "json")
    run.wait_for('"batch":0', run.out)
    run.signal(number)
    assert run.end() == 0, run.err
    assert run.is_without_traces(), run.err
    batches = [json.loads(line) for line in run.out]
    assert {line["event"] for line in batches} == {"batch"}
    told = [json.loads(line)["message"] for line in run.err if line.startswith("{")]
    records = sum(line["records"] for line in batches)
    order = [
        "starting Spark",
        "is running",
        "starting the queries",
        "Processing new data",
        f"stopping after signal {number.name}",
        f"committed up to batch {batches[-1]['batch']}, {records} records in this run",
    ]
    places = [next(n for n, line in enumerate(told) if words in line) for words in order]
    assert places == sorted(places)


def test_a_load_is_stopped_by_ctrl_c(load, tmp_path):
    """The signal of a terminal stops it as that of a manager does."""
    stopped(tmp_path, signal.SIGINT)


def test_a_load_continues_where_a_signal_stopped_it(load, log, landed, tmp_path):
    """The next run begins there, and the table equals the stream."""
    stream, finish = load
    stopped(tmp_path, signal.SIGTERM)
    finish()
    second = Run(tmp_path)
    assert second.end() == 0, second.err
    assert landed(tmp_path / "table") == sorted(log.records(stream))


def test_a_second_signal_stops_a_load_at_once(load, tmp_path):
    """Whatever it does: here it is starting Spark, whose process ends, too."""
    run = Run(tmp_path)
    run.wait_for("Setting default log level", run.err)
    run.signal(signal.SIGTERM)
    run.wait_for("stopping after signal SIGTERM", run.err)
    begun_s = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.process.wait(AT_ONCE_S) == -signal.SIGTERM
    assert run.end() == -signal.SIGTERM
    assert time.monotonic() - begun_s < PATIENCE_S
    assert run.is_without_traces(), run.err
