"""The end of programs that use the client: Ctrl-C while waiting, and an unclosed producer."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import strandline
from strandline.testing import ProcessServer

SOURCE = str(Path(strandline.__file__).parents[1])


def run(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A Python program of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
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
        try:
            _, errors = program.communicate(timeout=60)
        finally:
            program.kill()  # else leaving the block would wait for it without end
    assert "KeyboardInterrupt" in errors
    assert program.returncode != 0


@pytest.mark.skipif(
    (3, 12, 0) <= sys.version_info < (3, 12, 2), reason="Python itself starts no thread at exit"
)
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
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    with strandline.connect(strandline_url) as client:
        assert client.read("s").read_all().num_rows == 1000


def test_a_program_ends_even_when_the_broker_does_not_answer():
    """Records that cannot be delivered fail after their timeout, and this is reported."""
    code = (
        "import sys, strandline\n"
        "client = strandline.connect(sys.argv[1])\n"
        "client.create_stream('s')\n"
        "producer = client.producer('s', delivery_timeout_s=5)\n"
        "producer.append(b'v').result()\n"
        "print('paused', flush=True)\n"
        "sys.stdin.readline()\n"
        "for _ in range(50): producer.append(b'x' * 500_000)\n"
    )
    with ProcessServer() as server:
        with run(code, server.flight) as program:
            assert program.stdout.readline() == "paused\n"
            server.signal(signal.SIGSTOP)
            try:
                _, errors = program.communicate("\n", timeout=60)
            finally:
                server.signal(signal.SIGCONT)
        assert program.returncode == 0
        assert "records failed" in errors


def senders():
    """The threads of producers."""
    return {thread for thread in threading.enumerate() if thread.name == "strandline-sender"}


def test_a_forgotten_producer_lets_its_threads_go(strandline_url):
    """Buffered records are delivered first."""
    with strandline.connect(strandline_url) as client:
        client.create_stream("s")
        before = set(threading.enumerate())
        client.producer("s", linger_ms=60_000).append(b"v")
        gc.collect()
        deadline = time.monotonic() + 60
        while (left := senders() - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left
        assert client.read("s").read_all().num_rows == 1
