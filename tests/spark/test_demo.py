"""The demo, small: interrupted, run to its end, and begun again, in the same directory."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND = ("strandline.cli", "demo")
FLIGHTS = 4_000
PATIENCE_S = 120
MARK = "SPARK_DEMO_TEST"


def start(directory, *command):
    """The demo as a terminal starts it, in a group of its own; its children can be told by a
    variable they inherit.
    """
    words = [sys.executable, "-m", *command, "--directory", str(directory)]
    return subprocess.Popen(
        [*words, "--flights", str(FLIGHTS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {MARK: str(directory)},
        start_new_session=True,
    )


def wait_for(demo, words):
    """Read its output until a line has this text; return what was read."""
    said = []
    for line in demo.stdout:
        said.append(line)
        if words in line:
            return "".join(said)
    raise AssertionError(f"it did not say {words!r}, but:\n{''.join(said)}")


def interrupt(demo, directory, number=signal.SIGINT):
    """Ctrl-C at the terminal, which is SIGINT for the whole group, or SIGTERM; nothing runs on."""
    os.killpg(demo.pid, number)
    assert demo.wait(PATIENCE_S) == 130
    wait_until_gone(directory)


def check_no_trace(output):
    """Neither of Java nor of Python."""
    assert not re.search(r"^\s+at |^Traceback|Exception", output, re.MULTILINE), output


def running(directory):
    """The demo and the processes that it started; nats-server inherits no mark, but its path."""
    mark, found = f"{MARK}={directory}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = mark in (process / "environ").read_bytes().split(b"\0")
            if is_marked or b"%b/" % bytes(directory) in (process / "cmdline").read_bytes():
                found.append(int(process.name))
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
    """Wait until all its processes have ended."""
    deadline = time.monotonic() + timeout_s
    while left := running(directory):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.2)


def test_the_demo_ends_clean_and_runs_again(importable_by_workers, tmp_path):
    """Ctrl-C in the middle leaves nothing running; the next run outlives a job that dies by itself,
    kills the job and the broker, and finds table, log and source equal; one more begins anew.
    """
    directory = tmp_path / "demo"
    with start(directory, *COMMAND) as first:
        output = wait_for(first, "starting the Spark job")
        for part in (b"strandline.cli\0serve", b"nats-server", b"org.apache.spark"):
            process_with(directory, part)
        interrupt(first, directory)
        check_no_trace(output + first.stdout.read())
    with start(directory, *COMMAND) as second:
        wait_for(second, "starting the Spark job")
        # Which the demo does not ask for.
        os.kill(process_with(directory, b"strandline.spark.demo.job"), signal.SIGKILL)
        output, _ = second.communicate(timeout=600)
    assert second.returncode == 0, output
    assert f"{FLIGHTS:,} flights, {FLIGHTS * 20:,} values: table = source" in output
    assert output.count("kill -9") == 2
    assert "the Spark job ended unexpectedly" in output
    assert "2 kills, 0 other" not in output
    check_no_trace(output)
    assert (directory / "delays.png").stat().st_size > 10_000
    wait_until_gone(directory)
    with start(directory, *COMMAND) as third:
        wait_for(third, "publishing to NATS")
        assert not (directory / "delays.png").exists()
        interrupt(third, directory, signal.SIGTERM)


def test_the_demo_empties_no_directory_but_its_own(tmp_path):
    """A directory with other files is left alone, as is a file, and a line says so."""
    (tmp_path / "letter.txt").write_text("dear")
    for place, why in ((tmp_path, "not the demo's"), (tmp_path / "letter.txt", "File exists")):
        with start(place, *COMMAND) as demo:
            output, _ = demo.communicate(timeout=PATIENCE_S)
        assert demo.returncode == 1
        assert re.fullmatch(rf"error: .*{why}.*\n", output)
    assert (tmp_path / "letter.txt").read_text() == "dear"
