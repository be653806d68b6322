"""The demo, small: interrupted, then run to its end in the same directory."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FLIGHTS = 12_000
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


def kill_job(directory):
    """Kill the Spark job's process, which the demo did not ask for."""
    for pid in running(directory):
        if b"strandline.spark.demo.job" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("no Spark job runs")


def wait_until_gone(directory, timeout_s=60):
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
        time.sleep(6)
        assert len(running(directory)) >= 3
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 130
    wait_until_gone(directory)
    with start(directory) as second:
        for line in second.stdout:
            if "published 7,200" in line:
                break
        kill_job(directory)
        output, _ = second.communicate(timeout=300)
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
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "not the demo's" in output
    assert (tmp_path / "letter.txt").read_text() == "dear"
