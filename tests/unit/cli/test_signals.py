"""Stop signals of commands, sent to this process and to one of its own."""

import os
import signal
import subprocess
import sys

import pytest

from strandline.cli.signals import STOP_SIGNALS, GracefulStop, interrupted_by_sigterm

STOPPED_TWICE = """
import os, signal, sys
from strandline.cli.signals import GracefulStop

with GracefulStop(lambda: print("at once", flush=True)) as stop:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        print(stop.requested.is_set(), flush=True)
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_requests_a_stop(number):
    """The process continues; after the block the previous handlers are restored."""
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with GracefulStop(lambda: pytest.fail("there was no second signal")) as stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a library does
        stop.install()
        assert not stop.requested.is_set()
        os.kill(os.getpid(), number)
        assert stop.requested.is_set()
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_the_second_signal_ends_the_process():
    """By that signal, after the command has stopped what it started."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_TWICE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert done.stdout.split("\n") == ["True", "at once", ""]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_sigterm_interrupts_like_ctrl_c(number):
    """As commands expect that stop everything they started."""
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before
