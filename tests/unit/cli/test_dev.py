"""What ``strandline dev`` says of brokers that ended."""

import signal

import pytest

from strandline.cli.dev import _ending


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGHUP, "was killed by SIGHUP"),
    ],
)
def test_how_a_broker_ended(code, told):
    """By its own exit code, or the signal that killed it."""
    assert _ending(code) == told
