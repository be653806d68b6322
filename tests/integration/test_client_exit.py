"""How programs that use the client end: Ctrl-C while waiting, and a producer nobody closed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import strandline

SOURCE = str(Path(strandline.__file__).parents[1])


def run(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A Python program of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


@pytest.mark.parametrize(
    "wait",
    [
        "list(client.read('s', follow=True))",
        "list(client.read('s', start='latest', bytes_min=1, wait_ms_max=60000))",
        "list(client.subscribe('s'))",
    ],
)
def test_ctrl_c_ends_a_wait(strandline_url, wait):
    """A program that waits for records can be interrupted like any other."""
    with strandline.connect(strandline_url) as client:
        client.create_stream("s")
    code = (
        "import sys, strandline\n"
        "client = strandline.connect(sys.argv[1])\n"
        "print('waiting', flush=True)\n"
        f"{wait}\n"
    )
    program = run(code, strandline_url)
    with program:
        assert program.stdout.readline() == "waiting\n"
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(1)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=15)
    assert "KeyboardInterrupt" in errors
    assert program.returncode != 0


def test_a_producer_nobody_closed_is_flushed_at_exit(strandline_url):
    """A forgotten close costs no records."""
    code = (
        "import sys, strandline\n"
        "client = strandline.connect(sys.argv[1])\n"
        "client.create_stream('s')\n"
        "producer = client.producer('s', linger_ms=60000)\n"
        "for number in range(1000): producer.append(b'%d' % number)\n"
    )
    with run(code, strandline_url) as program:
        _, errors = program.communicate(timeout=30)
    assert program.returncode == 0, errors
    with strandline.connect(strandline_url) as client:
        assert client.read("s").read_all().num_rows == 1000


def test_a_forgotten_producer_lets_its_threads_go(strandline_url):
    """What it holds is delivered first."""
    import gc
    import threading
    import time

    with strandline.connect(strandline_url) as client:
        client.create_stream("s")
        client.producer("s", linger_ms=60_000).append(b"v")
        gc.collect()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            names = {thread.name for thread in threading.enumerate()}
            if "strandline-sender" not in names:
                break
            time.sleep(0.02)
        assert "strandline-sender" not in names
        assert client.read("s").read_all().num_rows == 1
