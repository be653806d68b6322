"""The demo, small: interrupted, then run to its end in the same directory."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FLIGHTS = 4_000
PATIENCE_S = 120
MARK = "SPARK_DEMO_TEST"


def start(directory):
    """The demo as a process whose children can be told by a variable they inherit."""
    words = [sys.executable, "-m", "strandline.spark.demo", "--directory", str(directory)]
    return subprocess.Popen(
        [*words, "--flights", str(FLIGHTS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {MARK: str(directory)},
    )


def running(directory):
    """Processes that the demo started, and itself."""
    mark, found = f"{MARK}={directory}".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
        except OSError:
            continue
    return found


def process_with(directory, word):
    """The process that has this in its command, as soon as there is one."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for pid in running(directory):
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        assert time.monotonic() < deadline, f"nothing runs {word}"
        time.sleep(0.1)


def wait_until_gone(directory, timeout_s=PATIENCE_S):
    """Wait until nothing runs any more."""
    deadline = time.monotonic() + timeout_s
    while left := running(directory):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.2)


def test_the_demo_ends_clean_and_the_next_run_passes(importable_by_workers, tmp_path):
    """Ctrl-C in the middle leaves nothing running; a second run outlives a job that dies by itself,
    kills the job and the broker, and finds table, log and source equal.
    """
    directory = tmp_path / "demo"
    with start(directory) as first:
        for line in first.stdout:
            if "starting the Spark job" in line:
                break
        process_with(directory, b"org.apache.spark")
        assert len(running(directory)) >= 3
        first.send_signal(signal.SIGINT)
        assert first.wait(PATIENCE_S) == 130
    wait_until_gone(directory)
    with start(directory) as second:
        for line in second.stdout:
            if f"published {FLIGHTS * 6 // 10:,}" in line:
                break
        # Which the demo does not ask for.
        os.kill(process_with(directory, b"strandline.spark.demo.job"), signal.SIGKILL)
        output, _ = second.communicate(timeout=600)
    assert second.returncode == 0, output
    assert f"{FLIGHTS:,} flights, {FLIGHTS * 20:,} values: table = source" in output
    assert output.count("kill -9") == 2
    assert "spark ended early" in output
    assert "2 kills, 0 other" not in output
    assert (directory / "delays.png").stat().st_size > 10_000
    wait_until_gone(directory)


def test_the_demo_empties_no_directory_but_its_own(tmp_path):
    """A directory with other files is left alone, and the error says so."""
    (tmp_path / "letter.txt").write_text("dear")
    with start(tmp_path) as demo:
        output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 1
    assert "not the demo's" in output
    assert (tmp_path / "letter.txt").read_text() == "dear"
